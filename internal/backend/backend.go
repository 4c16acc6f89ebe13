// Package backend is what is behind the types of package core: what guards need of it and users do not. Methods
// named Backend of these types lead here.
//
// A [Limiter] finds the [Policies] of a plan and key, a [Decision] has them as cells, asks the store about them, and is
// their answer.
//
//	backend.go   what a store and a limiter are, and where policies come from
//	policies.go  policies as they are asked
//	decide.go    a question: from charges to cells, and to the store
//	answer.go    what the answered cells say, in durations, for all of them or for some
//	charges.go   what is done with a charge afterwards; reports; as many units as fit; forgetting a key
//	wait.go      callers that wait for units, in lines
//	slots.go     claims of slots
//	observe.go   what observers are told of all these
//	names.go     two limiters of one name; shown.go what a page of headgated shows
package backend

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/lease"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/plans"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/store"
)

// Stores are what is behind a core.Store: the store of rates, and that of slots. All but the last two are set before
// the first use, and do not change.
type Stores struct {
	Rates    store.Rates
	Memory   *memory.States // Rates, if they are in this process: then cells stay on the stack
	Leases   *lease.Leases  // Rates, if units are leased: as far as they are, cells stay on the stack
	Slots    slots.Registry
	Observer *store.Observer // or nil

	closed atomic.Bool // CloseSlots was called
	names  names
}

// CloseSlots lets nobody acquire slots any more, and states that this process holds none.
func (s *Stores) CloseSlots(ctx context.Context) error {
	s.closed.Store(true)
	return s.Slots.Close(ctx, "")
}

// A Book has the document as of now. It is an atomic.Pointer, but in tests.
type Book interface{ Load() *Snapshot }

// A Snapshot is a document at one moment, which all charges of a decision look into. It does not change, so many
// goroutines look into it at once. Limits, and
// slots, keep their index as long as the book lives; a table is nil if the document does not have the name. A plan that
// the document lacks is the default.
type Snapshot struct {
	Limits []*plans.Table[*Policies]
	Slots  []*plans.Table[int64]
}

// A Limiter is one plan of a limiter. Its policies are constants, or those of a document, or a function has returned
// wrong ones. It does not change, and is safe for concurrent use.
type Limiter struct {
	Shared

	fixed       *Policies // nil: they are those of the book
	fault       error     // why there are none
	book        Book
	limitInBook int
	plan        string
}

// Shared is what the plans of a limiter share. The lines are among it: callers that wait for a key stand in one line,
// whatever their plans.
type Shared struct {
	name   string
	stores *Stores
	lines  *lines
}

// NewShared returns what the plans of a limiter share.
func NewShared(stores *Stores, name string) Shared { return Shared{name, stores, new(lines)} }

// Constant returns a limiter whose policies do not change.
func (s Shared) Constant(policies *Policies) *Limiter { return &Limiter{Shared: s, fixed: policies} }

// Faulty returns a limiter whose calls fail.
func (s Shared) Faulty(err error) *Limiter { return &Limiter{Shared: s, fault: err} }

// Documented returns the limiter of a plan of a document.
func (s Shared) Documented(book Book, limit int, plan string) *Limiter {
	return &Limiter{Shared: s, book: book, limitInBook: limit, plan: plan}
}

// Name returns the name of the limiter.
func (s Shared) Name() string { return s.name }

// Stores returns the store.
func (s Shared) Stores() *Stores { return s.stores }

// Book returns the document that has the policies, or nil.
func (l *Limiter) Book() Book { return l.book }

// snapshot returns the document as of now, or nil.
func (l *Limiter) snapshot() *Snapshot {
	if l.book == nil {
		return nil
	}
	return l.book.Load()
}

// policies returns what applies to a key, as of a snapshot of the limiter's book. It is the one place that knows where
// policies come from.
func (l *Limiter) policies(snapshot *Snapshot, key string) (*Policies, error) {
	// The most frequent first: of a program's constants, no book is asked.
	if l.fixed != nil {
		return l.fixed, nil
	}
	if l.fault != nil {
		return nil, l.fault
	}
	return snapshot.Limits[l.limitInBook].Find(l.plan, key), nil
}

// Of returns what applies to a key as of now.
func (l *Limiter) Of(key string) (*Policies, error) { return l.policies(l.snapshot(), key) }

// All returns the policies of all plans that the limiter knows by its document, and those of the key.
func (l *Limiter) All(key string) []*Policies {
	if l.book != nil {
		table := l.book.Load().Limits[l.limitInBook]
		return append(table.All(), table.Find(l.plan, key))
	}
	if l.fixed != nil {
		return []*Policies{l.fixed}
	}
	return nil
}

// Policies describes the policies for keys that a document does not name: what all responses share. Of limiters of
// documents it is for now.
func (l *Limiter) Policies() []PolicyAnswer {
	policies, err := l.Of("")
	if err != nil {
		return nil
	}
	all := make([]PolicyAnswer, len(policies.List))
	for i := range all {
		all[i] = described(&policies.List[i])
	}
	return all
}

// SameStore reports whether two limiters can be charged together.
func (l *Limiter) SameStore(other *Limiter) bool { return l.stores == other.stores }

// Observed marks the context of questions whose refusals affect nobody, for observers.
func Observed(ctx context.Context) context.Context { return ctxmark.ObserveOnly(ctx) }

// ErrNoContext is the error of a call without a context.
var ErrNoContext = Invalid("the context is nil")

// Invalid returns an error about a call that wraps core.ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{store.ErrInvalid}, args...)...)
}
