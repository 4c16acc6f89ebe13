package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/core/internal/reference"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// compared is a store that calls another one and the reference, and fails the test if
// their results differ.
type compared struct {
	store.Store

	suite     *suite
	reference *reference.Store
	calls     int
}

func (c *compared) check(cs []store.Charge, got, want *store.Result) {
	c.calls++
	describe := func(r *store.Result) string {
		var b strings.Builder
		fmt.Fprintf(&b, "at %d, allowed %t, %d extra, from the %v", r.At, r.Allowed, r.Extra, r.Source)
		for i := range r.Len() {
			fmt.Fprintf(&b, "\n    %t %+v", r.Admitted(i), *r.Reading(i))
		}
		return b.String()
	}
	if a, b := describe(got), describe(want); a != b {
		c.suite.Fatalf("call %d, of %d units and %d extra to %+v:\n  the store returned: %s\n  it should return:   %s",
			c.calls, cs[0].N, cs[0].Extra, numbers(cs[0].Limiter), a, b)
	}
}

// numbers are the parameters of a limiter's policies.
func numbers(l store.Limiter) (all []step.Numbers) {
	for _, p := range l.Spec().Policies {
		all = append(all, p.Step.Numbers())
	}
	return all
}

func (c *compared) Decide(ctx context.Context, charge store.Charge, peek bool, r *store.Result) error {
	used(r)
	err := c.Store.Decide(ctx, charge, peek, r)
	if err == nil {
		var want store.Result
		_ = c.reference.Decide(ctx, charge, peek, &want)
		c.check([]store.Charge{charge}, r, &want)
	}
	return err
}

// used leaves a result as an earlier decision may have.
func used(r *store.Result) {
	r.Start(1, store.SourceOpen)
	r.Extra, r.Allowed = 2, true
	for range 3 {
		r.Add(true, step.Reading{Remaining: 4, NextAfter: 5, ResetAfter: 6, RetryAfter: 7})
	}
}

func (c *compared) DecideAll(ctx context.Context, cs []store.Charge, r *store.Result) error {
	used(r)
	err := c.Store.DecideAll(ctx, cs, r)
	if err == nil {
		var want store.Result
		_ = c.reference.DecideAll(ctx, cs, &want)
		c.check(cs, r, &want)
	}
	return err
}

func (c *compared) Settle(ctx context.Context, ss []store.Settlement) error {
	want := slices.Clone(ss)
	if err := c.Store.Settle(ctx, ss); err != nil {
		return err
	}
	_ = c.reference.Settle(ctx, want)
	for i, s := range ss {
		if s.Uncovered != want[i].Uncovered {
			c.suite.Fatalf("%d units settled to %d: %d uncovered, want %d", s.N, s.Actual, s.Uncovered, want[i].Uncovered)
		}
	}
	return nil
}

func (c *compared) Reset(ctx context.Context, l store.Limiter, key string) error {
	_ = c.reference.Reset(ctx, l, key)
	return c.Store.Reset(ctx, l, key)
}
