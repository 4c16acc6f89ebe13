package engine_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/keyfuncs"
)

// A failing store answers nothing, about rates or about slots.
type failing struct {
	backend backend.Stores
}

var errAway = errors.New("the store is away")

type failingRates struct{ store.Rates }

func (failingRates) Ask(context.Context, step.Mode, []step.Cell) (bool, error) { return false, errAway }

type failingSlots struct{ slots.Registry }

func (failingSlots) Acquire(context.Context, slots.Acquisition) (slots.Grant, error) {
	return slots.Grant{}, errAway
}

func (f *failing) Backend() *backend.Stores {
	if f.backend.Rates == nil {
		working := new(core.MemoryStore).Backend()
		f.backend.Rates = failingRates{working.Rates}
		f.backend.Slots = failingSlots{working.Slots}
	}
	return &f.backend
}

// one is a key function, or none of a rule that is left out.
func one(*http.Request) (string, error) { return "anna", nil }

func newRules(rates []engine.RateRule, slots ...engine.SlotsRule) *engine.Rules {
	rules := &engine.Rules{
		Rates: rates, Slots: slots, LeastPause: 1, MostPause: 5, Watch: engine.NewWatch("test", nil, true),
	}
	rules.HasService = slices.ContainsFunc(rates, func(rate engine.RateRule) bool { return rate.Service })
	return rules
}

func rate(limiter *core.Limiter) engine.RateRule {
	return engine.RateRule{Rule: engine.Rule{Key: one}, Limiter: limiter}
}

func rule(places *core.Slots) engine.SlotsRule {
	return engine.SlotsRule{Rule: engine.Rule{Key: one}, Slots: places}
}

func request(t *testing.T) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
}

// admit takes the steps that decide, in their order.
func admit(rules *engine.Rules, r *http.Request) *engine.Admission {
	admission := new(engine.Admission)
	_ = rules.Keys(admission, r) && rules.Charge(admission, r) && rules.Acquire(admission, r)
	return admission
}

// left returns the units that a key has left.
func left(t *testing.T, limiter *core.Limiter) int64 {
	t.Helper()
	d, err := limiter.Peek(t.Context(), "anna")
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// What a request is answered at each stage, and what is left of its charge.
func TestStages(t *testing.T) {
	type world struct {
		rates  *core.Limiter // 5 an hour
		slots  *core.Slots   // 1
		rules  *engine.Rules
		cancel func()
	}
	for name, test := range map[string]struct {
		change  func(w *world)
		stage   engine.Stage
		status  int
		limiter string
		answers int
		left    int64
		waits   bool // there is a Retry-After
	}{
		"admitted": {
			func(*world) {}, engine.Answered, 0, "requests", 2, 4, false,
		},
		"rates refuse": {
			func(w *world) { w.rules.Rates[0].Cost = func(*http.Request) int64 { return 6 } },
			engine.Answered, http.StatusTooManyRequests, "requests", 1, 5, true,
		},
		"rates of the service refuse": {
			func(w *world) {
				w.rules.Rates[0].Service = true
				w.rules.HasService = true
				w.rules.Rates[0].Cost = func(*http.Request) int64 { return 6 }
			},
			engine.Answered, http.StatusServiceUnavailable, "requests", 1, 5, true,
		},
		"rates are undecided": {
			func(w *world) {
				w.rules.Rates[0].Limiter = core.NewLimiter(new(failing), "away", core.FixedWindow(5, time.Hour))
			},
			engine.Unasked, http.StatusServiceUnavailable, "", 0, 5, true,
		},
		"no rate applies": {
			func(w *world) { w.rules.Rates[0].Skip = func(*http.Request) bool { return true } },
			engine.Unasked, 0, "places", 1, 5, false,
		},
		"slots are full": {
			func(w *world) {
				admit(newRules(nil, rule(w.slots)), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			},
			engine.SlotsFull, http.StatusTooManyRequests, "places", 1, 5, true,
		},
		"slots of the service are full": {
			func(w *world) {
				w.rules.Slots[0].Service = true
				admit(newRules(nil, rule(w.slots)), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			},
			engine.SlotsFull, http.StatusServiceUnavailable, "places", 1, 5, true,
		},
		"slots are undecided": {
			func(w *world) { w.rules.Slots[0].Slots = core.NewSlots(new(failing), "away", 1) },
			engine.SlotsUndecided, http.StatusServiceUnavailable, "", 0, 5, true,
		},
		"who has a slot has gone": {
			func(w *world) {
				w.rules.Slots[0].Slots = core.NewSlots(new(failing), "away", 1)
				w.rules.Rates[0].Cost = func(*http.Request) int64 { w.cancel(); return 1 }
			},
			engine.SlotsUndecided, http.StatusServiceUnavailable, "", 0, 5, true,
		},
		"full behind slots that are granted": {
			func(w *world) {
				full := core.NewSlots(new(core.MemoryStore), "line", 1)
				admit(newRules(nil, rule(full)), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
				line := rule(full)
				line.Queue = 1
				line.MaxWait = time.Millisecond
				w.rules.Slots = append(w.rules.Slots, line)
			},
			engine.SlotsFull, http.StatusTooManyRequests, "line", 1, 5, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory := new(core.MemoryStore)
			w := &world{
				rates: core.NewLimiter(memory, "requests", core.FixedWindow(5, time.Hour)),
				slots: core.NewSlots(memory, "places", 1),
			}
			w.rules = newRules([]engine.RateRule{rate(w.rates)}, rule(w.slots))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w.cancel = cancel
			test.change(w)
			admission := admit(w.rules, request(t).WithContext(ctx))
			if admission.Stage != test.stage || admission.Status != test.status || admission.Limiter != test.limiter {
				t.Errorf("stage %d, status %d, %q decided: want %d, %d, %q",
					admission.Stage, admission.Status, admission.Limiter, test.stage, test.status, test.limiter)
			}
			if admission.Answers() != test.answers || left(t, w.rates) != test.left {
				t.Errorf("%d answers, and %d units left: want %d, %d",
					admission.Answers(), left(t, w.rates), test.answers, test.left)
			}
			if (admission.RetryAfter > 0) != test.waits || (admission.Err != nil) != (test.limiter == "" && test.status > 0) {
				t.Errorf("Retry-After %v, error %v", admission.RetryAfter, admission.Err)
			}
			// Whatever was decided, a refusal holds no slot that was not held before.
			admission.Release()
			held, err := w.slots.Count(t.Context(), "anna")
			before := int64(0)
			if strings.HasSuffix(name, "are full") {
				before = 1
			}
			if err != nil || held != before {
				t.Errorf("%d slots are held, not %d (%v)", held, before, err)
			}
		})
	}
}

// What the functions of a rule say of a request.
func TestKeys(t *testing.T) {
	limiter := core.NewLimiter(new(core.MemoryStore), "requests", core.FixedWindow(5, time.Hour)).
		WithPlan("gold", core.FixedWindow(9, time.Hour))
	plan := func(text string, err error) func(*engine.RateRule) {
		return func(rule *engine.RateRule) {
			rule.Plan = func(*http.Request) (string, error) { return text, err }
		}
	}
	key := func(text string, err error) func(*engine.RateRule) {
		return func(rule *engine.RateRule) {
			rule.Key = func(*http.Request) (string, error) { return text, err }
		}
	}
	cost := func(units int64) func(*engine.RateRule) {
		return func(rule *engine.RateRule) { rule.Cost = func(*http.Request) int64 { return units } }
	}
	for name, test := range map[string]struct {
		change func(*engine.RateRule)
		status int
		units  int64
		limit  int64
		plain  bool
	}{
		"plain":                 {func(*engine.RateRule) {}, 0, 1, 5, true},
		"a cost":                {cost(3), 0, 3, 5, true},
		"a cost of 0":           {cost(0), 0, 0, 0, false},
		"a cost below 0":        {cost(-1), http.StatusInternalServerError, 0, 0, true},
		"a plan":                {plan("gold", nil), 0, 1, 9, false},
		"a plan that is not":    {plan("tin", nil), 0, 1, 5, true},
		"no plan":               {plan("", keyfuncs.ErrAbsent), 0, 1, 5, true},
		"a plan that fails":     {plan("", errors.New("malformed")), http.StatusBadRequest, 0, 0, true},
		"no key":                {key("", keyfuncs.ErrAbsent), http.StatusBadRequest, 0, 0, true},
		"an empty key":          {key("", nil), http.StatusBadRequest, 0, 0, true},
		"a fault of the server": {key("", keyfuncs.ErrProgram), http.StatusInternalServerError, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			rules := newRules([]engine.RateRule{rate(limiter)})
			test.change(&rules.Rates[0])
			var admission engine.Admission
			if ok := rules.Keys(&admission, request(t)); ok != (test.status == 0) || admission.Status != test.status {
				t.Errorf("%v, with status %d: want %d", ok, admission.Status, test.status)
			}
			var units, limit int64
			for _, charge := range admission.Charges() {
				units += charge.Units
				limit = charge.Limiter.Policies()[0].Limit
			}
			if units != test.units || limit != test.limit || admission.AllDefault != test.plain {
				t.Errorf("%d units of %d, plain %v: want %d, %d, %v",
					units, limit, admission.AllDefault, test.units, test.limit, test.plain)
			}
			var ruleError *engine.RuleError
			if test.status > 0 && (!errors.As(admission.Err, &ruleError) || ruleError.Limiter != "requests") {
				t.Errorf("the error %v does not say of which rule it is", admission.Err)
			}
		})
	}
}

// More charges than fit into an admission, some of them left out, and the rules that they are of.
func TestTook(t *testing.T) {
	memory := new(core.MemoryStore)
	for n := range engine.MaxRules + 1 {
		var rates []engine.RateRule
		var want [][2]int
		for i := range n {
			rates = append(rates, rate(core.NewLimiter(memory, string(rune('a'+i)), core.FixedWindow(5, time.Hour))))
			rates[i].Skip = func(*http.Request) bool { return i%3 == 1 }
			if i%3 != 1 {
				want = append(want, [2]int{len(want), i})
			}
		}
		admission := admit(newRules(rates), request(t))
		var took [][2]int
		for charge, rule := range admission.EachRate {
			took = append(took, [2]int{charge, rule})
			if name := admission.Charges()[charge].Limiter.Name(); name != rates[rule].Limiter.Name() {
				t.Errorf("charge %d is of %q, not of rule %d", charge, name, rule)
			}
		}
		if !slices.Equal(took, want) || len(admission.Charges()) != len(want) {
			t.Errorf("of %d rates %v took part, not %v", n, took, want)
		}
		for charge := range admission.EachRate { // a caller may stop
			if charge == 1 {
				break
			}
		}
	}
}

// Rules that only observe refuse nobody, each is asked by itself, and what they hold is released.
func TestObserve(t *testing.T) {
	memory := new(core.MemoryStore)
	places := core.NewSlots(memory, "places", 1)
	rates := []engine.RateRule{
		rate(core.NewLimiter(memory, "blocked", core.Blocked())),
		rate(core.NewLimiter(new(failing), "away", core.FixedWindow(1, time.Hour))),
		rate(core.NewLimiter(memory, "free", core.FixedWindow(1, time.Hour))),
		rate(core.NewLimiter(memory, "skipped", core.Blocked())),
	}
	rates[3].Skip = func(*http.Request) bool { return true }
	for i := range rates {
		rates[i].ObserveOnly = true
	}
	observed := rule(places)
	observed.ObserveOnly = true
	rules := newRules(rates, observed)
	admission := admit(rules, request(t))
	rules.Observe(admission, request(t))
	var statuses []int
	for _, one := range admission.Observed {
		statuses = append(statuses, one.Status)
	}
	want := []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, 0, 0}
	if admission.Status != 0 || !slices.Equal(statuses, want) {
		t.Errorf("status %d, and the observed ones %v, not %v", admission.Status, statuses, want)
	}
	for _, want := range []int64{1, 0} {
		if held, err := places.Count(t.Context(), "anna"); err != nil || held != want {
			t.Errorf("%d slots are held, not %d (%v)", held, want, err)
		}
		admission.Release()
	}
}

// An observer that panics at one release keeps no other slot.
func TestReleaseAll(t *testing.T) {
	panics := "first"
	memory := &core.MemoryStore{Observers: []*core.Observer{{Released: func(name string) {
		if name == panics {
			panic(name)
		}
	}}}}
	first := core.NewSlots(memory, "first", 1)
	line := core.NewSlots(memory, "line", 1)
	observed := core.NewSlots(memory, "observed", 1)
	waiting := rule(line)
	waiting.Queue = 1
	waiting.MaxWait = time.Minute
	watched := rule(observed)
	watched.ObserveOnly = true
	rules := newRules(nil, rule(first), watched, waiting)
	for _, panics = range []string{"first", "line", "observed"} {
		admission := admit(rules, request(t))
		rules.Observe(admission, request(t))
		if admission.Status != 0 || admission.Slot == nil {
			t.Fatalf("status %d", admission.Status)
		}
		func() {
			defer func() {
				if recovered := recover(); recovered != panics {
					t.Errorf("%v, not the panic of %s", recovered, panics)
				}
			}()
			admission.Release()
		}()
		for _, places := range []*core.Slots{first, line, observed} {
			if held, err := places.Count(t.Context(), "anna"); err != nil || held != 0 {
				t.Errorf("%s: %d are held after a panic of %s (%v)", places.Name(), held, panics, err)
			}
		}
	}
}

// Refuse is for a request that was granted one slot above the limit, and has found nobody to make room.
func TestRefuse(t *testing.T) {
	memory := new(core.MemoryStore)
	places := core.NewSlots(memory, "places", 1)
	above := rule(places)
	above.OneMore = true
	rules := newRules(nil, above)
	first := admit(rules, request(t))
	second := admit(rules, request(t))
	if first.Status != 0 || second.Status != 0 || first.Slot.Above() != -1 || second.Slot.Above() != 0 {
		t.Fatalf("statuses %d and %d, above the limit: %d", first.Status, second.Status, second.Slot.Above())
	}
	rules.Refuse(second, 0)
	answer := second.At(0)
	if second.Stage != engine.SlotsFull || second.Status != http.StatusTooManyRequests || second.Key() != "anna" ||
		second.Answers() != 1 || answer.Allowed || answer.Remaining != 0 || second.RetryAfter < time.Second {
		t.Errorf("%+v: %+v", second, answer)
	}
	if held, err := places.Count(t.Context(), "anna"); err != nil || held != 1 {
		t.Errorf("%d slots are held, not 1 (%v)", held, err)
	}
	first.Release()
}

// A charge is corrected if another number of units was used, also for a client that has gone. What was refused, or
// never asked, is not.
func TestSettle(t *testing.T) {
	limiter := core.NewLimiter(new(core.MemoryStore), "requests", core.FixedWindow(5, time.Hour))
	rules := newRules([]engine.RateRule{rate(limiter)})
	rules.Rates[0].Cost = func(*http.Request) int64 { return 3 }
	admission := admit(rules, request(t))
	refused := admit(rules, request(t))
	for _, test := range []struct {
		of     *engine.Admission
		actual int64
		left   int64
	}{{new(engine.Admission), 1, 2}, {refused, 1, 2}, {admission, 3, 2}, {admission, 1, 4}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := test.of.Settle(request(t).WithContext(ctx), []int64{test.actual})
		if err != nil || left(t, limiter) != test.left {
			t.Errorf("after %d units of %+v: %d left, not %d (%v)", test.actual, test.of, left(t, limiter), test.left, err)
		}
	}
	if err := admission.Settle(request(t), []int64{2}); !errors.Is(err, core.ErrSettled) {
		t.Errorf("a second correction: %v", err)
	}
}
