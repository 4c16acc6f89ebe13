// Package asking asks stores in tests.
package asking

import (
	"context"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Decide asks about charges, and writes the answer to r.
func Decide(ctx context.Context, s store.Store, mode store.Mode, r *store.Result, cs ...store.Charge) (err error) {
	*r, err = Ask(ctx, s, &store.Question{Mode: mode, Charges: cs})
	return err
}

// Ask asks a question whose Result holds what an earlier one may have left.
func Ask(ctx context.Context, s store.Store, q *store.Question) (store.Result, error) {
	Use(&q.Result)
	err := s.Ask(ctx, q)
	return q.Result, err
}

// Settle settles charges, and sets their Uncovered.
func Settle(ctx context.Context, s store.Store, cs ...store.Charge) error {
	return s.Ask(ctx, &store.Question{Mode: store.Settle, Charges: cs})
}

// Reset forgets the key of a limiter.
func Reset(ctx context.Context, s store.Store, l *store.Limiter, key string) error {
	return s.Ask(ctx, &store.Question{Mode: store.Reset, Charges: []store.Charge{{Limiter: l, Key: key}}})
}

// Settled returns an allowed charge as it is settled.
func Settled(c store.Charge, r *store.Result, actual int64) store.Charge {
	c.At, c.Source, c.Actual = r.At, r.Source, actual
	return c
}

// Use leaves a result as an earlier decision may have.
func Use(r *store.Result) {
	r.Start(1, store.SourceOpen)
	r.Extra, r.Allowed = 2, true
	for range 3 {
		r.Add(true, step.Reading{Remaining: 4, NextAfter: 5, ResetAfter: 6, RetryAfter: 7})
	}
}
