package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headgate/headgate/internal/old/core/store"
)

// A Failure says how decisions are made when the store below fails.
type Failure int

// The failure policies.
const (
	Local  Failure = iota // the same policies decide in this process
	Open                  // everything is admitted that can ever be admitted
	Closed                // nothing is decided
)

// Failover is a store that decides without the store below when that fails. A caller who
// has given up gets the error of its context.
type Failover struct {
	next    store.Store
	place   store.Place // of the local limiters
	failure Failure
	local   store.Store
	servers int64
}

// NewFailover returns a Failover. The local store decides under [Local], with limits that
// are divided by the number of servers.
func NewFailover(next store.Store, f Failure, local store.Store, servers int) *Failover {
	return &Failover{next: next, failure: f, local: local, servers: int64(max(servers, 1))}
}

// Prepare implements [store.Store]. Under [Local] it keeps the limiter of the local store.
func (f *Failover) Prepare(l *store.Limiter) error {
	if err := f.next.Prepare(l); err != nil || f.failure != Local {
		return err
	}
	share, err := *l.Spec(), error(nil)
	if f.servers > 1 {
		share, err = share.Share(f.servers)
	}
	local := store.NewLimiter(share)
	if err == nil {
		err = f.local.Prepare(local)
	}
	if err != nil {
		return fmt.Errorf("for FailLocal: %w", err)
	}
	l.Keep(&f.place, local)
	return nil
}

// Observer implements [store.Store].
func (f *Failover) Observer() *store.Observer { return f.next.Observer() }

// beside returns the charge for the local store: no more than it can ever grant, as c was
// checked against limits that were not divided.
func (f *Failover) beside(c store.Charge) store.Charge {
	c.Limiter = c.Limiter.Kept(&f.place).(*store.Limiter)
	if !c.Anyway {
		c.N = min(c.N, c.Limiter.Spec().Most())
	}
	return c
}

// Ask implements [store.Store].
func (f *Failover) Ask(ctx context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	switch q.Mode {
	case store.Settle:
		return f.settle(ctx, q.Charges)
	case store.Reset:
		return f.reset(ctx, q)
	}
	if err := f.next.Ask(ctx, q); err != nil {
		return f.decide(ctx, q, err)
	}
	return nil
}

// decide decides without the store below.
func (f *Failover) decide(ctx context.Context, q *store.Question, cause error) error {
	if err := f.failed(ctx, cause); err != nil {
		return err
	}
	if f.failure == Open { // everything, but no Extra
		q.Result.Start(0, store.SourceOpen)
		q.Result.Allowed = q.Mode != store.Refuse
		unused(&q.Result, q.Charges...)
		for i := range q.Charges {
			q.Charges[i].Uncovered = 0
		}
		return nil
	}
	own := &store.Question{Mode: q.Mode, Charges: slices.Clone(q.Charges), Extra: q.Extra}
	for i := range own.Charges {
		own.Charges[i] = f.beside(own.Charges[i])
	}
	err := f.local.Ask(ctx, own)
	q.Result = own.Result
	q.Result.Source = store.SourceLocal
	for i := range own.Charges {
		q.Charges[i].Uncovered = own.Charges[i].Uncovered
	}
	return err
}

// failed returns the error for the caller, or nil if a decision is to be made without the
// store below.
func (f *Failover) failed(ctx context.Context, cause error) error {
	if err := ended(ctx); err != nil {
		return err
	}
	if f.failure == Closed {
		return unavailable(cause)
	}
	return nil
}

// unavailable returns the error that says why the store below cannot be used.
func unavailable(cause error) error {
	if cause == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
}

// settle settles in the local store what was charged there, and nowhere what was admitted without
// any store.
func (f *Failover) settle(ctx context.Context, cs []store.Charge) error {
	var faults []error
	var below []store.Charge
	var from []int // of the charges below
	for i, c := range cs {
		switch c.Source {
		case store.SourceStore:
			below, from = append(below, c), append(from, i)
		case store.SourceLocal:
			charged := c.N
			c = f.beside(c)
			c.Actual = min(c.Actual, c.N) + max(c.Actual-charged, 0)
			own := []store.Charge{c}
			faults = append(faults, f.local.Ask(ctx, &store.Question{Mode: store.Settle, Charges: own}))
			cs[i].Uncovered = own[0].Uncovered
		}
	}
	if len(below) > 0 {
		faults = append(faults, unavailable(f.next.Ask(ctx, &store.Question{Mode: store.Settle, Charges: below})))
	}
	for i := range below {
		cs[from[i]].Uncovered = below[i].Uncovered
	}
	return errors.Join(slices.DeleteFunc(faults, func(err error) bool { return err == nil })...)
}

// reset forgets keys. After an error the store below may still have their state.
func (f *Failover) reset(ctx context.Context, q *store.Question) error {
	if f.failure == Local {
		own := &store.Question{Mode: store.Reset}
		for _, c := range q.Charges {
			own.Charges = append(own.Charges, f.beside(c))
		}
		if err := f.local.Ask(ctx, own); err != nil {
			return err
		}
	}
	err := f.next.Ask(ctx, q)
	if own := ctx.Err(); own != nil {
		return own
	}
	return unavailable(err)
}
