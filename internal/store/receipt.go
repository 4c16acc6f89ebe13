package store

import "sync/atomic"

// A Receipt is the right to correct a charge once. Its copies share that. The zero Receipt is of nothing.
type Receipt struct {
	spent *atomic.Uint32
	bit   uint8
}

func NewReceipt() Receipt { return Receipt{spent: new(atomic.Uint32)} }

// Exists reports whether it is of something.
func (r Receipt) Exists() bool { return r.spent != nil }

// Spend reports whether the receipt was not spent before.
func (r Receipt) Spend() bool { return r.spent.Or(1<<r.bit)>>r.bit&1 == 0 }

// Receipts are shared by many charges, as an allocation for each would be garbage.
type Receipts [16]atomic.Uint32

// Many is how many receipts there are in Receipts.
const Many = 32 * uint32(len(Receipts{}))

// Receipt returns the i-th modulo Many.
func (rs *Receipts) Receipt(i uint32) Receipt { return Receipt{&rs[i/32%16], uint8(i % 32)} }
