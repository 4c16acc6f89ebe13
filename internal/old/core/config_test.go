package core_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// TestFaultsNameThePolicy: the limiter's only policy shares the place of the
// limiter; one of several never does, whatever its name.
func TestFaultsNameThePolicy(t *testing.T) {
	bad, good := core.FixedWindow(core.PerMinute(-1)), core.FixedWindow(core.PerMinute(1))
	for _, test := range []struct {
		name     string
		policies []core.Policy
		want     string
	}{
		{"only one", []core.Policy{bad}, `headgate: limiter "api": a rate of -1 events: there must be at least 1`},
		{"only one, named as the limiter", []core.Policy{bad.Named("api")}, `headgate: limiter "api": a rate of -1 events: there must be at least 1`},
		{"only one, named otherwise", []core.Policy{bad.Named("x")}, `headgate: limiter "api", policy "x": a rate of -1 events: there must be at least 1`},
		{"of several", []core.Policy{good.Named("x"), bad.Named("y")}, `headgate: limiter "api", policy "y": a rate of -1 events: there must be at least 1`},
		{"of several, named as the limiter", []core.Policy{bad.Named("api"), good.Named("x")}, `headgate: limiter "api", policy "api": a rate of -1 events: there must be at least 1`},
	} {
		if _, err := core.New(newStore(), "api", test.policies...); fmt.Sprint(err) != test.want {
			t.Errorf("%s: %v\nwant %s", test.name, err, test.want)
		}
	}
}

// TestFaultsTellWhatWasWritten, not what it became.
func TestFaultsTellWhatWasWritten(t *testing.T) {
	for _, test := range []struct {
		policy core.Policy
		want   string
	}{
		{core.SlidingWindow(core.PerDay(1)).Resolution(0), "a resolution must be from 1 to 1000, is 0"},
		{core.SlidingWindow(core.PerDay(1)).Resolution(-1), "a resolution must be from 1 to 1000, is -1"},
		{core.FixedWindow(core.PerDay(1)).Resolution(0), "Resolution is for SlidingWindow"},
		{core.FixedWindow(core.PerDay(core.NoLimit + 1)), "9007199254740992 events are more than 2^53-1"},
		{core.SlidingWindow(core.Every(143 * 366 * 24 * time.Hour)), "a period must be at most 142 years"},
	} {
		want := `headgate: limiter "api": ` + test.want
		if _, err := core.New(newStore(), "api", test.policy); fmt.Sprint(err) != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// A preparedStore notes the limiters that it is told of, and refuses those of
// several policies, unless it takes all.
type preparedStore struct {
	*fake

	limiters []store.Spec
	all      bool
}

func (s *preparedStore) Prepare(l *store.Limiter) error {
	s.limiters = append(s.limiters, *l.Spec())
	if len(l.Spec().Policies) > 1 && !s.all {
		return errStore
	}
	return s.fake.Prepare(l)
}

// TestPrepare: the store sees each limiter once, and none that is faulty.
func TestPrepare(t *testing.T) {
	s := &preparedStore{fake: &fake{t: t}}
	window := core.FixedWindow(core.PerMinute(1))
	_, err := core.New(s, "api", window)
	if err != nil || len(s.limiters) != 1 || s.limiters[0].Name != "api" || s.limiters[0].Policies[0].Name != "api" {
		t.Errorf("told of %v, %v; want the limiter", s.limiters, err)
	}
	if _, err := core.New(s, "api", window.Named("é")); err == nil || len(s.limiters) != 1 {
		t.Errorf("told of %d limiters, one of them faulty: %v", len(s.limiters), err)
	}
	_, err = core.New(s, "api", window.Named("a"), window.Named("b"))
	var fault *core.ConfigError
	if !errors.Is(err, errStore) || !errors.As(err, &fault) || fault.Limiter != "api" || fault.Policy != "" {
		t.Errorf("refused with %v", err)
	}
}

// TestWithReportsWhatNewDoes.
func TestWithReportsWhatNewDoes(t *testing.T) {
	s := &preparedStore{fake: &fake{t: t}}
	window := core.FixedWindow(core.PerMinute(1))
	l := newLimiter(t, s, "api", window.Named("a"))
	for _, policies := range [][]core.Policy{
		nil,
		{window.Named("x")},
		{window, window},
		{window.Named("a"), window.Named("b")}, // the store refuses
		{core.MinInterval(1).Named("é"), core.Blocked().Named("api"), core.TokenBucket(core.PerHour(0), 0)},
		make([]core.Policy, 9),
	} {
		_, want := core.New(s, "api", policies...)
		if _, err := l.With(policies...); fmt.Sprint(err) != fmt.Sprint(want) {
			t.Errorf("With: %v\nNew: %v", err, want)
		}
	}
}

// TestWithForgottenNames: a plan of several policies, or of a limiter that has
// several, has one of the names, or nothing that was used would count.
func TestWithForgottenNames(t *testing.T) {
	window := core.FixedWindow(core.PerMinute(1))
	burst, daily := window.Named("burst"), window.Named("daily")
	s := &preparedStore{fake: &fake{t: t}, all: true}
	for _, test := range []struct {
		old, plan []core.Policy
		forgotten string // the names; empty: the plan is right
	}{
		{[]core.Policy{burst, daily}, []core.Policy{window}, `"burst" or "daily"`},
		{[]core.Policy{burst, daily}, []core.Policy{window.Named("x"), window.Named("y")}, `"burst" or "daily"`},
		{[]core.Policy{window}, []core.Policy{burst, daily}, `"api"`},
		{[]core.Policy{burst, daily}, []core.Policy{daily}, ""},
		{[]core.Policy{window}, []core.Policy{window.Named("api"), daily}, ""},
		{[]core.Policy{window}, []core.Policy{daily}, ""},
		{[]core.Policy{burst, daily}, []core.Policy{core.Unlimited()}, ""},
		{[]core.Policy{burst, daily}, []core.Policy{core.Blocked().Named("x")}, ""},
		{[]core.Policy{core.Blocked()}, []core.Policy{burst, daily}, ""},
	} {
		s.limiters = nil
		plan, err := newLimiter(t, s, "api", test.old...).With(test.plan...)
		if test.forgotten == "" {
			if err != nil {
				t.Errorf("%v with %v: %v", test.old, test.plan, err)
			}
			continue
		}
		var fault *core.ConfigError
		want := "none of the policies is named " + test.forgotten + ", so existing usage would be lost"
		if plan != nil || !errors.As(err, &fault) || fault.Limiter != "api" || !strings.Contains(fault.Error(), want) {
			t.Errorf("%v with %v: %v, want %s", test.old, test.plan, err, want)
		}
		if len(s.limiters) != 1 {
			t.Error("the store was told of a faulty limiter")
		}
	}
}

// TestWithAnotherAlgorithm: a plan that counts otherwise than one it shares usage with is
// refused, even if there is one between them that counts nothing.
func TestWithAnotherAlgorithm(t *testing.T) {
	window, log := core.FixedWindow(core.PerMinute(1)), core.SlidingLog(core.PerMinute(1))
	bucket := core.TokenBucket(core.PerMinute(1), 1)
	s := &preparedStore{fake: &fake{t: t}, all: true}
	for _, test := range []struct {
		plans [][]core.Policy // each made from the one before
		where string          // of the fault in the last; "-": there is none
	}{
		{[][]core.Policy{{window}, {log}}, ""},
		{[][]core.Policy{{window}, {core.SlidingWindow(core.PerMinute(1))}}, ""},
		{[][]core.Policy{{window}, {core.Unlimited()}, {log}}, ""},
		{[][]core.Policy{{window}, {core.Blocked()}, {core.Unlimited()}, {bucket}}, ""},
		{[][]core.Policy{{window}, {log.Named("other")}, {bucket.Named("other")}}, `"other"`},
		{[][]core.Policy{{window}, {log.Named("other")}, {bucket}}, ""},
		{[][]core.Policy{{core.Unlimited()}, {log}, {window}}, ""},
		{[][]core.Policy{{window.Named("a"), log.Named("b")}, {window.Named("b"), log.Named("a")}}, `"b"`},
		{[][]core.Policy{{window.Named("a"), log.Named("b")}, {window.Named("a"), bucket.Named("b")}}, `"b"`},

		{[][]core.Policy{{window}, {core.FixedWindow(core.PerDay(2)).CountDenied()}}, "-"},
		{[][]core.Policy{{window}, {log.Named("other")}}, "-"},
		{[][]core.Policy{{window}, {core.Blocked()}, {window}}, "-"},
		{[][]core.Policy{{core.Unlimited()}, {log}, {core.Unlimited()}}, "-"},
		{[][]core.Policy{{core.Unlimited()}, {core.Blocked()}, {bucket}}, "-"},
		{[][]core.Policy{{window.Named("a"), log.Named("b")}, {log.Named("c"), window.Named("a")}, {log.Named("b"), window.Named("a")}}, "-"},
	} {
		l, err := newLimiter(t, s, "api", test.plans[0]...), error(nil)
		for i, plan := range test.plans[1:] {
			if l, err = l.With(plan...); err != nil && i+2 < len(test.plans) {
				t.Fatalf("%v: plan %d: %v", test.plans, i+1, err)
			}
		}
		var fault *core.ConfigError
		switch {
		case test.where == "-":
			if err != nil {
				t.Errorf("%v: %v", test.plans, err)
			}
		case l != nil || !errors.As(err, &fault) || fault.Policy != test.where || !strings.Contains(err.Error(), "another name with Named"):
			t.Errorf("%v: %v, want a fault of policy %s", test.plans, err, test.where)
		}
	}
}

// TestSolePolicyTakesTheLimitersName, in the limiter and not in the caller's slice.
func TestSolePolicyTakesTheLimitersName(t *testing.T) {
	given := []core.Policy{core.FixedWindow(core.PerMinute(10))}
	l := newLimiter(t, newStore(), "api", given...)
	if given[0].Name() != "" || l.Policies()[0] != given[0].Named("api") {
		t.Errorf("given %v, the limiter has %v", given[0], l.Policies()[0])
	}
}

func TestRates(t *testing.T) {
	for _, test := range []struct{ got, want core.Rate }{
		{core.PerSecond(5), core.Rate{Events: 5, Per: time.Second}},
		{core.PerMinute(6), core.Rate{Events: 6, Per: time.Minute}},
		{core.PerHour(7), core.Rate{Events: 7, Per: time.Hour}},
		{core.PerDay(8), core.Rate{Events: 8, Per: 24 * time.Hour}},
		{core.Every(9 * time.Second), core.Rate{Events: 1, Per: 9 * time.Second}},
	} {
		if test.got != test.want {
			t.Errorf("%v, want %v", test.got, test.want)
		}
	}
}

// TestPolicyMethods return a changed copy.
func TestPolicyMethods(t *testing.T) {
	p := core.SlidingWindow(core.PerHour(10)).Named("x")
	before := p
	for name, changed := range map[string]core.Policy{
		"Named":       p.Named("y"),
		"Resolution":  p.Resolution(3),
		"NeverOver":   p.NeverOver(),
		"CountDenied": p.CountDenied(),
		"Share":       p.Share(2),
	} {
		if changed == before || p != before {
			t.Errorf("%s: %v became %v, and the copy is %v", name, before, p, changed)
		}
	}
}
