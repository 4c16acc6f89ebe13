package core_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
)

const secret = "canary-5f1e"

func minute(n int64) core.Policy { return core.SlidingLog(n, time.Minute) }

// admitted returns how many of n units, one after the other, a limiter admits.
func admitted(t *testing.T, l *core.Limiter, key string, n int) (admitted int) {
	t.Helper()
	for range n {
		d, err := l.Allow(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		}
	}
	return admitted
}

// panics returns what a function panics with, as a text.
func panics(f func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestWrongArgumentsPanic(t *testing.T) {
	s := new(core.MemoryStore)
	for want, f := range map[string]func(){
		"the store is nil":      func() { core.NewLimiter(nil, "api", minute(1)) },
		"the name is empty":     func() { core.NewLimiter(s, "", minute(1)) },
		"policies":              func() { core.NewLimiter(s, "api") },
		"SlidingWindow(...)":    func() { core.NewLimiter(s, "api", minute(1025)) },
		"Burst is for":          func() { core.NewLimiter(s, "api", minute(1).Burst(2)) },
		"microseconds":          func() { core.NewLimiter(s, "api", core.SlidingLog(1, time.Nanosecond)) },
		"the default":           func() { core.NewLimiter(s, "api", minute(1)).WithPlan("", minute(2)) },
		`limiter "api"`:         func() { core.NewLimiter(s, "api", minute(1)).WithPlan("gold", core.Policy{}) },
		"the function is nil":   func() { core.NewLimiter(s, "api", minute(1)).WithPlanFunc(nil) },
		`slots "ws"`:            func() { core.NewSlots(s, "ws", -1) },
		"give it to NewSlots":   func() { core.NewSlots(s, "ws", 1).WithPlan("", 1) },
		"headgate: the store":   func() { core.NewSlots(nil, "ws", 1) },
		"headgate: the functio": func() { core.NewSlots(s, "ws", 1).WithPlanFunc(nil) },
	} {
		if got := panics(f); !strings.Contains(got, want) {
			t.Errorf("%q: %s", want, got)
		}
	}
}

// Texts and methods make the same policies, also in turn.
func TestPolicyTexts(t *testing.T) {
	for text, want := range map[string]core.Policy{
		"sliding-log 60/minute":                                  minute(60),
		"token-bucket 10/second burst 10":                        core.TokenBucket(10, time.Second),
		"token-bucket 10/second burst 100 debt 5":                core.TokenBucket(10, time.Second).Burst(100).Debt(5),
		"fixed-window 1000/day from-first count-denied":          core.FixedWindow(1000, 24*time.Hour).CountDenied().FromFirst(),
		"sliding-window 600/hour resolution 60 never-over":       core.SlidingWindow(600, time.Hour).NeverOver().Resolution(60),
		"min-interval 100ms":                                     core.MinInterval(100 * time.Millisecond),
		"unlimited":                                              core.Unlimited(),
		"blocked":                                                core.Blocked(),
		"token-bucket 5/minute burst 20 debt 20":                 core.TokenBucket(5, time.Minute).Debt(20).Burst(20),
		"token-bucket 10/second burst 7":                         core.TokenBucket(10, time.Second).Burst(3).Burst(7),
		"sliding-window 600/hour resolution 60 never-over count": {},
	} {
		var p core.Policy
		err := p.UnmarshalText([]byte(text))
		if want == (core.Policy{}) {
			if !errors.Is(err, core.ErrInvalid) || p != want {
				t.Errorf("%q: %v, %v", text, p, err)
			}
			continue
		}
		if err != nil || p.String() != want.String() || p.Validate() != nil {
			t.Errorf("%q is %v, want %v: %v", text, p, want, err)
		}
	}
	var bucket, fast core.Policy
	if bucket.UnmarshalText([]byte("token-bucket 10/second")) != nil || bucket != core.TokenBucket(10, time.Second) {
		t.Error(bucket)
	}
	if fast.UnmarshalText([]byte("token-bucket 10/second burst 20")) != nil || fast.Burst(30).Named("x").String() != `"x": token-bucket 10/second burst 30` {
		t.Error("a policy of a text is changed as any other")
	}
	for _, p := range []core.Policy{{}, core.SlidingLog(0, time.Minute), minute(5000), core.TokenBucket(2, time.Microsecond), minute(1).Debt(1)} {
		if err := p.Validate(); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("%v: %v", p, err)
		}
	}
	if err := core.TokenBucket(2, time.Minute).Debt(-1).Validate(); err == nil || !strings.HasSuffix(err.Error(), "a debt must be at least 0, is -1") {
		t.Error(err)
	}
}

func TestPlans(t *testing.T) {
	s := new(core.MemoryStore)
	asked := 0
	free := core.NewLimiter(s, "api", minute(2)).WithPlan("gold", minute(4)).WithPlan("bucket", core.TokenBucket(3, time.Hour)).
		WithPlanFunc(func(plan string) ([]core.Policy, error) {
			asked++
			switch plan {
			case "silver":
				return []core.Policy{minute(3)}, nil
			case "wrong":
				return []core.Policy{minute(0)}, nil
			}
			return nil, nil
		})
	for _, step := range []struct {
		plan string
		want int
	}{{"", 2}, {"gold", 2}, {"silver", 0}, {"unknown", 0}, {"bucket", 3}, {"gold", 0}} {
		if got := admitted(t, free.Plan(step.plan), "k", 5); got != step.want {
			t.Errorf("under %q: %d, want %d", step.plan, got, step.want)
		}
	}
	_, err := free.Plan("wrong").Allow(t.Context(), "k")
	if !errors.Is(err, core.ErrInvalid) || free.Plan("gold").Plan("").Name() != "api" {
		t.Error(err)
	}
	if again := free.Plan("silver"); again != free.Plan("silver") || free.Plan("unknown") != free.Plan("") || asked != 3 {
		t.Errorf("asked %d times", asked)
	}
	if err := free.Plan("silver").Reset(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for plan, want := range map[string]int{"bucket": 3, "gold": 4} {
		if got := admitted(t, free.Plan(plan), "k", 5); got != want {
			t.Errorf("after a reset, under %q: %d, want %d", plan, got, want)
		}
	}
}

// What a limiter remembers of its function is not for a limiter that has more plans.
func TestPlansAfterTheFunction(t *testing.T) {
	few := core.NewLimiter(new(core.MemoryStore), "api", minute(2)).WithPlanFunc(func(string) ([]core.Policy, error) {
		return []core.Policy{minute(3)}, nil
	})
	few.Plan("silver")
	more := few.WithPlan("bucket", core.TokenBucket(4, time.Hour))
	if got := admitted(t, more.Plan("silver").Plan("bucket"), "k", 5); got != 4 {
		t.Errorf("a plan of a plan admits %d", got)
	}
	if err := more.Plan("silver").Reset(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := admitted(t, more.Plan("bucket"), "k", 5); got != 4 {
		t.Errorf("after a reset: %d, want 4", got)
	}
}

// However many plans requests name, as many are remembered as the documentation says.
func TestPlansOfAFunctionAreBounded(t *testing.T) {
	asked := 0
	l := core.NewLimiter(new(core.MemoryStore), "api", minute(2)).WithPlanFunc(func(string) ([]core.Policy, error) {
		asked++
		return []core.Policy{minute(3)}, nil
	})
	for range 2 {
		for i := range 512 {
			l.Plan(fmt.Sprint(i))
		}
	}
	if asked != 512 {
		t.Errorf("512 plans in use: asked %d times", asked)
	}
	for i := range 2000 {
		l.Plan(fmt.Sprint(i))
	}
	if l.Plan("0"); asked != 2001 {
		t.Errorf("asked %d times", asked)
	}
}

func TestCharges(t *testing.T) {
	ctx, s := t.Context(), new(core.MemoryStore)
	session, address := core.NewLimiter(s, "session", minute(2)), core.NewLimiter(s, "address", minute(5))
	both := func(key string) core.Decision {
		d, err := core.AllowAll(ctx, session.Charge(key, 1), address.Charge("a", 2))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := both("1"); !d.Allowed || d.Limiter != "session" || d.Remaining != 1 {
		t.Error(d)
	}
	both("2")
	d := both("3")
	if d.Allowed || d.Limiter != "address" || d.RetryAfter <= 0 {
		t.Error(d)
	}
	var of []string
	for a := range d.Answers() {
		of = append(of, fmt.Sprintf("%s/%s %t %d of %d in %v", a.Limiter, a.Policy, a.Allowed, a.Remaining, a.Limit, a.Window))
	}
	if got := strings.Join(of, ", "); got != "session/session true 2 of 2 in 1m0s, address/address false 1 of 5 in 1m0s" {
		t.Error(got)
	}
	for name, charges := range map[string][]core.Charge{
		"none": nil, "no limiter": {{}}, "nil": {(*core.Limiter)(nil).Charge("k", 1)}, "twice": {session.Charge("k", 1), session.Charge("k", 1)},
		"negative": {session.Charge("k", -1)}, "another store": {session.Charge("k", 1), core.NewLimiter(new(core.MemoryStore), "x", minute(1)).Charge("k", 1)},
	} {
		if d, err := core.AllowAll(ctx, charges...); !errors.Is(err, core.ErrInvalid) || d.Allowed {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	if _, err := session.AllowN(ctx, "k", -1); !errors.Is(err, core.ErrInvalid) {
		t.Error(err)
	}
}

// A charge of no units charges nothing, alone and beside others, and asks as AllowN of 0 does: a computed 0 is free.
func TestChargesOfNothing(t *testing.T) {
	ctx, s := t.Context(), new(core.MemoryStore)
	a, b := core.NewLimiter(s, "a", minute(2)), core.NewLimiter(s, "b", minute(2))
	for i := range int64(2) {
		if d, err := core.AllowAll(ctx, a.Charge("k", 0)); err != nil || !d.Allowed || d.Remaining != 2 {
			t.Errorf("alone: %v, %v", d, err)
		}
		if d, err := core.AllowAll(ctx, a.Charge("k", 0), b.Charge("k", 1)); err != nil || !d.Allowed || d.Limiter != "b" || d.Remaining != 1-i {
			t.Errorf("beside another: %v, %v", d, err)
		}
	}
	if d, err := a.AllowN(ctx, "k", 2); err != nil || !d.Allowed || d.Remaining != 0 {
		t.Fatal(d, err)
	}
	alone, err := a.AllowN(ctx, "k", 0)
	if err != nil || alone.Allowed {
		t.Fatal(alone, err)
	}
	if d, err := core.AllowAll(ctx, a.Charge("k", 0), b.Charge("other", 1)); err != nil || d.Allowed || d.Limiter != "a" {
		t.Errorf("a key without units: %v, %v", d, err)
	}
}

func TestReceipts(t *testing.T) {
	ctx := t.Context()
	l := core.NewLimiter(new(core.MemoryStore), "tokens", core.TokenBucket(10, time.Hour))
	d, err := l.AllowN(ctx, "k", 6)
	if err != nil || !d.Allowed || d.Remaining != 4 {
		t.Fatal(d, err)
	}
	same := d
	for _, actual := range [][]int64{{1, 2}, {-1}, nil} {
		if err := d.Settle(ctx, actual...); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("%v: %v", actual, err)
		}
	}
	if err := d.Settle(ctx, 13); err != nil || d.Uncovered != 3 {
		t.Error(err, d.Uncovered)
	}
	if err := same.Refund(ctx); !errors.Is(err, core.ErrSettled) {
		t.Errorf("a copy gives back twice: %v", err)
	}
	if d, err := l.Peek(ctx, "k"); err != nil || d.Allowed || d.RetryAfter.Round(time.Minute) != 24*time.Minute {
		t.Error(d, err)
	}
	if d, err := l.Report(ctx, "k", 2); err != nil || d.Allowed || d.Uncovered != 2 || !errors.Is(d.Refund(ctx), core.ErrSettled) {
		t.Error(d, err)
	}
	if d, err := l.AllowN(ctx, "other", 0); err != nil || !d.Allowed || d.Remaining != 10 {
		t.Error(d, err)
	}
	for _, test := range []struct {
		policy   core.Policy
		ask, got int64
	}{{minute(5), 9, 5}, {minute(5), 3, 3}, {core.MinInterval(time.Hour), 9, 1}, {core.Blocked(), 9, 0}, {core.Unlimited(), 9, 9}} {
		d, n, err := core.NewLimiter(new(core.MemoryStore), "most", test.policy).AllowAtMost(ctx, "k", test.ask)
		if err != nil || n != test.got || d.Allowed != (n > 0) {
			t.Errorf("%v of %v: %d, %v, %v", test.ask, test.policy, n, d, err)
		}
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := core.NewLimiter(new(core.MemoryStore), "mails", core.TokenBucket(1, time.Minute))
		start := time.Now()
		for range 3 {
			if d, err := l.Wait(t.Context(), "k"); err != nil || !d.Allowed {
				t.Error(d, err)
			}
		}
		if took := time.Since(start); took != 2*time.Minute {
			t.Error(took)
		}
		if _, err := l.WaitN(t.Context(), "k", 2); !errors.Is(err, core.ErrNever) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Minute {
			t.Error(err)
		}
	})
}

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := core.NewSlots(new(core.MemoryStore), "jobs", 1).WithPlan("gold", 2).WithPlanFunc(func(plan string) (int64, error) {
			if plan == "silver" {
				return 3, nil
			}
			return -1, nil
		})
		first, err := s.Acquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Plan("unknown").Acquire(ctx, "k"); !errors.Is(err, core.ErrFull) {
			t.Error(err)
		}
		for _, plan := range []string{"gold", "silver"} {
			if _, err := s.Plan(plan).Acquire(ctx, "k"); err != nil {
				t.Error(plan, err)
			}
		}
		if n, err := s.Count(ctx, "k"); n != 3 || err != nil {
			t.Error(n, err)
		}
		waited := make(chan error)
		go func() {
			slot, err := s.Plan("silver").Wait(ctx, "k", 1)
			if err == nil {
				slot.Release()
			}
			waited <- err
		}()
		synctest.Wait()
		if _, err := s.Plan("silver").Wait(ctx, "k", 1); !errors.Is(err, core.ErrFull) {
			t.Errorf("a second in a queue of one: %v", err)
		}
		first.Release()
		first.Release()
		if err := <-waited; err != nil {
			t.Error(err)
		}
		short, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("enough"))
		defer cancel()
		if _, err := s.Wait(short, "k", 1); !errors.Is(err, core.ErrFull) || !strings.Contains(err.Error(), "enough") {
			t.Error(err)
		}
		if err := s.Plan("gold").Close(ctx); err != nil {
			t.Error(err)
		}
		if _, err := s.Plan("silver").Acquire(ctx, "other"); !errors.Is(err, core.ErrClosed) {
			t.Error(err)
		}
	})
}

// A charge of more than 2^53-1 units is one of as many: it is counted, and so are the other charges of its call.
func TestHugeUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), new(core.MemoryStore)
		for name, ask := range map[string]func(l *core.Limiter, n int64) (core.Decision, error){
			"AllowN": func(l *core.Limiter, n int64) (core.Decision, error) { return l.AllowN(ctx, "k", n) },
			"AllowAll": func(l *core.Limiter, n int64) (core.Decision, error) {
				once := core.NewLimiter(s, l.Name()+"-once", minute(1))
				return core.AllowAll(ctx, once.Charge("k", 1), l.Charge("k", n))
			},
			"WaitN": func(l *core.Limiter, n int64) (core.Decision, error) {
				short, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				d, err := l.WaitN(short, "k", n)
				if errors.Is(err, context.DeadlineExceeded) {
					err = nil
				}
				return d, err
			},
		} {
			interval := core.NewLimiter(s, name, core.MinInterval(time.Hour))
			for i := range 3 {
				if d, err := ask(interval, 1<<53); err != nil || d.Allowed != (i == 0) {
					t.Errorf("%s: %v, %v", name, d, err)
				}
			}
		}
		if d, err := core.NewLimiter(s, "free", core.Unlimited()).AllowN(ctx, "k", math.MaxInt64); err != nil || !d.Allowed {
			t.Error(d, err)
		}
	})
}

// What an observer takes is not the time of a call, and each slot has the time of its own store's call.
func TestTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		o := &core.Observer{
			Decided:  func(_ context.Context, e core.DecisionEvent) { took = append(took, e.Took); time.Sleep(time.Second) },
			Acquired: func(_ context.Context, e core.SlotEvent) { took = append(took, e.Took); time.Sleep(time.Second) },
		}
		ctx, s := t.Context(), &core.MemoryStore{Observers: []*core.Observer{o}}
		a, b := core.NewLimiter(s, "a", minute(1)), core.NewLimiter(s, "b", minute(1))
		if _, err := core.AllowAll(ctx, a.Charge("k", 1), b.Charge("k", 1)); err != nil {
			t.Fatal(err)
		}
		var slot backend.Slot
		claims := []backend.Claim{
			{Slots: core.NewSlots(s, "c", 1).Backend(), Key: "k"}, {Slots: core.NewSlots(s, "d", 1).Backend(), Key: "k"},
		}
		if err := slot.Take(ctx, claims); err != nil || slices.Max(took) > 0 || len(took) != 4 {
			t.Error(took, err)
		}
		held, err := core.NewSlots(s, "e", 1).Acquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, held.Release)
		waits := claims[:1]
		waits[0].Slots, waits[0].Queue = core.NewSlots(s, "e", 1).Backend(), 1
		if err := new(backend.Slot).Take(ctx, waits); err != nil || took[len(took)-1] != time.Minute {
			t.Error(took, err)
		}
	})
}

// Observers learn of each decision once, and of the keys of refusals. No print of an event has one.
func TestObservers(t *testing.T) {
	var got []string
	o := &core.Observer{
		Decided: func(_ context.Context, e core.DecisionEvent) {
			got = append(got, fmt.Sprintf("decided %s/%s %d %t %q %v %q", e.Limiter, e.Policy, e.Units, e.Allowed, e.Source, e.Err, e.Key()))
			if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), secret) {
				t.Errorf("an event prints its key: %+v", e)
			}
		},
		Settled: func(_ context.Context, e core.SettleEvent) {
			got = append(got, fmt.Sprintf("settled %s %d to %d, %d beyond", e.Limiter, e.Charged, e.Actual, e.Uncovered))
		},
		Acquired: func(_ context.Context, e core.SlotEvent) {
			got = append(got, fmt.Sprintf("acquired %s %t %q", e.Slots, e.Granted, e.Key()))
			if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), secret) {
				t.Errorf("an event prints its key: %+v", e)
			}
		},
		Released: func(slots string) { got = append(got, "released "+slots) },
	}
	ctx, s := t.Context(), &core.MemoryStore{Observers: []*core.Observer{nil, o}}
	l, slots := core.NewLimiter(s, "api", minute(2)), core.NewSlots(s, "ws", 1)
	d, _ := l.Allow(ctx, secret)
	_ = d.Refund(ctx)
	_, _ = l.AllowN(ctx, secret, 3)
	_, _ = l.Peek(ctx, secret)
	d, _ = core.NewLimiter(s, "interval", core.MinInterval(time.Hour)).AllowN(ctx, secret, 0)
	_ = d.Settle(ctx, math.MaxInt64)
	d, _ = core.NewLimiter(s, "bucket", core.TokenBucket(1, time.Hour)).Allow(ctx, secret)
	_ = d.Settle(ctx, math.MaxInt64)
	slot, _ := slots.Acquire(ctx, secret)
	_, _ = slots.Acquire(ctx, secret)
	slot.Release()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, _ = core.NewLimiter(s, "wait", core.MinInterval(time.Hour)).Wait(ended, secret)
	want := []string{
		`decided api/api 1 true "store" <nil> ""`, "settled api 1 to 0, 0 beyond", `decided api/api 3 false "policy" <nil> "` + secret + `"`,
		`decided interval/interval 0 true "store" <nil> ""`, "settled interval 0 to 1, 0 beyond",
		`decided bucket/bucket 1 true "store" <nil> ""`, "settled bucket 1 to 9007199254740991, 9007199254740990 beyond",
		`acquired ws true ""`, `acquired ws false "` + secret + `"`, "released ws", `decided wait/ 1 false "" context canceled ""`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// No print of any value has a key, whatever the verb.
func TestNoPrintHasAKey(t *testing.T) {
	ctx, s := t.Context(), new(core.MemoryStore)
	l, slots := core.NewLimiter(s, "api", minute(5)), core.NewSlots(s, "ws", 1)
	d, err := l.Allow(ctx, secret)
	slot, full := slots.Acquire(ctx, secret)
	if err != nil || full != nil {
		t.Fatal(err, full)
	}
	_, full = slots.Acquire(ctx, secret)
	_, invalid := core.AllowAll(ctx, l.Charge(secret, 1), l.Charge(secret, 1))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{d, &d, l.Charge(secret, 1), []core.Charge{l.Charge(secret, 1)}, struct{ c core.Charge }{l.Charge(secret, 1)}, l, slots, slot, full, invalid} {
			text := fmt.Sprintf(verb, v)
			if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
				t.Errorf("%s of a %T: %s", verb, v, text)
			}
		}
	}
}
