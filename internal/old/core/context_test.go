package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// TestNilContext: no store sees a nil context, and nothing is changed.
func TestNilContext(t *testing.T) {
	s := newFakeStore(t) // which fails the test if it is asked
	l := newLimiter(t, s, "api", core.FixedWindow(perAge(10)))
	other := newLimiter(t, s, "other", core.FixedWindow(perAge(10)))
	free := newLimiter(t, s, "free", core.Unlimited())
	s.answer = says(true, say{admitted: true})
	charged := allow(t, l, "key", 2)
	s.answer = nil

	var none context.Context
	for name, call := range map[string]func() error{
		"Allow":      func() error { _, err := l.Allow(none, "key"); return err },
		"AllowN":     func() error { _, err := l.AllowN(none, "key", 2); return err },
		"Never":      func() error { _, err := l.AllowN(none, "key", 11); return err },
		"Unlimited":  func() error { _, err := free.Allow(none, "key"); return err },
		"Peek":       func() error { _, err := l.Peek(none, "key"); return err },
		"AtMost":     func() error { _, _, err := l.AllowAtMost(none, "key", 2); return err },
		"Wait":       func() error { _, err := l.Wait(none, "key"); return err },
		"WaitN":      func() error { _, err := free.WaitN(none, "key", 2); return err },
		"Reset":      func() error { return l.Reset(none, "key") },
		"Reset free": func() error { return free.Reset(none, "key") },
		"AllowAll, one": func() error {
			_, err := core.AllowAll(none, core.Charge{Limiter: l, Key: "key", N: 1})
			return err
		},
		"AllowAll, two": func() error {
			_, err := core.AllowAll(none, core.Charge{Limiter: l, Key: "key", N: 1}, core.Charge{Limiter: other, Key: "key", N: 1})
			return err
		},
		"Refund": func() error { return charged.Refund(none) },
		"Settle": func() error { _, err := charged.Settle(none, 1); return err },
	} {
		if err := call(); !errors.Is(err, core.ErrQuestion) || !strings.Contains(err.Error(), "the context is nil") {
			t.Errorf("%s: %v", name, err)
		}
	}

	s.settle = func([]store.Charge) error { return nil }
	if err := charged.Refund(t.Context()); err != nil {
		t.Errorf("the charge cannot be given back any more: %v", err)
	}
}
