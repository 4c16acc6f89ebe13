package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A fake store answers as it is told, and fails the test if it was told nothing.
type fake struct {
	t      *testing.T
	answer func(cs []store.Charge, peek bool) (store.Result, error)
	settle func(ss []store.Settlement) error
	reset  func(key string) error

	observer *core.Observer
}

var errStore = errors.New("the store is away")

// A spec is a limiter as the fake store has prepared it.
type spec store.Spec

func (s *spec) Spec() *store.Spec { return (*store.Spec)(s) }

func (f *fake) Prepare(s store.Spec) (store.Limiter, error) { return (*spec)(&s), nil }

func (f *fake) Decide(_ context.Context, c store.Charge, peek bool, r *store.Result) error {
	return f.ask([]store.Charge{c}, peek, r)
}

func (f *fake) DecideAll(_ context.Context, cs []store.Charge, r *store.Result) error {
	return f.ask(cs, false, r)
}

func (f *fake) ask(cs []store.Charge, peek bool, r *store.Result) (err error) {
	f.t.Helper()
	if f.answer == nil {
		f.t.Fatalf("the store was asked for %d units", cs[0].N)
	}
	*r, err = f.answer(cs, peek)
	return err
}

func (f *fake) Settle(_ context.Context, ss []store.Settlement) error {
	f.t.Helper()
	if f.settle == nil {
		f.t.Fatal("the store was asked to settle")
	}
	return f.settle(ss)
}

func (f *fake) Reset(_ context.Context, _ store.Limiter, key string) error {
	f.t.Helper()
	if f.reset == nil {
		f.t.Fatal("the store was asked to reset")
	}
	return f.reset(key)
}

func (f *fake) Observer() *core.Observer { return f.observer }

// A say is what a policy says in a fake answer.
type say struct {
	admitted bool
	step.Reading
}

// says makes an answer of one say for each policy asked.
func says(allowed bool, readings ...say) func([]store.Charge, bool) (store.Result, error) {
	return func([]store.Charge, bool) (store.Result, error) {
		r := store.Result{At: 1, Allowed: allowed, Source: core.SourceStore}
		for _, s := range readings {
			r.Add(s.admitted, s.Reading)
		}
		return r, nil
	}
}

func newLimiter(t testing.TB, s core.Store, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(s, name, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// perAge is n in a time so long that no test sees its end.
func perAge(n int64) core.Rate { return core.Rate{Events: n, Per: 400 * 24 * time.Hour} }

func newStore() core.Store { return memstore.New(memstore.Config{}) }

// allow asks for n units and must get an answer.
func allow(t testing.TB, l *core.Limiter, key string, n int64) core.Decision {
	t.Helper()
	d, err := l.AllowN(t.Context(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// left is what a peek says remains.
func left(t testing.TB, l *core.Limiter, key string) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}
