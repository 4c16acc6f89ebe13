package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
)

// compared is a store that calls another one and the reference, and fails the test if
// their results differ.
type compared struct {
	store.Store

	suite     *suite
	reference *reference.Store
	calls     int
}

// Ask asks both.
func (c *compared) Ask(ctx context.Context, q *store.Question) error {
	want := &store.Question{Mode: q.Mode, Charges: slices.Clone(q.Charges), Extra: q.Extra}
	asking.Use(&q.Result)
	if err := c.Store.Ask(ctx, q); err != nil {
		return err
	}
	if err := c.reference.Ask(ctx, want); err != nil {
		return err
	}
	switch c.calls++; q.Mode {
	case store.Settle:
		for i, got := range q.Charges {
			if want := &want.Charges[i]; got.Uncovered != want.Uncovered {
				c.suite.Fatalf("%d units settled to %d: %d uncovered, want %d", got.N, got.Actual, got.Uncovered, want.Uncovered)
			}
		}
	case store.Reset:
	default:
		if a, b := describe(&q.Result), describe(&want.Result); a != b {
			first := &q.Charges[0]
			c.suite.Fatalf("call %d, to %v %d units and %d extra of %+v:\n  the store returned: %s\n  it should return:   %s",
				c.calls, q.Mode, first.N, q.Extra, numbers(first.Limiter), a, b)
		}
		for i, got := range q.Charges {
			if want := &want.Charges[i]; got.Anyway && got.Uncovered != want.Uncovered {
				c.suite.Fatalf("%d units counted of %+v: %d uncovered, want %d", got.N, numbers(got.Limiter), got.Uncovered, want.Uncovered)
			}
		}
	}
	return nil
}

// describe returns all that a result tells.
func describe(r *store.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %d, allowed %t, %d extra, from the %v", r.At, r.Allowed, r.Extra, r.Source)
	for i := range r.Len() {
		fmt.Fprintf(&b, "\n    %t %+v", r.Admitted(i), *r.Reading(i))
	}
	return b.String()
}

// numbers are the parameters of a limiter's policies.
func numbers(l *store.Limiter) (all []step.Numbers) {
	for _, p := range l.Spec().Policies {
		all = append(all, p.Step.Numbers())
	}
	return all
}
