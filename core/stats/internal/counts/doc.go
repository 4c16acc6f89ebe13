// Package counts counts what limiters and slots do, and who is refused: package stats is its public side.
//
// An admitted charge costs two look-ups and an atomic addition, and never a lock or an allocation. Series are made for
// names, never for keys, and are bounded; further names are counted together, under [Others].
package counts
