// Package ontrial marks contexts of decisions that refuse nobody, so that observers can tell.
package ontrial

import "context"

type mark struct{}

// Mark returns a context whose refusals are on trial.
func Mark(ctx context.Context) context.Context { return context.WithValue(ctx, mark{}, true) }

// Is reports whether refusals are on trial. The context may be nil.
func Is(ctx context.Context) bool { return ctx != nil && ctx.Value(mark{}) != nil }
