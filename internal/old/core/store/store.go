package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/old/core/step"
)

// A Store keeps the state of limiters and answers questions about it.
//
// A store has its own clock. It is safe for concurrent use, and each answer is exact at
// the moment of the decision, however many calls there are at once. Its type must be
// comparable, as pointers are: limiters are charged together only if their stores are
// equal. It never gets a nil context.
//
// A store may discard a state once it has expired under the parameters it was stored
// with, even if other parameters would keep it longer.
//
// Errors must not contain keys.
type Store interface {
	// Prepare is called once for each limiter that is made, if it has no other fault, before
	// anything is asked about it. Its error, or those that it joins, are reported as faults of
	// the limiter's configuration. It is the same for the same Spec. Policies that are taken
	// together are taken too if there are fewer, or with smaller limits.
	Prepare(l *Limiter) error

	// Ask answers a question: see [Question]. It does not retain the question, or a part of it,
	// after it returns. After an error the state is unknown, unless the error says more.
	Ask(ctx context.Context, q *Question) error

	// Observer returns the observer of decisions, which is always the same, or nil. The store need
	// not report them: package core does.
	Observer() *Observer
}

// A Kinded store says which policies its Prepare accepts, for programs that check policies
// elsewhere. Prepare also checks the policies of many limiters at once.
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

// A Spec is the specification of a limiter, as far as stores need it. It must not be modified.
type Spec struct {
	Name     string
	Policies []Policy // 1 to 8, except for a [Kinded] in Prepare
}

// A Policy is one policy of a limiter. Its name, the limiter's, and the algorithm identify
// the state of a key. The parameters are not part of the identity: a key may have a state
// for each set of parameters, a [step.Variant].
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
	ErrUnavailable = fault.ErrUnavailable

	// ErrExtra is the error about a Question with an Extra that cannot be granted one.
	ErrExtra = errors.New("headgate: an Extra is for one charge, to be allowed or peeked at")

	// ErrClosed may be returned by an AcquireSlots that is under way while CloseSlots is called. A
	// later one is of Slots that were made again, and is granted.
	ErrClosed = fault.ErrClosed
)
