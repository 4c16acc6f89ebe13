package keyfuncs

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// A memo knows the keys of some addresses by their texts. To parse an IPv6 address and to write
// its network takes an allocation, and as long as all else in a guard; a client makes many
// requests. Whatever it knows or not, the key is the same.
//
// There is one for all functions, which takes at most 80 KiB. A text has one place, which no
// client can foresee. It gets it at the second time in a row that the place is asked in vain.
// So addresses that come once, as in a flood, leave there nothing but a number.
type memo struct {
	seed   maphash.Seed
	places [1 << 9]memoPlace
}

type memoPlace struct {
	known  atomic.Pointer[known]
	missed atomic.Uint64 // the hash that was last asked for in vain
}

// A known is never changed.
type known struct{ host, key string }

// memoHost is the longest text of an address without a zone.
const memoHost = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

var remembered = memo{seed: maphash.MakeSeed()}

// key returns the key of a host, if it is an address.
func (m *memo) key(host string) (key string, ok bool) {
	if len(host) > memoHost {
		return hostKey(host)
	}
	hash := maphash.String(m.seed, host)
	place := &m.places[hash%uint64(len(m.places))]
	found := place.known.Load()
	if found != nil && found.host == host {
		return found.key, true
	}
	if key, ok = hostKey(host); !ok {
		return "", false
	}
	if place.missed.Swap(hash) == hash {
		// The host is a part of a text that may be long, and is not to be kept.
		place.known.Store(&known{strings.Clone(host), key})
	}
	return key, true
}

// hostKey returns the key of a host, if it is an address.
func hostKey(host string) (key string, ok bool) {
	addr, ok := parseHost(host)
	if !ok {
		return "", false
	}
	return shortKey(fold(addr)), true
}
