package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headgate/headgate/core/store"
)

// A Failure says how decisions are made when the store below fails.
type Failure int

// The failure policies.
const (
	Local  Failure = iota // the same policies decide in this process
	Open                  // everything is admitted, except what is never
	Closed                // nothing is decided
)

// Failover is a store that decides without the store below when that fails. A caller who
// has given up gets the error of its context.
type Failover struct {
	next    store.Store
	failure Failure
	local   store.Store
	servers int64
}

// NewFailover returns a Failover. The local store decides under [Local], with limits that
// are divided by the number of servers.
func NewFailover(next store.Store, f Failure, local store.Store, servers int) *Failover {
	return &Failover{next, f, local, int64(max(servers, 1))}
}

// A failsafe is a limiter as a Failover has prepared it.
type failsafe struct {
	store.Limiter

	local store.Limiter // nil unless it is used
}

func failsafeOf(l store.Limiter) *failsafe {
	return l.(*failsafe) //nolint:forcetypeassert // it is what Prepare has returned
}

// Prepare implements [store.Store].
func (f *Failover) Prepare(spec store.Spec) (store.Limiter, error) {
	next, err := f.next.Prepare(spec)
	if err != nil {
		return nil, err
	}
	l := &failsafe{Limiter: next}
	if f.failure != Local {
		return l, nil
	}
	share := spec
	if f.servers > 1 {
		share, err = spec.Share(f.servers)
	}
	if err == nil {
		l.local, err = f.local.Prepare(share)
	}
	if err != nil {
		return nil, fmt.Errorf("for FailLocal: %w", err)
	}
	return l, nil
}

// Observer implements [store.Store].
func (f *Failover) Observer() *store.Observer { return f.next.Observer() }

// below returns the charge for the store below.
func (*Failover) below(c store.Charge) store.Charge {
	c.Limiter = failsafeOf(c.Limiter).Limiter
	return c
}

// beside returns the charge for the local store: no more than it can ever grant, as c was
// checked against limits that were not divided.
func (*Failover) beside(c store.Charge) store.Charge {
	c.Limiter = failsafeOf(c.Limiter).local
	c.N = min(c.N, c.Limiter.Spec().Most())
	return c
}

// Decide implements [store.Store].
func (f *Failover) Decide(ctx context.Context, c store.Charge, peek bool, r *store.Result) error {
	l := failsafeOf(c.Limiter)
	c.Limiter = l.Limiter // in place: to copy a Charge takes longer than all else here
	if err := f.next.Decide(ctx, c, peek, r); err != nil {
		c.Limiter = l
		return f.decide(ctx, c, peek, r, err)
	}
	return nil
}

// decide decides without the store below.
func (f *Failover) decide(ctx context.Context, c store.Charge, peek bool, r *store.Result, cause error) error {
	if err := f.failed(ctx, cause); err != nil {
		return err
	}
	if f.failure == Open {
		admitted(r, c)
		return nil
	}
	err := f.local.Decide(ctx, f.beside(c), peek, r)
	r.Source = store.SourceLocal
	return err
}

// DecideAll implements [store.Store].
func (f *Failover) DecideAll(ctx context.Context, cs []store.Charge, r *store.Result) error {
	if err := noExtra(cs); err != nil {
		return err
	}
	all := make([]store.Charge, len(cs))
	for i, c := range cs {
		all[i] = f.below(c)
	}
	err := f.next.DecideAll(ctx, all, r)
	if err == nil {
		return nil
	}
	if err := f.failed(ctx, err); err != nil {
		return err
	}
	if f.failure == Open {
		admitted(r, cs...)
		return nil
	}
	for i, c := range cs {
		all[i] = f.beside(c)
	}
	err = f.local.DecideAll(ctx, all, r)
	r.Source = store.SourceLocal
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

// admitted makes r admit, and grant no Extra, with the readings of unused policies.
func admitted(r *store.Result, cs ...store.Charge) {
	r.Start(0, store.SourceOpen)
	r.Allowed = true
	unused(r, cs...)
}

// Settle implements [store.Store]. What was charged in the local store is settled there,
// and what was admitted without any store nowhere.
func (f *Failover) Settle(ctx context.Context, ss []store.Settlement) error {
	if err := noExtraSettled(ss); err != nil {
		return err
	}
	var faults []error
	var below []store.Settlement
	var from []int // of the settlements below
	for i, t := range ss {
		switch t.Source {
		case store.SourceStore:
			t.Charge = f.below(t.Charge)
			below, from = append(below, t), append(from, i)
		case store.SourceLocal:
			charged := t.N
			t.Charge = f.beside(t.Charge)
			t.Actual = min(t.Actual, t.N) + max(t.Actual-charged, 0)
			own := []store.Settlement{t}
			faults = append(faults, f.local.Settle(ctx, own))
			ss[i].Uncovered = own[0].Uncovered
		}
	}
	if len(below) > 0 {
		faults = append(faults, unavailable(f.next.Settle(ctx, below)))
	}
	for i, t := range below {
		ss[from[i]].Uncovered = t.Uncovered
	}
	return errors.Join(slices.DeleteFunc(faults, func(err error) bool { return err == nil })...)
}

// Reset implements [store.Store]. After an error the store below may still have the state.
func (f *Failover) Reset(ctx context.Context, l store.Limiter, key string) error {
	if local := failsafeOf(l).local; local != nil {
		if err := f.local.Reset(ctx, local, key); err != nil {
			return err
		}
	}
	err := f.next.Reset(ctx, failsafeOf(l).Limiter, key)
	if own := ctx.Err(); own != nil {
		return own
	}
	return unavailable(err)
}
