package backend_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/plans"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// strict is a store that refuses questions that [store.Rates] does not permit.
type strict struct {
	store.Rates

	t *testing.T
}

func (s strict) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	s.t.Helper()
	if len(cells) == 0 || slices.ContainsFunc(cells, func(c step.Cell) bool { return c.Policy.Constant() }) {
		s.t.Fatalf("the store was asked about %d cells, some of constant policies", len(cells))
	}
	return s.Rates.Ask(ctx, mode, cells)
}

func limiter(t *testing.T, s *backend.Stores, name string, numbers ...step.Numbers) *backend.Limiter {
	t.Helper()
	var all []backend.Policy
	for _, m := range numbers {
		all = append(all, backend.Policy{Name: m.String(), Numbers: m})
	}
	ps := backend.Prepare(name, all, func(_ int, err error) { t.Fatal(err) })
	if err := s.Rates.Prepare(ps.List); err != nil {
		t.Fatal(err)
	}
	return backend.NewShared(s, name).Constant(ps)
}

func TestConstantPoliciesAmongOthers(t *testing.T) {
	unlimited, blocked := step.Numbers{Kind: step.Constant, Limit: step.MaxInt}, step.Numbers{Kind: step.Constant}
	window := step.Numbers{Kind: step.FixedWindow, Limit: 5, Period: time.Hour.Microseconds(), FromFirst: true}
	near := memory.New(0)
	for name, s := range map[string]*backend.Stores{
		"memory": {Rates: near, Memory: near},
		"far":    {Rates: strict{memory.New(0), t}},
	} {
		t.Run(name, func(t *testing.T) {
			free, more, none, own := limiter(t, s, "free", unlimited), limiter(t, s, "more", unlimited), limiter(t, s, "none", blocked), limiter(t, s, "own", window)
			ask := func(mode step.Mode, charges ...backend.Charge) *backend.Decision {
				t.Helper()
				var d backend.Decision
				if err := backend.Decide(t.Context(), mode, charges, &d); err != nil {
					t.Fatal(err)
				}
				return &d
			}
			if d := ask(step.Allow, backend.Charge{free, "a", 9}, backend.Charge{more, "a", 9}); !d.Allowed {
				t.Error("two limiters that are unlimited refuse")
			}
			if d := ask(step.Allow, backend.Charge{free, "a", 9}, backend.Charge{own, "a", 5}); !d.Allowed || !d.Known() || d.At(0).Remaining != step.MaxInt || d.At(1).Remaining != 0 {
				t.Errorf("unlimited and five of five: %v, %+v, %+v", d.Allowed, d.At(0), d.At(1))
			}
			if d := ask(step.Settle, backend.Charge{free, "b", 9}, backend.Charge{own, "b", 7}); d.Uncovered(0) != 0 || d.Uncovered(1) != 2 {
				t.Errorf("a report of 9 and 7: %d and %d had no room", d.Uncovered(0), d.Uncovered(1))
			}
			if d := ask(step.Settle, backend.Charge{none, "c", 9}, backend.Charge{own, "c", 4}); d.Allowed || d.Uncovered(0) != 9 || d.Uncovered(1) != 0 {
				t.Errorf("a report of 9 to blocked and 4: %v, %d and %d had no room", d.Allowed, d.Uncovered(0), d.Uncovered(1))
			}
		})
	}
}

func TestEventsHaveTheUnitsOfTheCharge(t *testing.T) {
	var units []int64
	near := memory.New(0)
	s := &backend.Stores{Rates: near, Memory: near, Observer: &store.Observer{
		Decided: func(_ context.Context, e store.DecisionEvent) { units = append(units, e.Units) },
		Settled: func(_ context.Context, e store.SettleEvent) { units = append(units, e.Charged, e.Actual) },
	}}
	interval := step.Numbers{Kind: step.MinInterval, Limit: 1, Period: 1} // which counts calls
	window := step.Numbers{Kind: step.FixedWindow, Limit: 9, Period: time.Hour.Microseconds()}
	for _, numbers := range [][]step.Numbers{{interval, window}, {window, interval}} {
		l, d := limiter(t, s, "l", numbers...), backend.Decision{}
		units = nil
		if err := l.Decide(t.Context(), step.Allow, numbers[0].String(), 5, &d); err != nil || !d.Allowed {
			t.Fatal(d.Allowed, err)
		}
		if _, err := d.Settle(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		d = backend.Decision{}
		if _, err := l.Report(t.Context(), numbers[0].String(), 4, &d); err != nil {
			t.Fatal(err)
		}
		if want := []int64{5, 5, 3, 0, 4}; !slices.Equal(units, want) {
			t.Errorf("%v: events of 5 units, settled to 3, and a report of 4 have the units %v, not %v", numbers, units, want)
		}
	}
}

func TestErrorsNameTheUnits(t *testing.T) {
	near := memory.New(0)
	l := limiter(t, &backend.Stores{Rates: near, Memory: near}, "l", step.Numbers{Kind: step.SlidingLog, Limit: 1, Period: 1e6})
	var d backend.Decision
	_, reported := l.Report(t.Context(), "a", -1, &d)
	_, most := l.AtMost(t.Context(), "a", -2, &d)
	for want, err := range map[string]error{
		": 0 units: there must be at least 1":  l.Wait(t.Context(), "a", 0, &d),
		": -1 units: there must be at least 1": reported,
		": -2 units: there must be at least 1": most,
		": -3 units: there must be at least 0": l.Decide(t.Context(), step.Allow, "a", -3, &d),
	} {
		if !errors.Is(err, store.ErrInvalid) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// failing is a store that fails when units are charged.
type failing struct{ store.Rates }

func (f failing) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	if mode == step.Allow {
		return false, store.ErrUnavailable
	}
	return f.Rates.Ask(ctx, mode, cells)
}

// As many units as fit are none, if the charge fails.
func TestAtMostOfAStoreThatFails(t *testing.T) {
	s := &backend.Stores{Rates: failing{memory.New(0)}}
	l := limiter(t, s, "api", step.Numbers{Kind: step.FixedWindow, Limit: 5, Period: time.Hour.Microseconds()})
	for _, n := range []int64{1, 3} {
		var d backend.Decision
		if units, err := l.AtMost(t.Context(), "k", n, &d); units != 0 || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%d of %d units, %v", units, n, err)
		}
	}
}

func fixedWindow(limit int64) step.Numbers {
	return step.Numbers{Kind: step.FixedWindow, Limit: limit, Period: time.Hour.Microseconds()}
}

// A flipping book has another version at each look, with another name of its policy.
type flipping struct {
	t      *testing.T
	stores *backend.Stores
	looks  int64
}

func (f *flipping) Load() *backend.Snapshot {
	f.looks++
	policies, err := limiter(f.t, f.stores, "api", fixedWindow(f.looks)).Of("")
	if err != nil {
		f.t.Fatal(err)
	}
	return &backend.Snapshot{Limits: []*plans.Table[*backend.Policies]{plans.NewTable(policies, nil)}}
}

// Charges of one document see one version of it, whatever is loaded meanwhile.
func TestOneViewOfADocument(t *testing.T) {
	stores := &backend.Stores{Rates: memory.New(0)}
	book := &flipping{t: t, stores: stores}
	other := &flipping{t: t, stores: stores, looks: 100}
	of := func(book backend.Book, name string) *backend.Limiter {
		return backend.NewShared(stores, name).Documented(book, 0, "")
	}
	charges := []backend.Charge{
		{Limiter: of(book, "a"), Key: "anna"}, {Limiter: of(other, "b"), Key: "anna"}, {Limiter: of(book, "c"), Key: "anna"},
	}
	var d backend.Decision
	if err := backend.Decide(t.Context(), step.Peek, charges, &d); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{1, 101, 1} {
		if got := d.At(i).Limit; got != want {
			t.Errorf("charge %d has the policies of version %d, not %d", i, got, want)
		}
	}
}
