//go:build !race

package nethttp_test

const raced = 0
