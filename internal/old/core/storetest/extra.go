package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// charge charges "key" with n units, and extra ones as far as they fit.
func (s *suite) charge(l *core.Limiter, n, extra int64, peek bool) store.Result {
	s.Helper()
	q := &store.Question{Charges: []store.Charge{{Limiter: l.Prepared(), Key: "key", N: n}}, Extra: extra}
	if peek {
		q.Mode = store.Peek
	}
	r, err := asking.Ask(s.Context(), s.store, q)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// extraFits: as many extra units are charged as every policy admits, and a peek tells it.
func (s *suite) extraFits() {
	type row struct {
		name           string
		policies       []core.Policy
		used           int64 // before
		n, extra, want int64 // of the extra units
	}
	long := per(10, 400*24*time.Hour)
	pace, endless := core.MinInterval(time.Hour), core.FixedWindow(per(step.MaxInt, 400*24*time.Hour))
	var rows []row
	for name, p := range three() { // 3 fit
		one := []core.Policy{p}
		rows = append(rows,
			row{name, one, 0, 1, 1, 1}, row{name, one, 0, 1, 2, 2}, row{name, one, 0, 1, 3, 2}, row{name, one, 0, 3, 1, 0},
			row{name, one, 1, 1, 9, 1}, row{name, one, 2, 1, 9, 0}, row{name, one, 0, 2, step.MaxInt, 1}, row{name, one, 1, 1, math.MaxInt64, 1})
	}
	two := []core.Policy{core.SlidingLog(long).Named("log"), core.TokenBucket(core.PerHour(1), 5).Named("bucket")}
	last := append(slices.Clone(two), core.FixedWindow(per(20, 400*24*time.Hour)).Named("window"))
	paced := []core.Policy{pace.Named("pace"), core.FixedWindow(long).Named("window")}
	rows = append(rows,
		row{"two", two, 0, 1, 9, 4}, row{"two", two, 2, 2, 9, 1}, row{"two", two, 0, 1, 3, 3}, row{"two", two, 4, 1, 1, 0},
		row{"three", last, 1, 1, 9, 3}, row{"three, the first is least", []core.Policy{last[1], last[0], last[2]}, 1, 1, 9, 3},
		row{"long log", []core.Policy{core.SlidingLog(per(5000, 400*24*time.Hour))}, 100, 400, 9000, 4500},
		row{"sub-windows", []core.Policy{core.SlidingWindow(per(1_000_000, 400*24*time.Hour)).NeverOver()}, 5, 5, step.MaxInt, 999_990},

		// One call may be of any number of units.
		row{"pace", []core.Policy{pace}, 0, 1, 9, 9}, row{"paced", paced, 0, 1, 99, 9}, row{"paced", paced, 0, 1, 5, 5},

		// Near the largest number.
		row{"pace", []core.Policy{pace}, 0, 1, step.MaxInt, step.MaxInt - 1}, row{"pace", []core.Policy{pace}, 0, step.MaxInt, step.MaxInt, 0},
		row{"pace", []core.Policy{pace}, 0, 2, math.MaxInt64, step.MaxInt - 2},
		row{"endless", []core.Policy{endless}, 1000, 1, math.MaxInt64, step.MaxInt - 1001}, row{"endless", []core.Policy{endless}, 0, step.MaxInt, 1, 0},
	)
	for i, c := range rows {
		l := s.limiter(fmt.Sprint(i), c.policies...)
		if c.used > 0 {
			s.allow(l, "key", c.used)
		}
		for _, peek := range []bool{true, true, false} {
			r := s.charge(l, c.n, c.extra, peek)
			if !r.Allowed || r.Extra != c.want {
				s.Fatalf("%s: %d used, %d and %d extra, a peek %t: allowed %t with %d extra, want %d", c.name, c.used, c.n, c.extra, peek, r.Allowed, r.Extra, c.want)
			}
			for j, p := range l.Policies() {
				if p.Limit() == 1 {
					continue // MinInterval
				}
				want := p.Limit() - c.used
				if !peek {
					want -= c.n + c.want
				}
				if got := r.Reading(j).Remaining; got != want {
					s.Errorf("%s: %d used, %d and %d extra, a peek %t: %d left in %v, want %d", c.name, c.used, c.n, c.extra, peek, got, p, want)
				}
			}
		}
	}
}

// extraRefused: with an Extra or without, a refusal is the same, and so is what it counts.
func (s *suite) extraRefused() {
	for name, p := range three() {
		s.toBeginning(p.Window())
		with, without := s.limiter(name, p), s.limiter(name+"'", p)
		for _, l := range []*core.Limiter{with, without} {
			s.allow(l, "key", 2)
		}
		for i := range 4 {
			s.Advance(time.Duration(i) * 10 * time.Millisecond)
			peek := i%2 == 0
			a, b := s.charge(with, 2, 5, peek), s.charge(without, 2, 0, peek)
			if a.Allowed || a.Extra != 0 || a.Admitted(0) || b.Allowed || *a.Reading(0) != *b.Reading(0) {
				s.Fatalf("%s: refused with an Extra: %+v; without: %+v", name, a, b)
			}
		}
		if a, b := s.left(with, "key"), s.left(without, "key"); a != b {
			s.Errorf("%s: %d left after refusals with an Extra, %d after such without", name, a, b)
		}
	}
}

// extraSettled: what was charged is one charge, of all the units.
func (s *suite) extraSettled() {
	policies := three()
	policies["MinInterval"] = core.MinInterval(time.Hour)
	for name, p := range policies {
		l := s.limiter(name, p)
		spare := p.Limit() - 1 // units that are extra
		for _, actual := range []int64{0, 1, 2, 3} {
			r := s.charge(l, 1, spare, false)
			if !r.Allowed || r.Extra != spare {
				s.Fatalf("%s: %+v", name, r)
			}
			c := store.Charge{Limiter: l.Prepared(), Key: "key", N: 1 + r.Extra}
			ss := []store.Charge{asking.Settled(c, &r, min(actual, c.N))}
			if err := asking.Settle(s.Context(), s.store, ss...); err != nil || ss[0].Uncovered != 0 {
				s.Fatalf("%s: %d uncovered, %v", name, ss[0].Uncovered, err)
			}
			if got := s.left(l, "key"); got != p.Limit()-min(actual, c.N) {
				s.Errorf("%s: %d left after settling %d to %d", name, got, c.N, actual)
			}
			if err := l.Reset(context.WithoutCancel(s.Context()), "key"); err != nil {
				s.Fatal(err)
			}
		}
	}
}

// extraOfOne: no other call takes an Extra, or changes anything if there is one.
func (s *suite) extraOfOne() {
	a, b := s.limiter("a", core.FixedWindow(core.PerDay(9))), s.limiter("b", core.FixedWindow(core.PerDay(9)))
	one := store.Charge{Limiter: a.Prepared(), Key: "key", N: 1}
	cs := []store.Charge{one, {Limiter: b.Prepared(), Key: "key", N: 1}}
	r := s.charge(b, 1, 3, false)
	for i := range cs {
		cs[i] = asking.Settled(cs[i], &r, 0)
	}
	for _, q := range []store.Question{
		{Mode: store.Allow, Charges: cs}, {Mode: store.Peek, Charges: cs}, {Mode: store.Refuse, Charges: cs[1:]},
		{Mode: store.Settle, Charges: cs[1:]}, {Mode: store.Settle, Charges: cs}, {Mode: store.Reset, Charges: cs[1:]},
	} {
		q.Extra = 1
		if _, err := asking.Ask(s.Context(), s.store, &q); !errors.Is(err, store.ErrExtra) {
			s.Errorf("to %v %d charges with an Extra: %v", q.Mode, len(q.Charges), err)
		}
	}
	if x, y := s.left(a, "key"), s.left(b, "key"); x != 9 || y != 5 {
		s.Errorf("%d and %d are left, want 9 and 5", x, y)
	}
}

// exactWithExtra: callers who all take more than they need use up the limit, and no more.
func (s *suite) exactWithExtra() {
	const limit = 500
	long := per(limit, 400*24*time.Hour)
	bucket := core.TokenBucket(core.PerHour(1), limit)
	for name, policies := range map[string][]core.Policy{
		"TokenBucket":             {bucket},
		"FixedWindow":             {core.FixedWindow(long)},
		"FixedWindow,CountDenied": {core.FixedWindow(long).CountDenied()},
		"SlidingWindow":           {core.SlidingWindow(long)},
		"SlidingWindow,NeverOver": {core.SlidingWindow(long).NeverOver()},
		"SlidingLog":              {core.SlidingLog(long)},
		"two":                     {core.FixedWindow(per(2*limit, 400*24*time.Hour)).Named("window"), bucket.Named("bucket")},
	} {
		l := s.limiter(name, policies...)
		var charged atomic.Int64
		s.hammer(100, 8, func(i int) (core.Decision, error) {
			n, extra := int64(1), int64(i%7)
			r, err := asking.Ask(s.Context(), s.store, &store.Question{Charges: []store.Charge{{Limiter: l.Prepared(), Key: "key", N: n}}, Extra: extra})
			if r.Allowed {
				charged.Add(n + r.Extra)
			}
			if r.Extra < 0 || r.Extra > extra || !r.Allowed && r.Extra != 0 {
				s.Errorf("%s: allowed %t with %d extra of %d", name, r.Allowed, r.Extra, extra)
			}
			return core.Decision{}, err
		})
		if got := charged.Load(); got != limit {
			s.Errorf("%s: %d units were charged of %d", name, got, limit)
		}
	}
}
