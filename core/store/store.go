package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/internal/hidden"
)

// A Store keeps the state of limiters and applies charges to it.
//
// A store has its own clock. It is safe for concurrent use, and each result is exact at
// the moment of the decision, however many calls there are at once. Its type must be
// comparable, as pointers are: limiters are charged together only if their stores are
// equal. It never gets a nil context.
//
// A store may discard a state once it has expired under the parameters it was stored
// with, even if other parameters would keep it longer.
//
// Errors must not contain keys.
type Store interface {
	// Prepare is called once for each limiter that is made, if it has no other fault. Its
	// error, or those that it joins, are reported as faults of the limiter's configuration. It
	// is the same for the same Spec. Policies that are taken together are taken too if there are
	// fewer, or with smaller limits.
	Prepare(Spec) (Limiter, error)

	// Decide makes the decision about one charge: if every policy of its limiter admits
	// it, every one is charged; otherwise none is, except that a policy with CountDenied
	// counts the refusal. A peek reads, and changes and creates nothing.
	//
	// If the charge has an Extra, as many of these units are charged with it as every
	// policy admits: k is the largest number from 0 to Extra such that each policy admits
	// N + k, all are charged N + k, as one charge, and [Result].Extra is k. A peek tells
	// the k of that moment. Extra has no part in a refusal: whether there is one, what it
	// counts, and its readings are those of a charge without. Whoever decides without
	// knowing the state may grant none.
	//
	// The decision is written to r, whatever it held before, and r is not used after
	// Decide returns. An error means that no decision was made, and r may hold anything.
	Decide(ctx context.Context, c Charge, peek bool, r *Result) error

	// DecideAll makes one decision about several charges, all or nothing. There is at
	// least one, and no two are of the same limiter's name and key. It must not retain cs
	// after it returns. If one has an Extra, the error is [ErrExtra], and nothing is
	// charged: which of several should get more is not said.
	DecideAll(ctx context.Context, cs []Charge, r *Result) error

	// Settle corrects admitted charges to their actual cost, with [step.Settle] for each
	// policy, and sets Uncovered in each. It must not retain ss after it returns. If one
	// has an Extra, the error is [ErrExtra], and nothing is corrected.
	Settle(ctx context.Context, ss []Settlement) error

	// Reset deletes the limiter's state for the key.
	Reset(ctx context.Context, l Limiter, key string) error

	// Observer returns who is to be told of decisions, which is always the same, or nil. The
	// store need not report them: package core does.
	Observer() *Observer
}

// A Kinded store is one that says what its Prepare takes, for whoever checks policies elsewhere.
// Prepare is also asked about those of many limiters at once.
type Kinded interface {
	Store

	// Kind returns a text that is equal for stores that take the same, such as "redis" or
	// "memory 67108864".
	Kind() string
}

// KindOf returns the kind of a store, or nothing if it does not say.
func KindOf(s Store) string {
	if k, ok := s.(Kinded); ok {
		return k.Kind()
	}
	return ""
}

// A Quick is a store in this process that makes most decisions in less time than it takes to
// pass a [Result] to it. Layers need not know: package core calls Take only if Self is the
// store itself, not if that is embedded in a layer, whose Decide would be passed over.
type Quick interface {
	Store

	// Take is Decide of a charge of n units without an Extra, if the limiter has one policy,
	// which is all that it decides about. If ok is false, nothing has happened, and Decide
	// is to be called.
	Take(l Limiter, key string, n int64) (at int64, x step.Reading, admitted, ok bool)

	// Self returns the store.
	Self() Store
}

// A Spec is what a store needs to know of a limiter. It must not be modified.
type Spec struct {
	Name     string
	Policies []Policy // 1 to 8, except for a [Kinded] in Prepare
}

// A Policy is one policy of a limiter. Its name, the limiter's, and the algorithm identify
// the state of a key. The parameters are not part of the identity: a state that was stored
// under others is converted with Step.Adopt.
type Policy struct {
	Name string
	Step step.Step
}

// Most returns the largest charge that all policies can ever grant.
func (s *Spec) Most() int64 {
	n := int64(step.MaxInt)
	for _, p := range s.Policies {
		n = min(n, p.Step.Max())
	}
	return n
}

// Share returns the spec for one of n servers that do not share a store: see
// [step.Numbers.Share].
func (s *Spec) Share(n int64) (Spec, error) {
	share := Spec{Name: s.Name, Policies: slices.Clone(s.Policies)}
	for i := range share.Policies {
		p := &share.Policies[i]
		m, err := p.Step.Numbers().Share(n)
		if err == nil {
			p.Step, err = step.New(m)
		}
		if err != nil {
			return Spec{}, fmt.Errorf("policy %q: %w", p.Name, err)
		}
	}
	return share, nil
}

// A Limiter is a limiter as a store has prepared it. It is safe for concurrent use.
type Limiter interface {
	// Spec returns what the limiter was prepared from.
	Spec() *Spec
}

// A Charge is a call to charge a key of a limiter with N units.
type Charge struct {
	Limiter Limiter // of the store that gets the charge
	Key     string  `json:"-"`
	N       int64   // at least 1, and at most Spec.Most
	Extra   int64   // units to charge beyond N as far as they fit, at least 0: see Store.Decide
}

// Format implements [fmt.Formatter]: it prints the charge without its key.
func (c Charge) Format(s fmt.State, verb rune) {
	type plain Charge
	c.Key = hidden.Mark
	hidden.Print(s, verb, plain(c))
}

// A Settlement corrects a charge that was admitted at the instant At, from the store's
// [Result], to Actual units. Actual 0 gives everything back. N is all that was charged, with
// the Extra of the Result; the Extra of the Charge is 0.
type Settlement struct {
	Charge
	At     int64
	Source Source // of the decision
	Actual int64

	// Uncovered is set by the store: the largest number of units above N for which any
	// one policy had no room.
	Uncovered int64
}

// Format implements [fmt.Formatter]: it prints the settlement without its key.
func (x Settlement) Format(s fmt.State, verb rune) {
	type plain struct {
		Charge    Charge
		At        int64
		Source    Source
		Actual    int64
		Uncovered int64
	}
	hidden.Print(s, verb, plain{x.Charge, x.At, x.Source, x.Actual, x.Uncovered})
}

// A Source is what made a decision.
type Source uint8

// The sources. Package core says what they mean to users.
const (
	SourceNone Source = iota
	SourcePolicy
	SourceStore
	SourceCache
	SourceLocal
	SourceOpen
	SourceLease
)

// String returns a short name for logs and metrics.
func (s Source) String() string {
	names := [...]string{"none", "policy", "store", "cache", "local", "open", "lease"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

var (
	// ErrUnavailable is wrapped by the error of a store that cannot be reached and is
	// configured not to decide without it.
	ErrUnavailable = errors.New("headgate: the store is not available")

	// ErrExtra is the error about a Charge with an Extra in a call that cannot grant one.
	ErrExtra = errors.New("headgate: only Decide takes a charge with an Extra")

	// ErrClosed is returned by AcquireSlots after CloseSlots.
	ErrClosed = errors.New("headgate: the slots are closed")
)
