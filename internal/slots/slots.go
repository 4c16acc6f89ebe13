// Package slots has what stores of slots and their users share, and the store in memory. Package keeper, below it,
// keeps slots that several processes share.
//
// File slots.go has the contract of acquiring, notice.go that of notices, by which guards of sockets talk about a key,
// and memory.go both in one process.
package slots

import (
	"context"
	"errors"
	"fmt"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/step"
)

// Errors of an acquire: there was no room, as a [FullError] says; nobody could decide; the slots were closed.
var (
	ErrFull        = errors.New("headgate: all slots are taken")
	ErrUnavailable = outage.ErrUnavailable
	ErrClosed      = errors.New("headgate: the slots are closed")
)

// An Acquisition asks for a slot of a key.
type Acquisition struct {
	Name, Key string
	Limit     int64 // slots that the key may hold
	OneMore   bool  // with this one it may hold one more, unless the limit is 0
	Queue     int   // the caller waits if fewer than that many wait already; 0: it does not wait
}

// Most returns how many slots the key may hold with this one.
func (a *Acquisition) Most() int64 {
	if a.OneMore && a.Limit > 0 {
		return a.Limit + 1
	}
	return a.Limit
}

// A Grant is one slot that was granted.
type Grant struct {
	Hold

	Held int64 // slots that the key holds with this one, as far as is known

	// Limit is that of the Acquisition, or the share of it that this process has while the server is away. It is not
	// Most: with OneMore, Held may be one above it.
	Limit  int64
	Source step.Source
}

// A Hold is one slot. Release is called once, and does not wait.
type Hold interface {
	Release()
	Lost() <-chan struct{} // closed when others may have the slot; nil if that cannot be
}

// A FullError is an [ErrFull]. Cause is the cause of the context that ended a wait, or nil.
type FullError struct {
	Name   string // of the slots
	Limit  int64  // as of a Grant
	Source step.Source
	Cause  error
}

func (e *FullError) Error() string {
	text := fmt.Sprintf("headgate: all %d slots %q are taken", e.Limit, e.Name)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Is says that it is an ErrFull.
func (*FullError) Is(target error) bool { return target == ErrFull }

// Unwrap returns the cause.
func (e *FullError) Unwrap() error { return e.Cause }

// A Registry counts slots. It is safe for concurrent use. Errors have no keys.
type Registry interface {
	// Acquire acquires a slot. A refusal is a FullError, also if the context ends a wait in which the store has
	// answered.
	Acquire(ctx context.Context, acquisition Acquisition) (Grant, error)
	// Count returns how many slots the key holds in all processes.
	Count(ctx context.Context, name, key string) (int64, error)
	// Close gives back all slots of a name that this store has granted, or of all names if it is "". A later Release of
	// them changes nothing. It may be called again.
	Close(ctx context.Context, name string) error

	Noticer
}
