package memstore

import "sync/atomic"

// budget is the memory that the tables of a store share, in bytes.
type budget struct {
	max    int64
	tables atomic.Int64
	long   atomic.Int64
}

func (b *budget) used() int64 { return b.tables.Load() + b.long.Load() }

// allowsTable reports whether a table may grow by some places to size. All tables
// together take three quarters at most, and so leave room for long states. Their
// share of half the budget they may have even if long states have taken it, which
// are reclaimed then.
func (b *budget) allowsTable(size, more int64) bool {
	more *= entryBytes
	return size*entryBytes <= b.max/2/shards ||
		b.tables.Load()+more <= b.max/4*3 && b.used()+more <= b.max
}

// overrun reports whether long states have to be evicted. A quarter is theirs.
func (b *budget) overrun() bool { return b.used() > b.max && b.long.Load() > b.max/4 }
