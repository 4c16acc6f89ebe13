package core

import "context"

// A SlotStore counts the slots that processes hold. Package memstore has one for a
// single process. Users of slots only pass it to [NewSlots]; this and the types below
// are for authors of stores, who use package storetest to check the result.
//
// A store is safe for concurrent use, and its type is comparable, as pointers are. A
// count is identified by the name of the slots and the key; the limit is that of each
// call.
type SlotStore interface {
	// AcquireSlots takes a slot for each claim, or none, and never exceeds Slots.Limit of
	// any claim's key. If one is full, the error is a [FullError]. There is at least one
	// claim, and no two are of the same name and key. After an error nothing is held, or
	// what is held is given back soon.
	AcquireSlots(ctx context.Context, claims []Claim) (Grant, error)

	// CountSlots returns how many slots of the key are held by all processes.
	CountSlots(ctx context.Context, s *Slots, key string) (int64, error)

	// CloseSlots gives back all slots of that name that were acquired through this
	// store. Their holds become invalid: a later Release changes nothing. It may be called
	// again, after an error or concurrently.
	CloseSlots(ctx context.Context, s *Slots) error
}

// A Grant is a store's result for claims that were all granted.
type Grant struct {
	Hold        Hold
	Source      Source
	Occupancies []Occupancy // one for each claim
}

// A Hold represents the slots of a grant.
type Hold interface {
	// Release gives everything back, without waiting. It is called at most once.
	Release()

	// Lost returns the channel of [Slot.Lost].
	Lost() <-chan struct{}
}
