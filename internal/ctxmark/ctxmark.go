// Package ctxmark marks contexts of decisions: those that refuse nobody, and those that share one timeout of their
// store.
package ctxmark

import (
	"context"
	"time"
)

type (
	observeOnly struct{}
	decideBy    struct{}
)

// ObserveOnly returns a context whose refusals affect nobody, so that observers can tell.
func ObserveOnly(ctx context.Context) context.Context {
	return context.WithValue(ctx, observeOnly{}, true)
}

// IsObserveOnly reports whether refusals affect nobody. The context may be nil.
func IsObserveOnly(ctx context.Context) bool { return ctx != nil && ctx.Value(observeOnly{}) != nil }

// DecideBy returns a context whose decisions a store over servers makes without them at that time; the zero time is
// never. Unlike the deadline of the context, it ends no decision. It only makes the timeout of the store shorter.
func DecideBy(ctx context.Context, end time.Time) context.Context {
	return context.WithValue(ctx, decideBy{}, end)
}

// DecisionEnd returns the time of [DecideBy], if there is one.
func DecisionEnd(ctx context.Context) (end time.Time, ok bool) {
	end, ok = ctx.Value(decideBy{}).(time.Time)
	return end, ok && !end.IsZero()
}
