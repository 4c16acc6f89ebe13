package core

import (
	"context"
	"hash/maphash"

	"github.com/headgate/headgate/core/step"
)

// A Store keeps the state of limiters and applies charges to it. Package memstore
// has one for a single process. Users of limits only hand it to [New]; this and
// the types below it are for authors of stores, who have package step do the
// arithmetic and package storetest check the result.
//
// A store tells the time itself. It is safe for concurrent use. What it returns
// is exact at the moment of the decision, however many ask at once. Its type must
// be comparable, as pointers are: limiters are asked together only if their stores
// are equal. A store that cannot keep every policy, or that wants to note something
// in the cells, has a method Prepare(*Limiter) error, which New calls.
//
// A store may drop a state as soon as it is fresh under the numbers that it is kept
// with, although other numbers would count it for longer.
type Store interface {
	// Decide answers one charge: if every policy of its limiter admits it, every
	// one is charged; otherwise none is, except that refusals are counted where
	// the policy says so. A peek reads, and changes and creates nothing.
	//
	// An error means that no decision was made. It must not contain the key.
	Decide(ctx context.Context, c Charge, peek bool) (Result, error)

	// DecideAll answers several charges together, all or nothing. They are of
	// different limiters or keys, and at least one.
	DecideAll(ctx context.Context, cs []Charge) (Result, error)

	// Settle corrects admitted charges to what they turned out to cost, with
	// [step.Settle] for each policy, and sets Uncovered in each.
	Settle(ctx context.Context, ss []Settlement) error

	// Reset forgets what the limiter remembers of the key.
	Reset(ctx context.Context, l *Limiter, key string) error
}

// A Charge is what is asked of one limiter: may the key be charged with N units?
type Charge struct {
	Limiter *Limiter
	Key     string
	N       int64 // at least 1
}

// A Settlement corrects a charge that was admitted at the instant At, as the store
// told it in [Result], to Actual units. Actual 0 gives everything back.
type Settlement struct {
	Charge
	At     int64
	Source Source // of the decision
	Actual int64

	// Uncovered is set by the store: the units above N that found no room in one
	// of the policies, the most of any.
	Uncovered int64
}

// A Cell is one policy of a limiter as stores see it: for each key, one state.
type Cell struct {
	// Name is the policy's. With the limiter's name and the step's algorithm it
	// identifies the state; the numbers are not part of the identity, and a state
	// kept under others is handed to Step.Adopt.
	Name string

	Step step.Step

	// CountDenied: refused charges are counted, with Step.Refuse.
	CountDenied bool

	// Hash is a hash of that identity, seeded anew in each process.
	Hash uint64

	// Note is the store's own, set in Prepare.
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

// A Result is a store's answer to a question: one reading for each cell of each
// charge, in order.
type Result struct {
	At      int64 // the store's instant, in microseconds since 1970 UTC
	Allowed bool
	Source  Source

	count    uint8
	admitted uint64 // a bit for each reading
	first    [2]step.Reading
	more     *[]step.Reading // the others; a pointer, as it is smaller
}

// maxReadings is what the bits of Result.admitted can tell apart.
const maxReadings = 64

// Add appends the reading of the next cell, and whether that cell by itself
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

// Age turns the spans of the readings into those of so many microseconds later.
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

// Len is the number of readings.
func (r *Result) Len() int { return int(r.count) }

// Reading returns what the i-th Add was given.
func (r *Result) Reading(i int) (admitted bool, x step.Reading) {
	return r.admitted&(1<<i) != 0, *r.reading(i)
}

func (r *Result) reading(i int) *step.Reading {
	if i < len(r.first) {
		return &r.first[i]
	}
	return &(*r.more)[i-len(r.first)]
}
