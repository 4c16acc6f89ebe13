package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A fake store answers as it is told, and fails the test if it was told nothing.
type fake struct {
	t      *testing.T
	answer func(cs []store.Charge, peek bool) (store.Result, error)
	settle func(ss []store.Charge) error
	reset  func(key string) error

	observer *core.Observer
}

var errStore = errors.New("the store is away")

func (f *fake) Prepare(*store.Limiter) error { return nil }

func (f *fake) Ask(_ context.Context, q *store.Question) (err error) {
	f.t.Helper()
	switch q.Mode {
	case store.Settle:
		if f.settle == nil {
			f.t.Fatal("the store was asked to settle")
		}
		return f.settle(q.Charges)
	case store.Reset:
		if f.reset == nil {
			f.t.Fatal("the store was asked to reset")
		}
		return f.reset(q.Charges[0].Key)
	}
	if f.answer == nil {
		f.t.Fatalf("the store was asked for %d units", q.Charges[0].N)
	}
	q.Result, err = f.answer(q.Charges, q.Mode == store.Peek)
	return err
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
