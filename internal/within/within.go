// Package within marks contexts of decisions that belong together, and share one timeout of their store.
package within

import (
	"context"
	"time"
)

type mark struct{}

// By returns a context whose decisions a store over servers makes without them at that time; the zero time is never.
// Unlike the deadline of the context, it ends no decision. It only makes the timeout of the store shorter.
func By(ctx context.Context, t time.Time) context.Context { return context.WithValue(ctx, mark{}, t) }

// When returns the time of [By], if there is one.
func When(ctx context.Context) (t time.Time, ok bool) {
	t, ok = ctx.Value(mark{}).(time.Time)
	return t, ok && !t.IsZero()
}
