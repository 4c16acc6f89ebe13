package remote

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// inCache runs a test of what is remembered in a bubble, where the time is its own. The
// store below is never asked.
func inCache(t *testing.T, test func(t *testing.T, m *Refusals)) {
	bubble.Test(t, func(t *testing.T) {
		test(t, NewRefusals(NewSender(newDatabase(1, clock), Config{}), time.Second, time.Second))
	})
}

func charges(cs ...store.Charge) []store.Charge { return cs }

// keep caches a refusal that was just given.
func (c *Refusals) keep(cs []store.Charge, r *store.Result) {
	l := c.get(cs)
	c.put(&l, &store.Question{Charges: cs, Result: *r})
}

func (c *Refusals) knows(cs []store.Charge) bool {
	l := c.get(cs)
	return l.cached != nil && !l.busy
}

// wrote is an operation that changes the keys.
func (c *Refusals) wrote(cs []store.Charge) {
	c.beginAll(cs)
	c.endAll(cs, true)
}

func (c *Refusals) beginAll(cs []store.Charge) {
	for i := range cs {
		c.begin(&cs[i])
	}
}

func (c *Refusals) endAll(cs []store.Charge, wrote bool) {
	for i := range cs {
		c.end(&cs[i], wrote)
	}
}

func TestCachedUntilItEnds(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		for _, c := range []struct{ retry, until time.Duration }{
			{4 * time.Microsecond, 4 * time.Microsecond},
			{300 * time.Millisecond, 300 * time.Millisecond},
			{time.Second, time.Second},
			{time.Hour, time.Second},
		} {
			l := newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(1)))
			ask := charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
			m.keep(ask, aRefusal(1, c.retry))
			var at time.Duration
			for _, later := range []time.Duration{0, c.until / 4, c.until - time.Microsecond} {
				time.Sleep(later - at)
				at = later
				seen := m.get(ask)
				if seen.cached == nil {
					t.Fatalf("refused for %v: forgotten after %v", c.retry, later)
				}
				var r store.Result
				seen.answer(&r)
				x := r.Reading(0)
				if got := time.Duration(x.RetryAfter) * time.Microsecond; r.Allowed || r.Source != core.SourceCache || got != c.retry-later {
					t.Errorf("refused for %v: after %v: %+v", c.retry, later, r)
				}
			}
			time.Sleep(time.Microsecond)
			if m.knows(ask) {
				t.Errorf("refused for %v: known after %v", c.retry, c.until)
			}
		}
	})
}

// An answer that took its time ends when it would have ended if it had been sent at
// once, and until then asks nobody to come back too early.
func TestCachedFromAfar(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		l := newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(1)))
		ask := charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
		seen := m.get(ask)
		time.Sleep(30 * time.Millisecond)
		m.put(&seen, &store.Question{Charges: ask, Result: *aRefusal(1, 100*time.Millisecond)})
		time.Sleep(20 * time.Millisecond)
		if seen = m.get(ask); seen.cached == nil {
			t.Fatal("forgotten")
		}
		var r store.Result
		seen.answer(&r)
		if x := r.Reading(0); x.RetryAfter != 80_000 {
			t.Errorf("%+v", x)
		}
		time.Sleep(50*time.Millisecond - time.Nanosecond)
		if !m.knows(ask) {
			t.Error("forgotten too early")
		}
		if time.Sleep(time.Nanosecond); m.knows(ask) {
			t.Error("still known")
		}
	})
}

// A remembered answer says how old it is, and who asks for a fresh one sees what another process
// has given back: so do the questions after it.
func TestFreshPassesTheMemoryBy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDatabase(1, clock)
		m := NewRefusals(NewSender(d, Config{Timeout: time.Second}), time.Second, time.Second)
		other := NewSender(d, Config{Timeout: time.Second})
		ask := func(s store.Store, l *core.Limiter, q store.Question) store.Result {
			if q.Charges == nil {
				q.Charges = charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
			}
			r, err := asking.Ask(t.Context(), s, &q)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		p := core.FixedWindow(core.PerHour(1))
		here, there := newLimiter(t, m, "api", p), newLimiter(t, other, "api", p)
		taken := ask(other, there, store.Question{})
		for range 2 { // a plan begins with the first, so that it is not remembered
			if r := ask(m, here, store.Question{}); r.Allowed || r.Source != store.SourceStore || r.Aged != 0 {
				t.Fatalf("%+v", r)
			}
		}
		time.Sleep(30 * time.Millisecond)
		if r := ask(m, here, store.Question{}); r.Source != store.SourceCache || r.Aged != 30_000 {
			t.Errorf("%+v", r)
		}
		ask(other, there, store.Question{Mode: store.Settle, Charges: charges(asking.Settled(
			store.Charge{Limiter: there.Prepared(), Key: "k", N: 1}, &taken, 0))})
		if r := ask(m, here, store.Question{}); r.Allowed {
			t.Errorf("the memory admits: %+v", r)
		}
		if r := ask(m, here, store.Question{Fresh: true}); !r.Allowed || r.Source != store.SourceStore {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Millisecond)
		if r := ask(m, here, store.Question{Fresh: true}); r.Allowed || r.Source != store.SourceStore {
			t.Errorf("%+v", r)
		}
		if r := ask(m, here, store.Question{}); r.Allowed || r.Source != store.SourceCache {
			t.Errorf("a fresh refusal is not remembered: %+v", r)
		}
	})
}

// Of several policies that refuse, the first that would admit ends it, so that the answers of
// all are right.
func TestCachedUntilOnePolicyAdmits(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		l := newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(1)).Named("a"), core.FixedWindow(core.PerHour(1)).Named("b"),
			core.FixedWindow(core.PerDay(9)).Named("c"))
		ask := charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
		r := &store.Result{At: 1e15, Source: core.SourceStore}
		r.Add(false, step.Reading{NextAfter: 30_000, ResetAfter: 60_000, RetryAfter: 30_000})
		r.Add(false, step.Reading{NextAfter: 90_000, ResetAfter: 90_000, RetryAfter: 90_000})
		r.Add(true, step.Reading{Remaining: 5, NextAfter: 10_000, ResetAfter: 60_000})
		m.keep(ask, r)
		if time.Sleep(30*time.Millisecond - time.Microsecond); !m.knows(ask) {
			t.Error("forgotten too early")
		}
		if time.Sleep(time.Microsecond); m.knows(ask) {
			t.Error("still known")
		}
	})
}

// Only the very same question is refused without being asked.
func TestCachedForTheSameQuestionOnly(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		l := newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(1)))
		same := newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(2)))
		other := newLimiter(t, m, "web", core.FixedWindow(core.PerMinute(1)))
		k := store.Charge{Limiter: l.Prepared(), Key: "k", N: 2}
		m.keep(charges(k), aRefusal(1, time.Minute))
		if !m.knows(charges(k)) {
			t.Fatal("forgotten")
		}
		for _, mode := range []store.Mode{store.Allow, store.Peek} { // an Extra has no part in a refusal
			q := &store.Question{Mode: mode, Charges: charges(k), Extra: 5}
			if r, err := asking.Ask(t.Context(), m, q); err != nil || r.Allowed || r.Source != store.SourceCache {
				t.Errorf("%v: %+v, %v", mode, r, err)
			}
		}
		for name, cs := range map[string][]store.Charge{
			"fewer units":   charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 1}),
			"more units":    charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 3}),
			"another key":   charges(store.Charge{Limiter: l.Prepared(), Key: "j", N: 2}),
			"other numbers": charges(store.Charge{Limiter: same.Prepared(), Key: "k", N: 2}),
			"another name":  charges(store.Charge{Limiter: other.Prepared(), Key: "k", N: 2}),
			"together":      charges(k, store.Charge{Limiter: other.Prepared(), Key: "k", N: 1}),
		} {
			if m.knows(cs) {
				t.Errorf("%s: known", name)
			}
		}
	})
}

// What this process changes, or is about to, is not refused from the cache, however the
// answers cross on their way.
func TestChangedIsInvalidated(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		a := core.TokenBucket(core.PerMinute(1), 1).Named("a")
		b := core.FixedWindow(core.PerMinute(1)).Named("b")
		l := newLimiter(t, m, "api", a, b)
		turned := newLimiter(t, m, "api", b, a) // the same state
		other := newLimiter(t, m, "web", core.FixedWindow(core.PerMinute(1)))
		k := charges(store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
		both := charges(k[0], store.Charge{Limiter: other.Prepared(), Key: "j", N: 1})
		r := aRefusal(2, time.Minute)

		for name, c := range map[string]struct {
			asked, changed []store.Charge
			forgets        bool
		}{
			"the key":                   {k, k, true},
			"through another limiter":   {k, charges(store.Charge{Limiter: turned.Prepared(), Key: "k"}), true},
			"one of two keys":           {both, both[1:], true},
			"another key":               {k, charges(store.Charge{Limiter: l.Prepared(), Key: "j"}), false},
			"the key for another limit": {k, charges(store.Charge{Limiter: other.Prepared(), Key: "k"}), false},
		} {
			if !c.forgets && m.mark(&c.asked[0]) == m.mark(&c.changed[0]) {
				continue // rarely, they are forgotten together
			}
			for when, want := range map[string]bool{"ask refuse begin end": !c.forgets, "ask begin refuse end": !c.forgets, "ask begin end refuse": !c.forgets,
				"begin ask refuse end": !c.forgets, "begin ask end refuse": !c.forgets, "begin end ask refuse": true,
				"ask refuse begin": !c.forgets, "ask begin refuse": !c.forgets, "begin ask refuse": !c.forgets} {
				var l lookup
				for step := range strings.FieldsSeq(when) {
					switch step {
					case "ask":
						l = m.get(c.asked)
					case "refuse":
						m.put(&l, &store.Question{Charges: c.asked, Result: *r})
					case "begin":
						m.beginAll(c.changed)
					case "end":
						m.endAll(c.changed, true)
					}
				}
				if known := m.knows(c.asked); known != want {
					t.Errorf("%s, %s: known %v, want %v", name, when, known, want)
				}
				if !strings.Contains(when, "end") {
					m.endAll(c.changed, true)
				}
				m.wrote(c.asked)
			}
		}
	})
}

// A refusal that writes nothing leaves others as they are, unless it may have converted the
// state: one of another plan.
func TestRefusalsThatWrite(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		limiters := map[string]*store.Limiter{
			"l":      newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(5))).Prepared(),
			"same":   newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(5))).Prepared(),
			"plan":   newLimiter(t, m, "api", core.FixedWindow(core.PerHour(5))).Prepared(),
			"denied": newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(5)).CountDenied()).Prepared(),
		}
		k := charges(store.Charge{Limiter: limiters["l"], Key: "k", N: 2})
		for when, want := range map[string]bool{
			"+l ask refuse -l":                            true,
			"ask refuse +same -same":                      true,
			"ask refuse +denied -denied":                  false,
			"ask refuse +plan":                            false,
			"ask refuse +plan -plan":                      false,
			"ask refuse +plan -plan +l -l":                false,
			"ask +plan refuse":                            false,
			"+plan -plan ask +l -l refuse":                false, // as the first of a plan changes it
			"+plan -plan +l -l ask +l -l refuse":          true,
			"+plan +l ask refuse -plan -l":                false, // it may be executed after the refusal
			"+plan +l -l ask refuse -plan":                false,
			"+plan +l -plan ask refuse -l":                false,
			"+plan +l -plan -l +l ask refuse -l":          true,
			"+plan +l -plan -l ask refuse":                true,
			"+plan +l -plan -l +plan +l ask refuse -plan": false,
		} {
			var l lookup
			open := ""
			for what := range strings.FieldsSeq("+l -l " + when) {
				cs := charges(store.Charge{Limiter: limiters[what[1:]], Key: "k", N: 1})
				switch what[0] {
				case 'a':
					l = m.get(k)
				case 'r':
					m.put(&l, &store.Question{Charges: k, Result: *aRefusal(1, time.Minute)})
				case '+':
					m.beginAll(cs)
					open += what + " "
				case '-':
					m.endAll(cs, false)
					open = strings.Replace(open, "+"+what[1:]+" ", "", 1)
				}
			}
			seen := m.get(k)
			if known := seen.cached != nil; known != want || seen.busy != (open != "") {
				t.Errorf("%s: known %v, want %v; busy %v", when, known, want, seen.busy)
			}
			for what := range strings.FieldsSeq(open) {
				m.endAll(charges(store.Charge{Limiter: limiters[what[1:]], Key: "k", N: 1}), true)
			}
			m.wrote(k)
		}
	})
}

// A question that counts refusals has to be asked each time.
func TestCountDeniedIsNotCached(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		plain := newLimiter(t, m, "plain", core.FixedWindow(core.PerMinute(1)))
		denied := newLimiter(t, m, "denied", core.FixedWindow(core.PerMinute(1)).Named("a"), core.FixedWindow(core.PerHour(1)).Named("b").CountDenied())
		for _, cs := range [][]store.Charge{
			charges(store.Charge{Limiter: denied.Prepared(), Key: "k", N: 1}),
			charges(store.Charge{Limiter: plain.Prepared(), Key: "k", N: 1}, store.Charge{Limiter: denied.Prepared(), Key: "k", N: 1}),
		} {
			m.keep(cs, aRefusal(3, time.Minute))
			if m.knows(cs) {
				t.Errorf("%d charges: cached", len(cs))
			}
		}
	})
}

// Each answer is the asker's own, also where it has more readings than fit into it.
func TestCachedAnswersAreCopies(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		var ps []core.Policy
		for i := range 5 {
			ps = append(ps, core.FixedWindow(core.PerMinute(1)).Named(fmt.Sprint(i)))
		}
		ask := charges(store.Charge{Limiter: newLimiter(t, m, "api", ps...).Prepared(), Key: "k", N: 1})
		first := aRefusal(5, time.Minute)
		before := fmt.Sprint(*first, first.Reading(0), first.Reading(4))
		m.keep(ask, first)
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			seen := m.get(ask)
			seen.answer(new(store.Result))
		}
		if now := fmt.Sprint(*first, first.Reading(0), first.Reading(4)); now != before {
			t.Errorf("the first answer has become %s, was %s", now, before)
		}
		seen := m.get(ask)
		var r store.Result
		seen.answer(&r)
		for i := range 5 {
			if x := r.Reading(i); x.ResetAfter != (time.Minute - 300*time.Millisecond).Microseconds() {
				t.Errorf("policy %d: %+v", i, x)
			}
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	inCache(t, func(t *testing.T, m *Refusals) {
		l := newLimiter(t, m, "api", core.FixedWindow(core.PerMinute(1)))
		r := aRefusal(1, time.Minute)
		known := 0
		ask := func(i int) []store.Charge {
			return charges(store.Charge{Limiter: l.Prepared(), Key: fmt.Sprint(i), N: 1})
		}
		for i := range 4 * cacheSize {
			m.keep(ask(i), r)
		}
		for i := range 4 * cacheSize {
			if m.knows(ask(i)) {
				known++
			}
		}
		if known > cacheSize || known < cacheSize*9/10 {
			t.Errorf("%d refusals are cached, in %d entries", known, cacheSize)
		}
		long := charges(store.Charge{Limiter: l.Prepared(), Key: strings.Repeat("k", maxCachedKey+1), N: 1})
		if m.keep(long, r); m.knows(long) {
			t.Error("a long key is cached")
		}
		var ps []core.Policy
		for i := range maxCachedReadings {
			ps = append(ps, core.FixedWindow(core.PerMinute(1)).Named(fmt.Sprint(i)))
		}
		many := charges(store.Charge{Limiter: newLimiter(t, m, "many", ps...).Prepared(), Key: "k", N: 1})
		if m.keep(many, aRefusal(len(ps), time.Minute)); !m.knows(many) {
			t.Errorf("a refusal of %d policies is not remembered", len(ps))
		}
		many = append(many, store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
		if m.keep(many, aRefusal(len(ps)+1, time.Minute)); m.knows(many) {
			t.Errorf("a refusal of %d policies is remembered", len(ps)+1)
		}
	})
}

func BenchmarkRefusals(b *testing.B) {
	m := NewRefusals(NewSender(newDatabase(1, clock), Config{}), time.Hour, time.Second)
	l := newLimiter(b, m, "api", core.FixedWindow(core.PerMinute(1)))
	ask := charges(store.Charge{Limiter: l.Prepared(), Key: "client-000000001", N: 1})
	b.Run("get", func(b *testing.B) {
		m.keep(ask, aRefusal(1, time.Hour))
		b.ReportAllocs()
		for b.Loop() {
			if !m.knows(ask) {
				b.Fatal("forgotten")
			}
		}
	})
	b.Run("put", func(b *testing.B) {
		r := aRefusal(1, time.Hour)
		b.ReportAllocs()
		for b.Loop() {
			m.keep(ask, r)
		}
	})
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m.wrote(ask)
		}
	})
}
