package nethttp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// The error has all faults, one line a rule.
func TestFaultsOfTheConfig(t *testing.T) {
	store := new(core.MemoryStore)
	limiter := func(name string) *core.Limiter { return core.NewLimiter(store, name, minute(1)) }
	slots := func(name string) nethttp.Concurrency {
		return nethttp.Concurrency{Slots: core.NewSlots(store, name, 1), Key: client}
	}
	queue := func(name string, n int) nethttp.Concurrency {
		c := slots(name)
		c.Queue = n
		return c
	}
	a := limiter("a")
	var nine []nethttp.Rate
	for name := range strings.SplitSeq("123456789", "") {
		nine = append(nine, rate(limiter(name)))
	}
	waits, observes := slots("s"), queue("s", 1)
	waits.MaxWait, observes.ObserveOnly = -1, true
	for name, test := range map[string]struct {
		config nethttp.Config
		want   []string // a part of each line
	}{
		"no rule":                {nethttp.Config{}, []string{"guard: there is no rule"}},
		"nine rules":             {rates(nine...), []string{"guard: there are more than 8 rules"}},
		"no key":                 {rates(nethttp.Rate{Limiter: a}), []string{"Rates[0]: the Key is nil"}},
		"no limiter":             {rates(rate(a), rate(nil)), []string{"Rates[1]: the Limiter is nil"}},
		"two stores":             {rates(rate(a), rate(memory("b", minute(1)))), []string{`Rates[1]: the limiter "b" has another store`}},
		"a limiter twice":        {rates(rate(a), rate(a)), []string{`Rates[1]: another rule has a policy named "a", too`}},
		"a limiter twice, again": {rates(rate(a), rate(a.WithPlan("gold", minute(9)))), []string{`another rule has a limiter named "a", too`}},
		"a policy twice": {
			rates(rate(a), rate(core.NewLimiter(store, "b", minute(1).Named("a"), minute(2).Named("x")))),
			[]string{`Rates[1]: another rule has a policy named "a", too`},
		},
		"slots of a policy's name": {
			nethttp.Config{Rates: []nethttp.Rate{rate(a)}, Concurrency: []nethttp.Concurrency{slots("a")}}, []string{`Concurrency[0]: another rule has slots or a policy named "a"`},
		},
		"no slots":         {nethttp.Config{Concurrency: []nethttp.Concurrency{{}}}, []string{"Concurrency[0]: the Slots are nil"}},
		"a negative queue": {nethttp.Config{Concurrency: []nethttp.Concurrency{queue("s", -1)}}, []string{"Queue and MaxWait must not be negative"}},
		"a negative wait":  {nethttp.Config{Concurrency: []nethttp.Concurrency{waits}}, []string{"Queue and MaxWait must not be negative"}},
		"a queue that observes": {
			nethttp.Config{Concurrency: []nethttp.Concurrency{observes}}, []string{"nobody waits for a rule that only observes"},
		},
		"two queues": {nethttp.Config{Concurrency: []nethttp.Concurrency{queue("s", 1), slots("u"), queue("t", 1)}}, []string{"Concurrency[2]: another rule has a Queue"}},
		"all together": {
			nethttp.Config{Rates: []nethttp.Rate{{}, rate(a), rate(a)}, Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(store, "a", 1)}}},
			[]string{"Rates[0]: the Limiter is nil: make one with core.NewLimiter; the Key is nil", "Rates[2]: ", "Concurrency[0]: the Key is nil"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard, err := nethttp.New(test.config)
			if guard != nil || err == nil {
				t.Fatal(guard, err)
			}
			lines := strings.Split(err.Error(), "\n")
			for i, line := range lines {
				if len(lines) != len(test.want) || !strings.HasPrefix(line, "headgate: ") || !strings.Contains(line, test.want[i]) {
					t.Errorf("%v\nwant %q", err, test.want)
				}
			}
		})
	}
}

// Eight rules are not too many; a rule that only observes may have a policy of another's name; and what becomes of the
// Config afterwards is nothing to the guard.
func TestWhatIsRight(t *testing.T) {
	store := new(core.MemoryStore)
	var c nethttp.Config
	for name := range strings.SplitSeq("abcdefgh", "") {
		c.Rates = append(c.Rates, rate(core.NewLimiter(store, name, core.Blocked())))
	}
	h := guardOf(t, c).Handler(status(204))
	clear(c.Rates)
	if w := serve(h, request("GET", "/")); w.Code != 429 {
		t.Error(w.Code)
	}
	next := rate(core.NewLimiter(store, "next", minute(1).Named("a")))
	next.ObserveOnly = true
	guardOf(t, rates(rate(core.NewLimiter(store, "a", minute(1))), next))
}

// Wrong arguments, and what was not made, panic at once, not with the first request.
func TestPanics(t *testing.T) {
	store, key := new(core.MemoryStore), keyfuncs.Everyone()
	for name, f := range map[string]func(){
		"no policy":         func() { nethttp.Limit(store, "api", key) },
		"no key":            func() { nethttp.Limit(store, "api", nil, minute(1)) },
		"a wrong policy":    func() { nethttp.Limit(store, "api", key, core.SlidingLog(-1, time.Minute)) },
		"a wrong name":      func() { nethttp.Limit(store, "", key, minute(1)) },
		"no key of slots":   func() { nethttp.MaxInFlight(store, "api", nil, 1) },
		"a wrong number":    func() { nethttp.MaxInFlight(store, "api", key, -1) },
		"no handler":        func() { nethttp.Limit(store, "api", key, minute(1)).Handler(nil) },
		"no guard":          func() { (*nethttp.Guard)(nil).Handler(status(204)) },
		"a guard of nobody": func() { new(nethttp.Guard).Handler(status(204)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

// Guards of the same store and name count together, and no others.
func TestGuardsShareAStoreAndAName(t *testing.T) {
	store := new(core.MemoryStore)
	ask := func(g *nethttp.Guard) int { return serve(g.Handler(status(204)), request("GET", "/")).Code }
	first := nethttp.Limit(store, "api", client, minute(1))
	for _, c := range []struct {
		guard *nethttp.Guard
		want  int
	}{
		{first, 204}, {nethttp.Limit(store, "api", client, minute(1)), 429}, {nethttp.Limit(store, "other", client, minute(1)), 204},
		{nethttp.Limit(new(core.MemoryStore), "api", client, minute(1)), 204}, {first, 429},
	} {
		if got := ask(c.guard); got != c.want {
			t.Errorf("%d, want %d", got, c.want)
		}
	}
}

// A limiter whose policies have names of their own has another name than slots, so that clients see the fields of both,
// or of the one that is not of the service.
func TestSlotsNamedAsALimiter(t *testing.T) {
	s := new(core.MemoryStore)
	_, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(s, "api", core.SlidingLog(3, time.Minute).Named("m"), core.SlidingLog(9, time.Hour).Named("h")),
			Key:     keyfuncs.Everyone(),
		}},
		Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(s, "api", 1), Key: keyfuncs.Everyone(), Service: true}},
	})
	if err == nil || !strings.Contains(err.Error(), `Concurrency[0]: another rule has a limiter named "api", too`) {
		t.Error(err)
	}
}
