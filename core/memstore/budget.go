package memstore

import "sync/atomic"

// budget is the memory that the tables of a store share, in bytes.
type budget struct {
	max    int64
	tables atomic.Int64
	long   atomic.Int64
}

func (b *budget) used() int64 { return b.tables.Load() + b.long.Load() }

// allowsTable reports whether a table may grow by some places to size. Half of the
// budget is the tables', each its share, even if long states have taken it: they
// are reclaimed then.
func (b *budget) allowsTable(size, more int64) bool {
	return size*entryBytes <= b.max/2/shards || b.used()+more*entryBytes <= b.max
}

// overrun reports whether long states have to be evicted.
func (b *budget) overrun() bool { return b.long.Load() > 0 && b.used() > b.max }
