package core

import "context"

// A SlotStore counts the slots that processes hold. Package memstore has one for a
// single process. Users of slots only hand it to [NewSlots]; this and the types
// below it are for authors of stores, who have package storetest to check the
// result.
//
// A store is safe for concurrent use, and its type is comparable, as pointers are.
// It identifies what it counts by the name of the slots and the key; the limit is
// that of each call.
type SlotStore interface {
	// AcquireSlots takes a slot for each claim, all or none; together they never
	// exceed Slots.Limit of any claim's key. If one is full, the error is a
	// [FullError]. There is at least one claim, and no two are of the same name and
	// key. After any error nothing is held, or soon will be.
	AcquireSlots(ctx context.Context, claims []Claim) (Grant, error)

	// CountSlots tells how many slots of the key are held by all processes.
	CountSlots(ctx context.Context, s *Slots, key string) (int64, error)

	// CloseSlots gives back all slots of that name that were acquired through this
	// store. The holds on them become worthless: a later Release changes nothing.
	CloseSlots(ctx context.Context, s *Slots) error
}

// A Grant is a store's answer to claims for which all there was room.
type Grant struct {
	Hold        Hold
	Source      Source
	Occupancies []Occupancy // one for each claim
}

// A Hold is what a store keeps of a grant.
type Hold interface {
	// Release gives everything back, without waiting. It is called once at most.
	Release()

	// Lost is that of [Slot].
	Lost() <-chan struct{}
}
