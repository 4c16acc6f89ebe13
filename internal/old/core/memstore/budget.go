package memstore

import "sync/atomic"

// budget is the memory that the tables of a store share, in bytes.
type budget struct {
	max    int64
	tables atomic.Int64
	long   atomic.Int64
}

func (b *budget) used() int64 { return b.tables.Load() + b.long.Load() }

// allowsTable reports whether a table may grow by more places to size. All tables
// together take at most three quarters of the budget, to leave room for long states. A
// table may always have its share of half the budget, even if long states have taken
// it; those are then reclaimed.
func (b *budget) allowsTable(size, more int64) bool {
	more *= entryBytes
	return size*entryBytes <= b.max/2/shards ||
		b.tables.Load()+more <= b.max/4*3 && b.used()+more <= b.max
}

// overrun reports whether long states must be evicted. They may always have a quarter of
// the budget.
func (b *budget) overrun() bool { return b.used() > b.max && b.long.Load() > b.max/4 }
