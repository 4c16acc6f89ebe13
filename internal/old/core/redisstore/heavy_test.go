package redisstore

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// What a question weighs bounds the calls: by cells, and by the words that it reads and
// writes.
func TestWeights(t *testing.T) {
	s := away(t, Config{})
	log := newLimiter(t, s, "log", core.SlidingLog(core.PerHour(maxLog)))
	denied := newLimiter(t, s, "denied", core.SlidingLog(core.PerHour(maxLog)).CountDenied())
	fine := newLimiter(t, s, "fine", core.SlidingWindow(core.PerDay(10)).Resolution(1000))
	plain := newLimiter(t, s, "plain", core.FixedWindow(core.PerDay(10)))
	two := newLimiter(t, s, "two", core.FixedWindow(core.PerDay(10)).Named("a"), core.FixedWindow(core.PerHour(10)).Named("b"))
	for name, test := range map[string]struct {
		l        *core.Limiter
		mode     store.Mode
		n, more  int64 // n and Extra, or for a settlement n and actual
		work     int
		together int // in a call
	}{
		"light":               {plain, store.Allow, 1, 0, 0, 128},
		"two policies":        {two, store.Allow, 1, 0, 0, 64},
		"fine windows":        {fine, store.Allow, 1, 0, 0, 8},
		"small charges":       {log, store.Allow, 1, 0, 0, 128},
		"charges":             {log, store.Allow, 3000, 0, 0, 2},
		"large charges":       {log, store.Allow, 10_000, 0, 0, 0},
		"extra units":         {log, store.Allow, 1, 10_000, 0, 0},
		"peeks":               {log, store.Peek, 10_000, 0, 0, 128},
		"peeks of refusals":   {denied, store.Peek, 3000, 0, 0, 2}, // as if they were counted
		"refunds":             {log, store.Settle, 10_000, 0, 0, 128},
		"settlements upwards": {log, store.Settle, 1, 2, 0, 0},
		"rings known to grow": {log, store.Allow, 1, 0, 3000, 2},
	} {
		c := store.Charge{Limiter: test.l.Prepared(), Key: "k", N: test.n}
		q := &question{Question: store.Question{Mode: test.mode, Charges: []store.Charge{c}}, Work: test.work}
		if test.mode == store.Settle {
			q.Charges[0].Actual = test.more
		} else {
			q.Extra = test.more
		}
		if got := maxWords / s.backend.Weight(q); got != test.together {
			t.Errorf("%s: %d in a call, want %d", name, got, test.together)
		}
	}
}

// The logs of a limiter are bounded, and with them the longest script. At the bound, what a
// client may charge is decided.
func TestLogsAreBounded(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	log := func(n int64) core.Policy { return core.SlidingLog(core.PerHour(n)) }
	for _, test := range []struct {
		name     string
		policies []core.Policy
		refused  bool
	}{
		{"one", []core.Policy{log(maxLog)}, false},
		{"one above", []core.Policy{log(maxLog + 1)}, true},
		{"several", []core.Policy{log(maxLog - 10).Named("a"), core.FixedWindow(core.PerDay(1 << 50)).Named("b"), log(10).Named("c")}, false},
		{"several above", []core.Policy{log(maxLog - 10).Named("a"), core.FixedWindow(core.PerDay(1 << 50)).Named("b"), log(11).Named("c")}, true},
		{"none", []core.Policy{core.SlidingWindow(core.PerHour(1 << 50))}, false},
	} {
		l, err := core.New(s, test.name, test.policies...)
		var fault *core.ConfigError
		switch {
		case !test.refused && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.refused && (!errors.As(err, &fault) || !strings.Contains(err.Error(), "use SlidingWindow or TokenBucket")):
			t.Errorf("%s: %v", test.name, err)
		}
		if err != nil {
			continue
		}
		n := int64(1 << 50)
		for _, p := range test.policies {
			n = min(n, p.Limit())
		}
		if d := allow(t, l, "k", n); !d.Allowed || d.Remaining != 0 {
			t.Errorf("%s: %s", test.name, describe(&d))
		}
		if d := allow(t, l, "k", 1); d.Allowed {
			t.Errorf("%s: %s", test.name, describe(&d))
		}
	}
	// A script is given at most so many words.
	l := newLimiter(t, s, "one", log(maxLog))
	r, err := asking.Ask(t.Context(), s, &store.Question{Charges: []store.Charge{{Limiter: l.Prepared(), Key: "extra", N: 1}}, Extra: math.MaxInt64})
	if err != nil || r.Extra != maxLog-1 {
		t.Errorf("%d extra units, %v", r.Extra, err)
	}
	q := question{Question: store.Question{Charges: []store.Charge{{Limiter: l.Prepared(), N: maxLog}}}}
	if got := s.backend.words(&q); got != maxLog {
		t.Errorf("the largest charge has %d words", got)
	}
}

// Large rings that have to grow do so in different calls. Nothing is written for a question
// that is put off.
func TestLargeRingsGrowApart(t *testing.T) {
	const used = 3000 // so that a ring grows to 6000 words, and two are too much for a call
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	log := core.SlidingLog(core.PerHour(maxLog))
	for name, policies := range map[string][]core.Policy{
		"one":    {log},
		"two":    {core.FixedWindow(core.PerDay(1_000_000)).Named("a"), log.Named("b")},
		"denied": {core.TokenBucket(core.PerDay(1), 1).Named("a"), log.CountDenied().Named("b")}, // refuses
	} {
		for _, mixed := range []bool{false, true} {
			server.Flush()
			l := newLimiter(t, s, name, policies...)
			count := newLimiter(t, s, name, policies[len(policies)-1]) // the log alone
			other := newLimiter(t, s, "other", core.FixedWindow(core.PerDay(10)))
			var cs []store.Charge
			bare := l.Prepared()
			for i := range 4 {
				key := fmt.Sprint("large", i)
				allow(t, count, key, used)
				if name == "denied" {
					allow(t, newLimiter(t, s, name, policies[0]), key, 1)
				}
				cs = append(cs, store.Charge{Limiter: bare, Key: key, N: 1}, store.Charge{Limiter: bare, Key: fmt.Sprint("small", i), N: 1})
			}
			if mixed {
				cs = append(cs, store.Charge{Limiter: other.Prepared(), Key: "k", N: 1})
			}
			for i, q := range flyTogether(t, s, cs...) {
				late := errors.Is(q.Err, remote.ErrPutOff)
				if late != (i == 2 || i == 4 || i == 6) || !late && q.Err != nil {
					t.Errorf("%s, mixed %v: question %d: %v", name, mixed, i, q.Err)
				}
				if late { // now it is known to be too much work for a call with another
					if alone := maxWords / s.backend.Weight(q); alone != 1 {
						t.Errorf("%s, mixed %v: question %d: %d in a call", name, mixed, i, alone)
					}
					q.Err = nil
					s.ask(t, []*question{q})
				}
				admitted := name != "denied" || i%2 == 1 || i == 8
				if q.Err != nil || q.Result.Allowed != admitted {
					t.Errorf("%s, mixed %v: question %d: allowed %v, %v", name, mixed, i, q.Result.Allowed, q.Err)
				}
			}
			for i := range 4 {
				if d, err := count.Peek(t.Context(), fmt.Sprint("large", i)); err != nil || log.Limit()-d.Remaining != used+1 {
					t.Errorf("%s, mixed %v: ring %d holds %d, want %d: %v", name, mixed, i, log.Limit()-d.Remaining, used+1, err)
				}
			}
		}
	}
}
