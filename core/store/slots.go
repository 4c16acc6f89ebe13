package store

import (
	"context"
	"fmt"
)

// A SlotStore counts the slots that processes hold. It is safe for concurrent use, and its
// type is comparable, as pointers are. A count is identified by the name of the slots and
// the key; the limit is that of each claim. A store never gets a nil context. Errors must not
// contain keys.
type SlotStore interface {
	// AcquireSlots takes a slot for each claim, or none, and never exceeds the Limit of
	// any claim. If one is full, the error is a [FullError]. There is at least one claim,
	// and no two are of the same name and key. After an error nothing is held, or what is
	// held is given back soon.
	AcquireSlots(ctx context.Context, claims []Claim) (Grant, error)

	// CountSlots returns how many slots of that name the key holds in all processes.
	CountSlots(ctx context.Context, name, key string) (int64, error)

	// CloseSlots gives back all slots of that name that were acquired through this
	// store. Their holds become invalid: a later Release changes nothing. It may be called
	// again, after an error or concurrently.
	CloseSlots(ctx context.Context, name string) error

	// Shared reports whether other processes acquire slots of the store, too. It always
	// returns the same. If not, no slot is ever lost or doubted.
	Shared() bool

	// Observer returns who is to be told of slots, which is always the same, or nil. The
	// store need not report acquires and releases: package core does.
	Observer() *Observer
}

// A Claim asks for a slot.
type Claim struct {
	Name  string // of the slots
	Key   string
	Limit int64 // that the key may hold at once; 0 refuses
}

// A Grant is a store's result for claims that were all granted.
type Grant struct {
	Hold        Hold
	Source      Source
	Occupancies []Occupancy // one for each claim
}

// An Occupancy is the number of slots that a key holds in all processes, with those that
// were just granted, and the limit that was applied: that of the claim, or a share of it if
// the store decided without the other processes.
type Occupancy struct{ Held, Limit int64 }

// A Hold represents the slots of a grant.
type Hold interface {
	// Release gives everything back, without waiting. It is called at most once.
	Release()

	// Lost returns a channel that is closed if the store has given the slots to others
	// while this process was away. It is nil if the store never does.
	Lost() <-chan struct{}

	// Doubt returns a channel that is closed when the store finds, for the next time, that it
	// may have granted more than the limits: because it had lost data, or had declared this
	// process dead. It is nil if that never happens.
	Doubt() <-chan struct{}

	// Shed gives everything back if one of the keys holds more than the largest Limit under
	// which this process was granted slots of it that it holds, and reports whether it did. Of
	// the slots of a key for which that is called, it gives back no more than are above that. After an error, nothing is given back, and the
	// slots are held. It is called neither with Release nor with itself at the same time, and
	// if it has given everything back, nothing else is called.
	Shed(ctx context.Context) (shed bool, err error)
}

// A FullError is the error of AcquireSlots if a key holds as many slots as it may.
type FullError struct {
	Claim     int // the index of the claim that was refused
	Occupancy Occupancy
	Source    Source
}

func (e *FullError) Error() string {
	return fmt.Sprintf("headgate: all slots of claim %d are taken: %d of %d", e.Claim, e.Occupancy.Held, e.Occupancy.Limit)
}
