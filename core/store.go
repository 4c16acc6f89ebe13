package core

import (
	"context"
	"hash/maphash"

	"github.com/headgate/headgate/core/step"
)

// A Store keeps the state of limiters and applies charges to it. Package memstore
// has one for a single process. Users of limits only pass it to [New]; this and the
// types below are for authors of stores, who use package step for the arithmetic and
// package storetest to check the result.
//
// A store has its own clock. It is safe for concurrent use, and each result is exact at
// the moment of the decision, however many calls there are at once. Its type must be
// comparable, as pointers are: limiters are charged together only if their stores are
// equal. A store may also be a [Preparer].
//
// A store may discard a state once it has expired under the parameters it was stored
// with, even if other parameters would keep it longer.
type Store interface {
	// Decide makes the decision about one charge: if every policy of its limiter admits
	// it, every one is charged; otherwise none is, except that a policy with CountDenied
	// counts the refusal. A peek reads, and changes and creates nothing.
	//
	// An error means that no decision was made. It must not contain the key.
	Decide(ctx context.Context, c Charge, peek bool) (Result, error)

	// DecideAll makes one decision about several charges, all or nothing. There is at
	// least one, and no two are of the same limiter's name and key. It must not retain cs
	// after it returns.
	DecideAll(ctx context.Context, cs []Charge) (Result, error)

	// Settle corrects admitted charges to their actual cost, with [step.Settle] for each
	// policy, and sets Uncovered in each. It must not retain ss after it returns.
	Settle(ctx context.Context, ss []Settlement) error

	// Reset deletes the limiter's state for the key.
	Reset(ctx context.Context, l *Limiter, key string) error
}

// A Preparer is a [Store] that checks limiters before they are used, or keeps notes in
// their cells.
type Preparer interface {
	// Prepare is called by [New] and [Limiter.With], once for each limiter that has no
	// other fault. It may modify the cells of [Limiter.Cells]. New reports its error, if
	// any, in a [ConfigError].
	Prepare(l *Limiter) error
}

// A Charge is a call to charge a key of a limiter with N units.
type Charge struct {
	Limiter *Limiter
	Key     string
	N       int64 // at least 1
}

// A Settlement corrects a charge that was admitted at the instant At, from the store's
// [Result], to Actual units. Actual 0 gives everything back.
type Settlement struct {
	Charge
	At     int64
	Source Source // of the decision
	Actual int64

	// Uncovered is set by the store: the largest number of units above N for which any
	// one policy had no room.
	Uncovered int64
}

// A Cell is one policy of a limiter as stores see it: one state for each key.
type Cell struct {
	// Name is the policy's. Together with the limiter's name and the step's algorithm it
	// identifies the state. The parameters are not part of the identity; a state that was
	// stored under others is converted with Step.Adopt.
	Name string

	Step step.Step

	// CountDenied means that refused charges are counted, with Step.Refuse.
	CountDenied bool

	// Hash is a hash of that identity, with a random seed in each process.
	Hash uint64

	// Note belongs to the store, which sets it in Prepare.
	Note any
}

var cellSeed = maphash.MakeSeed()

func newCell(limiter, policy string, s step.Step) Cell {
	// Names are printable, so the zero bytes keep them apart.
	identity := limiter + "\x00" + policy + "\x00" + s.Numbers().Algorithm.String()
	return Cell{
		Name:        policy,
		Step:        s,
		CountDenied: s.Numbers().CountDenied,
		Hash:        maphash.String(cellSeed, identity),
	}
}

// A Result is a store's decision, with one reading for each cell of each charge, in
// order.
type Result struct {
	At      int64 // the store's instant, in microseconds since 1970 UTC
	Allowed bool
	Source  Source

	count    uint8
	admitted uint64 // a bit for each reading
	first    [2]step.Reading
	more     *[]step.Reading // the others; a pointer, as it is smaller
}

// maxReadings is the number of bits of Result.admitted.
const maxReadings = 64

// Add appends the reading of the next cell, and whether that cell alone would have
// admitted the charge.
func (r *Result) Add(admitted bool, x step.Reading) {
	if admitted {
		r.admitted |= 1 << r.count
	}
	if int(r.count) < len(r.first) {
		r.first[r.count] = x
	} else {
		r.addMore(x)
	}
	r.count++
}

func (r *Result) addMore(x step.Reading) {
	if r.more == nil {
		r.more = new([]step.Reading)
	}
	*r.more = append(*r.more, x)
}

// Age moves the result later by some microseconds: it shortens the spans of the readings,
// but not below 1 microsecond.
func (r *Result) Age(by int64) {
	r.At += by
	for i := range r.Len() {
		x := r.reading(i)
		for _, span := range []*int64{&x.NextAfter, &x.ResetAfter, &x.RetryAfter} {
			if *span > 0 && *span != step.Never {
				*span = max(*span-by, 1)
			}
		}
	}
}

// Len returns the number of readings.
func (r *Result) Len() int { return int(r.count) }

// Reading returns the arguments of the i-th Add.
func (r *Result) Reading(i int) (admitted bool, x step.Reading) {
	return r.admitted&(1<<i) != 0, *r.reading(i)
}

func (r *Result) reading(i int) *step.Reading {
	if i < len(r.first) {
		return &r.first[i]
	}
	return &(*r.more)[i-len(r.first)]
}
