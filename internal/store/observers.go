package store

import (
	"context"
	"slices"
)

// Observers returns an observer that tells each of several, in order, or nil if there is none. Nil
// ones are left out. The result asks only for the data that one of them asks for. They must not be
// changed afterwards. If one panics, those after it are not told.
func Observers(observers ...*Observer) *Observer {
	os := slices.DeleteFunc(slices.Clone(observers), func(o *Observer) bool { return o == nil })
	switch len(os) {
	case 0:
		return nil
	case 1:
		return os[0]
	}
	return &Observer{
		Timed:         slices.ContainsFunc(os, func(o *Observer) bool { return o.Timed }),
		Decided:       eachWith(os, func(o *Observer) func(context.Context, DecisionEvent) { return o.Decided }),
		Refused:       eachKey(os, func(o *Observer) func(context.Context, DecisionEvent, string) { return o.Refused }),
		Settled:       eachWith(os, func(o *Observer) func(context.Context, SettleEvent) { return o.Settled }),
		SlotAcquired:  eachWith(os, func(o *Observer) func(context.Context, SlotEvent) { return o.SlotAcquired }),
		SlotRefused:   eachKey(os, func(o *Observer) func(context.Context, SlotEvent, string) { return o.SlotRefused }),
		SlotReleased:  each(os, func(o *Observer) func(slots string) { return o.SlotReleased }),
		SlotsLost:     each(os, func(o *Observer) func(held int64) { return o.SlotsLost }),
		SlotsRestated: each(os, func(o *Observer) func(keys int) { return o.SlotsRestated }),
		Called:        each(os, func(o *Observer) func(CallEvent) { return o.Called }),
		Changed:       each(os, func(o *Observer) func(reason error) { return o.Changed }),
	}
}

// each returns a function that calls those that the observers have, or nil if none has one.
func each[T any](os []*Observer, of func(*Observer) func(T)) func(T) {
	var fs []func(T)
	for _, o := range os {
		if f := of(o); f != nil {
			fs = append(fs, f)
		}
	}
	if len(fs) < 2 {
		return only(fs)
	}
	return func(x T) {
		for _, f := range fs {
			f(x)
		}
	}
}

// eachWith is each for functions with a context.
func eachWith[T any](os []*Observer, of func(*Observer) func(context.Context, T)) func(context.Context, T) {
	var fs []func(context.Context, T)
	for _, o := range os {
		if f := of(o); f != nil {
			fs = append(fs, f)
		}
	}
	if len(fs) < 2 {
		return only(fs)
	}
	return func(ctx context.Context, x T) {
		for _, f := range fs {
			f(ctx, x)
		}
	}
}

// eachKey is each for functions with a context and a key.
func eachKey[T any](os []*Observer, of func(*Observer) func(context.Context, T, string)) func(context.Context, T, string) {
	var fs []func(context.Context, T, string)
	for _, o := range os {
		if f := of(o); f != nil {
			fs = append(fs, f)
		}
	}
	if len(fs) < 2 {
		return only(fs)
	}
	return func(ctx context.Context, x T, key string) {
		for _, f := range fs {
			f(ctx, x, key)
		}
	}
}

// only returns the first of at most one function, so that it is called directly.
func only[F any](fs []F) (f F) {
	if len(fs) > 0 {
		f = fs[0]
	}
	return f
}
