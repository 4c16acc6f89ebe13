package store

import (
	"context"
	"fmt"
	"time"

	"github.com/headgate/headgate/internal/hidden"
)

// A SlotStore counts the slots that processes hold. It is safe for concurrent use, and its
// type is comparable, as pointers are. A count is identified by the name of the slots and
// the key; the limit is that of each claim. A store never gets a nil context. Errors must not
// contain keys.
type SlotStore interface {
	// AcquireSlots takes a slot for each claim, or none, and never exceeds the Most of
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

// A Noticer is a [SlotStore] through which processes that hold slots of a key can be told
// something, such as that they must give them up. Only who closes or evicts asks for it.
type Noticer interface {
	SlotStore

	// Listen makes the store call listen with each notice about a key of the slots of that
	// name, of this process or another, until stop is called: not concurrently with itself
	// for those of others, and at most a second after they were announced while the store's
	// servers answer. A store over servers asks them for notices only while there is someone
	// who listens, so that should be who holds slots.
	Listen(name string, listen func(Heard) Answer) (stop func())

	// Topic returns what stands for a key of the slots of that name in a [Heard]. It is the
	// same in all processes, and tells no more of the key than what the store keeps of it.
	Topic(name, key string) string

	// Announce makes a notice known to all who listen in any process, first in this one, and
	// passes heard their answers, one after the other, until heard returns true, all other
	// processes that hold slots of the key have answered, or ctx is done. Silent has the
	// number of slots of each that has not answered by then. An error means that those of
	// other processes may not have heard of the notice; it wraps [ErrUnavailable] or is that
	// of ctx.
	//
	// A store that loses a notice while Announce waits announces it again, as of the instant of
	// the first time: a holder is never taken to have answered because a server has lost what
	// it holds. A notice that has not reached a process when Announce returns may reach it
	// later: see [Notice].
	Announce(ctx context.Context, n Notice, heard func(answer string) (enough bool)) (silent []int64, err error)
}

// A Claim asks for a slot.
type Claim struct {
	Name  string // of the slots
	Key   string `json:"-"`
	Limit int64  // that the key may hold at once; 0 refuses

	// OneMore lets the key hold one slot above the Limit, unless that is 0. It does not change
	// what is too many for Shed.
	OneMore bool

	// Waiting is how many callers of this process wait for slots of the key, with this one, or
	// would if they were refused. 0 means that this one does not wait. A store that other
	// processes share divides what becomes free among the processes that wait: it may refuse one
	// that waits although there is room, if a slot is kept for another for a short time.
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

	// Again is after which time a caller that waits should ask again, because a slot is kept for
	// its process. 0 means that there is no hurry.
	Again time.Duration
}

func (e *FullError) Error() string {
	return fmt.Sprintf("headgate: all slots of claim %d are taken: %d of %d", e.Claim, e.Occupancy.Held, e.Occupancy.Limit)
}
