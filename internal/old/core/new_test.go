package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A valueStore is a store that cannot be compared.
type valueStore struct {
	*fake

	_ []string
}

// A funcStore is one whose nil value is not nil as an interface.
type funcStore func()

func (funcStore) Ask(context.Context, *store.Question) error { return nil }
func (funcStore) Observer() *store.Observer                  { return nil }
func (funcStore) Prepare(*store.Limiter) error               { return nil }

// A pickyStore accepts nothing.
type pickyStore struct{ *fake }

func (pickyStore) Prepare(*store.Limiter) error { return errors.New("not here") }

// TestNewFaults: everything that is wrong is reported at once, with its place.
func TestNewFaults(t *testing.T) {
	type policies = []core.Policy
	const year = 365 * 24 * time.Hour
	ok := core.FixedWindow(core.PerMinute(1))
	many := func(n int) (ps policies) {
		for i := range n {
			ps = append(ps, ok.Named(string(rune('a'+i))))
		}
		return ps
	}
	var none *fake
	for _, test := range []struct {
		name     string
		store    core.Store
		limiter  string
		policies policies
		faults   []string // "policy: part of what is wrong", in order
	}{
		{"no store", nil, "api", policies{ok}, []string{": the store is nil"}},
		{"a nil pointer", none, "api", policies{ok}, []string{": the store is a nil *core_test.fake"}},
		{"a store by value", valueStore{}, "api", policies{ok}, []string{": cannot be compared: use a pointer"}},
		{"a store of a func", funcStore(nil), "api", policies{ok}, []string{": cannot be compared"}},
		{"a store that refuses", pickyStore{&fake{t: t}}, "api", policies{ok}, []string{": not here"}},

		{"no name", newStore(), "", policies{ok}, []string{": the name is empty"}},
		{"a long name", newStore(), strings.Repeat("n", 65), policies{ok}, []string{": 65 characters, more than 64"}},
		{"not ASCII", newStore(), "café", policies{ok}, []string{": only printable ASCII"}},
		{"a control character", newStore(), "a\nb", policies{ok}, []string{": the byte 0x0a"}},
		{"a NUL", newStore(), "a\x00b", policies{ok}, []string{": the byte 0x00"}},
		{"DEL", newStore(), "a\x7f", policies{ok}, []string{": the byte 0x7f"}},

		{"no policy", newStore(), "api", nil, []string{": 1 to 8 policies, not 0"}},
		{"nine policies", newStore(), "api", many(9), []string{": 1 to 8 policies, not 9"}},
		{"the zero policy", newStore(), "api", policies{{}}, []string{": no policy: use TokenBucket"}},
		{"a policy's long name", newStore(), "api", policies{ok.Named(strings.Repeat("p", 65))}, []string{`"` + strings.Repeat("p", 65) + `": 65 characters`}},
		{"a policy's name not ASCII", newStore(), "api", policies{ok.Named("é")}, []string{`"é": only printable ASCII`}},
		{"several without names", newStore(), "api", policies{ok, ok.Named("b"), ok}, []string{
			"#1: needs a name: use Named", "#3: needs a name: use Named",
		}},
		{"one name twice", newStore(), "api", policies{ok.Named("a"), ok.Named("b"), ok.Named("a")}, []string{`"a": two policies have this name`}},

		{"half a microsecond", newStore(), "api", policies{core.FixedWindow(core.Every(500 * time.Nanosecond))}, []string{": whole number of microseconds"}},
		{"1.5 microseconds", newStore(), "api", policies{core.MinInterval(1500 * time.Nanosecond)}, []string{": whole number of microseconds"}},
		{"no distance", newStore(), "api", policies{core.MinInterval(0)}, []string{": a period must be positive"}},
		{"a negative distance", newStore(), "api", policies{core.MinInterval(-time.Second)}, []string{": a period must be positive"}},
		{"no events", newStore(), "api", policies{core.SlidingLog(core.PerHour(0))}, []string{": a rate of 0 events"}},
		{"negative events", newStore(), "api", policies{core.FixedWindow(core.PerDay(-5))}, []string{": a rate of -5 events"}},
		{"the zero rate", newStore(), "api", policies{core.SlidingWindow(core.Rate{})}, []string{
			": a rate of 0 events", ": a period must be positive",
		}},
		{"no burst", newStore(), "api", policies{core.TokenBucket(core.PerSecond(1), 0)}, []string{": a burst must be at least 1, is 0"}},
		{"a negative burst", newStore(), "api", policies{core.TokenBucket(core.PerSecond(1), -1)}, []string{": a burst must be at least 1, is -1"}},
		{"leased for no time", newStore(), "api", policies{core.TokenBucket(core.PerSecond(1), 100).Leasable(0)}, []string{": Leasable(0s) needs a positive"}},
		{"leased for long", newStore(), "api", policies{core.TokenBucket(core.PerSecond(100), 200).Leasable(time.Second)}, []string{": a burst of 200 is too small for leases of 1s, in which 100 units refill: it must be at least 400, or the time at most 500ms"}},
		{"too small to be leased", newStore(), "api", policies{core.TokenBucket(core.PerSecond(1), 1).Leasable(time.Millisecond)}, []string{": a burst of 1 is too small to be leased"}},
		{"a window that is leasable", newStore(), "api", policies{ok.Leasable(time.Second)}, []string{": Leasable is for TokenBucket"}},
		{"too fast", newStore(), "api", policies{core.TokenBucket(core.PerSecond(1_000_001), 1)}, []string{": at most 1,000,000 a second"}},
		{"too long a log", newStore(), "api", policies{core.SlidingLog(core.PerDay(1<<20 + 1))}, []string{": use SlidingWindow"}},
		{"resolution 0", newStore(), "api", policies{core.SlidingWindow(core.PerDay(1)).Resolution(0)}, []string{": a resolution must be from 1 to 1000"}},
		{"resolution 1001", newStore(), "api", policies{core.SlidingWindow(core.PerDay(1)).Resolution(1001)}, []string{": a resolution must be from 1 to 1000, is 1001"}},
		{"denied in a bucket", newStore(), "api", policies{core.TokenBucket(core.PerDay(1), 1).CountDenied()}, []string{": CountDenied is for"}},
		{"denied apart", newStore(), "api", policies{core.MinInterval(time.Second).CountDenied()}, []string{": CountDenied is for"}},
		{"resolution of a fixed window", newStore(), "api", policies{ok.Resolution(2)}, []string{": Resolution is for SlidingWindow"}},
		{"resolution 0 of a fixed window", newStore(), "api", policies{ok.Resolution(0)}, []string{": Resolution is for SlidingWindow"}},
		{"shared by none", newStore(), "api", policies{ok.Share(0)}, []string{": Share(0) needs at least 1 server"}},
		{"shared by fewer", newStore(), "api", policies{core.MinInterval(time.Second).Share(-1)}, []string{": Share(-1) needs at least 1 server"}},
		{"Unlimited shared by none", newStore(), "api", policies{core.Unlimited().Share(0)}, []string{": Share(0) needs at least 1 server"}},
		{"a distance shared by too many", newStore(), "api", policies{core.MinInterval(100 * year).Share(16384)}, []string{": Share(16384) makes the period longer than 142 years"}},
		{"a distance shared twice", newStore(), "api", policies{core.MinInterval(100 * year).Share(1).Share(2)}, []string{": Share(2) makes the period longer than 142 years"}},
		{"a bucket shared by too many", newStore(), "api", policies{core.TokenBucket(core.PerDay(1), 5).Share(1 << 62)}, []string{": makes the period longer than 142 years"}},
		{"a negative distance shared", newStore(), "api", policies{core.MinInterval(-100 * year).Share(1 << 62)}, []string{": a period must be positive"}},
		{"a log never over", newStore(), "api", policies{core.SlidingLog(core.PerDay(1)).NeverOver()}, []string{": NeverOver is for SlidingWindow"}},

		{"Unlimited with another", newStore(), "api", policies{core.Unlimited().Named("u"), ok.Named("b")}, []string{`"u": must be the only policy`}},
		{"Blocked with another", newStore(), "api", policies{ok.Named("b"), core.Blocked().Named("x")}, []string{`"x": must be the only policy`}},

		{"everything", nil, "", policies{
			core.TokenBucket(core.PerSecond(-1), 0).Resolution(3),
			core.MinInterval(time.Nanosecond).CountDenied().Named("é"),
			core.SlidingWindow(core.PerDay(5)).Resolution(0).Named("w"),
			core.Unlimited().Named("w"),
		}, []string{
			": the store is nil",
			": the name is empty",
			"#1: needs a name: use Named",
			"#1: Resolution is for SlidingWindow",
			"#1: a rate of -1 events",
			"#1: a burst must be at least 1, is 0",
			`"é": only printable ASCII`,
			`"é": whole number of microseconds`,
			`"é": CountDenied is for`,
			`"w": a resolution must be from 1 to 1000`,
			`"w": two policies have this name`,
			`"w": must be the only policy`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := core.New(test.store, test.limiter, test.policies...)
			if err == nil || l != nil {
				t.Fatalf("New = %v, %v", l, err)
			}
			var first *core.ConfigError
			if !errors.As(err, &first) {
				t.Fatalf("%T is not a *ConfigError: %v", err, err)
			}
			var joined interface{ Unwrap() []error }
			if !errors.As(err, &joined) {
				t.Fatalf("%T joins nothing: %v", err, err)
			}
			faults := joined.Unwrap()
			for i, want := range test.faults {
				if i >= len(faults) {
					break
				}
				var fault *core.ConfigError
				if !errors.As(faults[i], &fault) {
					t.Fatalf("fault %d is a %T", i, faults[i])
				}
				place, what, _ := strings.Cut(want, ": ")
				if fault.Limiter != test.limiter || fault.Policy != place || !strings.Contains(fault.Error(), what) {
					t.Errorf("fault %d is %q, want one of %q with %q", i, fault, place, what)
				}
			}
			if len(faults) != len(test.faults) {
				t.Errorf("%d faults, want %d:\n%v", len(faults), len(test.faults), err)
			}
		})
	}
}

// TestNewAccepts what is at the edge of what is refused.
func TestNewAccepts(t *testing.T) {
	ok := core.FixedWindow(core.PerMinute(1))
	var eight []core.Policy
	for i := range 8 {
		eight = append(eight, ok.Named(string(rune('a'+i))))
	}
	for _, test := range []struct {
		name     string
		policies []core.Policy
	}{
		{"a", []core.Policy{ok}},
		{strings.Repeat("n", 64), []core.Policy{ok.Named(strings.Repeat("p", 64))}},
		{` !"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`", []core.Policy{ok}},
		{"api", eight},
		{"api", []core.Policy{ok.Named("api")}},
		{"api", []core.Policy{ok.Named("api"), ok.Named("other")}},
		{"api", []core.Policy{core.Unlimited()}},
		{"api", []core.Policy{core.Blocked()}},
		{"api", []core.Policy{core.MinInterval(time.Microsecond)}},
		{"api", []core.Policy{core.FixedWindow(core.Rate{Events: core.NoLimit, Per: time.Microsecond})}},
		{"api", []core.Policy{core.SlidingLog(core.Rate{Events: 1 << 10, Per: 142 * 365 * 24 * time.Hour})}},
		{"api", []core.Policy{core.TokenBucket(core.PerSecond(1_000_000), 1_000_000)}},
		{"api", []core.Policy{core.TokenBucket(core.PerDay(1_000_000), 1_000_000)}},
		{"api", []core.Policy{core.TokenBucket(core.Rate{Events: 1_000_000_000, Per: 30 * 24 * time.Hour}, 1_000_000_000)}},
		{"api", []core.Policy{core.TokenBucket(core.Every(366*24*time.Hour), 1)}},
		{"api", []core.Policy{core.SlidingWindow(core.PerSecond(7)).Resolution(1000).NeverOver().CountDenied()}},
	} {
		l, err := core.New(newStore(), test.name, test.policies...)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := l.Name(); got != test.name {
			t.Errorf("Name() = %q, want %q", got, test.name)
		}
		ps := l.Policies()
		if len(ps) != len(test.policies) {
			t.Errorf("%d policies, want %d", len(ps), len(test.policies))
		}
		for i, p := range ps {
			want := test.policies[i].Name()
			if want == "" {
				want = test.name // the sole policy takes the limiter's
			}
			if p.Name() != want {
				t.Errorf("policy %d is %q, want %q", i, p.Name(), want)
			}
		}
	}
}

// TestPoliciesAreCopies: what is handed over or out does not change a limiter.
func TestPoliciesAreCopies(t *testing.T) {
	given := []core.Policy{core.FixedWindow(core.PerMinute(1)).Named("a"), core.SlidingLog(core.PerMinute(1)).Named("b")}
	l := newLimiter(t, newStore(), "api", given...)
	given[0] = core.Policy{}
	l.Policies()[1] = core.Policy{}
	if ps := l.Policies(); ps[0].Name() != "a" || ps[1].Name() != "b" {
		t.Errorf("policies are %v", ps)
	}
}

// A countingMemory is a layer that embeds a store of its own type, with all its methods.
type countingMemory struct {
	*memstore.Store

	decisions int
}

func (c *countingMemory) Ask(ctx context.Context, q *store.Question) error {
	c.decisions++
	return c.Store.Ask(ctx, q)
}

// TestLayersAreNotPassedOver, however they embed the store.
func TestLayersAreNotPassedOver(t *testing.T) {
	s := &countingMemory{Store: memstore.New(memstore.Config{})}
	l := newLimiter(t, s, "api", core.FixedWindow(perAge(10)))
	for i := range 5 {
		if d := allow(t, l, "key", 1); !d.Allowed || s.decisions != i+1 {
			t.Errorf("call %d: %v, %d decisions of the layer", i+1, d, s.decisions)
		}
	}
}
