package store

import (
	"context"
	"fmt"
	"time"

	"github.com/headgate/headgate/internal/hidden"
)

// A SlotStore counts the slots that processes hold. It is safe for concurrent use, and its type is
// comparable, as pointers are. The name of the slots and the key identify a count; each claim has
// its own limit. A store never gets a nil context. Errors must not contain keys.
type SlotStore interface {
	// AcquireSlots acquires a slot for each claim, or none, and never exceeds the Most of any
	// claim. If one is full, the error is a [FullError]. There is at least one claim, and no two
	// are of the same name and key. After an error nothing is held, or held slots are given back
	// soon.
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

	// Observer returns the observer of slots, which is always the same, or nil. The store need not
	// report acquires and releases: package core does.
	Observer() *Observer
}

// A Noticer is a [SlotStore] that can tell something to processes that hold slots of a key, such as
// to give them up. Only guards that close or evict sockets ask for it.
type Noticer interface {
	SlotStore

	// Listen makes the store call listen with each notice about a key of the slots of that name,
	// until stop is called. The notices come from this process and others. For notices of other
	// processes, listen is not called concurrently with itself. It is called at most a second after
	// they were announced, while the store's servers answer. A store over servers asks them for
	// notices only while somebody listens. So only a holder of slots should listen.
	Listen(name string, listen func(Heard) Answer) (stop func())

	// Topic returns what stands for a key of the slots of that name in a [Heard]. It is the
	// same in all processes, and tells no more of the key than what the store keeps of it.
	Topic(name, key string) string

	// Announce makes a notice known to all listeners in any process, first in this one. It passes
	// their answers to heard, one after the other. It ends when heard returns true, all other
	// processes that hold slots of the key have answered, or ctx is done. Silent has the number of
	// slots of each process that has not answered by then. An error means that other processes may
	// not have heard of the notice. It wraps [ErrUnavailable] or is the error of ctx.
	//
	// A store that loses a notice while Announce waits announces it again, as of the first instant.
	// So a lost statement of a holder never counts as its answer. A notice that has not reached a
	// process when Announce returns may reach it later: see [Notice].
	Announce(ctx context.Context, n Notice, heard func(answer string) (enough bool)) (silent []int64, err error)
}

// A Claim asks for a slot.
type Claim struct {
	Name  string // of the slots
	Key   string `json:"-"`
	Limit int64  // that the key may hold at once; 0 refuses

	// OneMore lets the key hold one slot above the Limit, unless that is 0.
	OneMore bool

	// Waiting is how many callers of this process wait for slots of the key, with this one, or
	// would if they were refused. 0 means that this one does not wait. A store that processes share
	// divides freed slots among the waiting processes. So it may refuse a waiting one although
	// there is room, if it keeps a slot for another for a short time.
	Waiting int
}

// Format implements [fmt.Formatter]: it prints the claim without its key.
func (c Claim) Format(s fmt.State, verb rune) {
	type plain Claim
	c.Key = hidden.Mark
	hidden.Print(s, verb, plain(c))
}

// Most returns how many slots the key may hold with the one that is claimed.
func (c Claim) Most() int64 {
	if c.OneMore && c.Limit > 0 {
		return c.Limit + 1
	}
	return c.Limit
}

// A Grant is a store's result for claims that were all granted.
type Grant struct {
	Hold        Hold
	Source      Source
	Occupancies []Occupancy // one for each claim
}

// An Occupancy is the number of slots that a key holds in all processes, with the ones just
// granted, and the applied limit. That is the limit of the claim, or a share of it if the store
// decided without the other processes.
type Occupancy struct{ Held, Limit int64 }

// A Hold represents the slots of a grant.
type Hold interface {
	// Release gives everything back, without waiting. It is called at most once.
	Release()

	// Lost returns a channel that is closed if the store has given the slots to others
	// while this process was away. It is nil if the store never does.
	Lost() <-chan struct{}
}

// A FullError is the error of AcquireSlots if a key holds as many slots as it may.
type FullError struct {
	Claim     int // the index of the claim that was refused
	Occupancy Occupancy
	Source    Source

	// Again is after which time a caller that waits should ask again, because a slot is kept for
	// its process. 0 means that there is no hurry.
	Again time.Duration
}

func (e *FullError) Error() string {
	return fmt.Sprintf("headgate: all slots of claim %d are taken: %d of %d", e.Claim, e.Occupancy.Held, e.Occupancy.Limit)
}
