package memory

import (
	"testing"
	"unsafe"
)

// Shards begin cache lines, as the first is what a hot key needs.
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(shard{}); n%64 != 0 {
		t.Errorf("a shard has %d bytes", n)
	}
	if n := unsafe.Offsetof(shard{}.table) + unsafe.Offsetof(table{}.second); n > 64 {
		t.Errorf("what a hot key needs has %d bytes", n)
	}
}
