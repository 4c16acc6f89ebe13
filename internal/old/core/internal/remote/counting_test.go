package remote

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
)

// counted counts the calls to the database.
func (d *database) counted() *atomic.Int64 {
	calls := new(atomic.Int64)
	d.be(func(context.Context) (bool, error) {
		calls.Add(1)
		return true, nil
	})
	return calls
}

// What was used beyond the limit is refused without a call, for as long as it lasts: by Allow, by Peek
// and by a check. A report is never answered from memory.
func TestDebtCostsNoCall(t *testing.T) {
	for name, ask := range map[string]func(l *core.Limiter) (core.Decision, error){
		"Allow": func(l *core.Limiter) (core.Decision, error) { return l.Allow(t.Context(), "k") },
		"Peek":  func(l *core.Limiter) (core.Decision, error) { return l.Peek(t.Context(), "k") },
		"check": func(l *core.Limiter) (core.Decision, error) { return l.AllowN(t.Context(), "k", 0) },
		"PeekAll": func(l *core.Limiter) (core.Decision, error) {
			return core.PeekAll(t.Context(), core.Charge{Limiter: l, Key: "k", N: 1}, core.Charge{Limiter: l, Key: "j", N: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				d := newDatabase(1, clock)
				calls := d.counted()
				l := newLimiter(t, d.stack(setup{remember: 10 * time.Second}), "tokens", core.TokenBucket(core.PerSecond(10), 20).Debt(100))
				if _, uncovered, err := l.Report(t.Context(), "k", 100); err != nil || uncovered != 80 {
					t.Fatal(uncovered, err)
				}
				debt := time.Now().Add(8 * time.Second)
				if name != "check" {
					debt = debt.Add(100 * time.Millisecond)
				}
				before := calls.Load()
				for time.Now().Before(debt) {
					if got, err := ask(l); err != nil || got.Allowed || got.RetryAfter != time.Until(debt) {
						t.Fatalf("%v before the end: %v, %v", time.Until(debt), got, err)
					}
					time.Sleep(time.Millisecond)
				}
				if n := calls.Load() - before; n != 1 {
					t.Errorf("%d calls, want 1", n)
				}
				if got, err := ask(l); err != nil || !got.Allowed {
					t.Errorf("after the debt: %v, %v", got, err)
				}
				before = calls.Load()
				for range 5 {
					if got, _, err := l.Report(t.Context(), "k", 1000); err != nil || got.Source != core.SourceStore {
						t.Errorf("%v, %v", got, err)
					}
				}
				if n := calls.Load() - before; n != 5 {
					t.Errorf("%d calls for 5 reports", n)
				}
			})
		})
	}
}

// Charges of several servers: what counts anyway is counted once, whoever refuses and in whatever order
// they are asked, and each server is asked once.
func TestAnywayInTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDatabase(2, clock)
		calls := d.counted()
		s := d.stack(setup{})
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(10)))
		wide := newLimiter(t, s, "wide", core.FixedWindow(core.PerDay(1000)))
		left := func(l *core.Limiter, key string) int64 {
			t.Helper()
			peek, err := l.Peek(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return peek.Remaining
		}
		ask := func(cs ...core.Charge) core.Decision {
			t.Helper()
			got, err := core.AllowAll(t.Context(), cs...)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		a, b := core.Charge{Limiter: l, Key: "a", N: 1}, core.Charge{Limiter: l, Key: "b", N: 1}
		atA, atB := core.Charge{Limiter: wide, Key: "a", N: 7, Anyway: true}, core.Charge{Limiter: wide, Key: "b", N: 7, Anyway: true}
		for turn, cs := range [][]core.Charge{{a, atA, atB, b}, {atB, atA, b}, {atA, atB}, {a, atB, atA}} {
			before := calls.Load()
			if got := ask(cs...); !got.Allowed || got.Len() != len(cs) {
				t.Errorf("turn %d: %v", turn, got)
			}
			if n := calls.Load() - before; n != 2 {
				t.Errorf("turn %d: %d calls to 2 servers", turn, n)
			}
		}
		if x, y := left(wide, "a"), left(wide, "b"); x != 1000-4*7 || y != x {
			t.Errorf("%d and %d left after 4 reports of 7 each", x, y)
		}

		allow(t, l, "b", left(l, "b")) // which refuses from now on
		had := left(l, "a")
		for _, cs := range [][]core.Charge{{a, atA, atB, b}, {b, atB, atA, a}, {atA, b, a, atB}} {
			got := ask(cs...)
			if got.Allowed || got.Limiter != "api" {
				t.Errorf("refused by a server: %v", got)
			}
			for i, c := range cs {
				if x := got.Answer(i); x.Allowed != (c.Key != "b" || c.Anyway) || x.Limiter != c.Limiter.Name() {
					t.Errorf("answer %d about %q, anyway %t: %+v", i, c.Key, c.Anyway, x)
				}
			}
		}
		if x, y := left(wide, "a"), left(wide, "b"); x != 1000-7*7 || y != x || left(l, "a") != had {
			t.Errorf("%d and %d left after 7 reports of 7 each; %d of %d", x, y, left(l, "a"), had)
		}
		time.Sleep(time.Minute)
	})
}

// While the servers are away, reports are counted here, not at all, or are an error.
func TestReportAway(t *testing.T) {
	for name, want := range map[string]struct {
		failure   Failure
		source    core.Source
		err       error
		uncovered int64
		refuses   bool
	}{
		"Local":  {Local, core.SourceLocal, nil, 25, true}, // a half of the limit
		"Open":   {Open, core.SourceOpen, nil, 0, false},
		"Closed": {Closed, core.SourceNone, core.ErrUnavailable, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				d := newDatabase(1, clock)
				l := newLimiter(t, d.stack(setup{failure: want.failure, servers: 2}), "api", core.SlidingWindow(core.PerDay(10)))
				d.be(lost)
				got, uncovered, err := l.Report(t.Context(), "k", 30)
				if !errors.Is(err, want.err) || got.Source != want.source || uncovered != want.uncovered {
					t.Errorf("%v from the %v, %d uncovered, %v", got, got.Source, uncovered, err)
				}
				again, err := l.Allow(t.Context(), "k")
				if !errors.Is(err, want.err) || err == nil && again.Allowed == want.refuses {
					t.Errorf("then %v, %v", again, err)
				}
				d.be(nil)
				time.Sleep(2 * MaxProbePause)
				if back := allow(t, l, "k", 1); back.Source != core.SourceStore || back.Remaining != 9 {
					t.Errorf("back: %v", back)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}
