package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/step"
)

// A fake store answers as it is told, and fails the test if it was told nothing.
type fake struct {
	t      *testing.T
	answer func(cs []core.Charge, peek bool) (core.Result, error)
	settle func(ss []core.Settlement) error
	reset  func(key string) error
}

var errStore = errors.New("the store is away")

func (f *fake) Decide(_ context.Context, c core.Charge, peek bool) (core.Result, error) {
	return f.ask([]core.Charge{c}, peek)
}

func (f *fake) DecideAll(_ context.Context, cs []core.Charge) (core.Result, error) {
	return f.ask(cs, false)
}

func (f *fake) ask(cs []core.Charge, peek bool) (core.Result, error) {
	f.t.Helper()
	if f.answer == nil {
		f.t.Fatalf("the store was asked for %d units", cs[0].N)
	}
	return f.answer(cs, peek)
}

func (f *fake) Settle(_ context.Context, ss []core.Settlement) error {
	f.t.Helper()
	if f.settle == nil {
		f.t.Fatal("the store was asked to settle")
	}
	return f.settle(ss)
}

func (f *fake) Reset(_ context.Context, _ *core.Limiter, key string) error {
	f.t.Helper()
	if f.reset == nil {
		f.t.Fatal("the store was asked to reset")
	}
	return f.reset(key)
}

// A say is what a policy says in a fake answer.
type say struct {
	admitted bool
	step.Reading
}

// says makes an answer of one say for each policy asked.
func says(allowed bool, readings ...say) func([]core.Charge, bool) (core.Result, error) {
	return func([]core.Charge, bool) (core.Result, error) {
		r := core.Result{At: 1, Allowed: allowed, Source: core.SourceStore}
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
