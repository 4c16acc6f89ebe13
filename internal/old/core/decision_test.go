package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

const sec = int64(time.Second / time.Microsecond)

// TestStrictest: a decision carries the strictest numbers of all policies and
// names the one that decided.
func TestStrictest(t *testing.T) {
	three := []core.Policy{
		core.SlidingLog(core.PerMinute(10)).Named("minute"),
		core.TokenBucket(core.PerSecond(1), 3).Named("burst"),
		core.MinInterval(time.Second).Named("pace"),
	}
	reading := func(remaining, next, reset, retry int64) step.Reading {
		return step.Reading{Remaining: remaining, NextAfter: next * sec, ResetAfter: reset * sec, RetryAfter: retry * sec}
	}
	forever := step.Reading{RetryAfter: step.Never}
	for _, test := range []struct {
		name    string
		allowed bool
		says    []say
		want    core.Decision // its exported fields
	}{
		{"allowed: the least remaining", true,
			[]say{{true, reading(5, 1, 60, 0)}, {true, reading(2, 1, 3, 0)}, {true, reading(4, 1, 1, 0)}},
			core.Decision{Policy: "burst", Limit: 3, Remaining: 2, ResetAfter: time.Minute}},
		{"allowed: the first of equals", true,
			[]say{{true, reading(2, 9, 9, 0)}, {true, reading(2, 1, 1, 0)}, {true, reading(2, 5, 5, 0)}},
			core.Decision{Policy: "minute", Limit: 10, Remaining: 2, ResetAfter: 9 * time.Second}},
		{"refused: the longest wait", false,
			[]say{{false, reading(0, 7, 60, 7)}, {true, reading(2, 1, 1, 0)}, {false, reading(0, 1, 1, 1)}},
			core.Decision{Policy: "minute", Limit: 10, Remaining: 0, ResetAfter: time.Minute, RetryAfter: 7 * time.Second}},
		{"refused: by the last", false,
			[]say{{true, reading(9, 1, 60, 0)}, {true, reading(2, 1, 1, 0)}, {false, reading(0, 1, 1, 1)}},
			core.Decision{Policy: "pace", Limit: 1, Remaining: 0, ResetAfter: time.Minute, RetryAfter: time.Second}},
		{"refused: the first of equals", false,
			[]say{{true, reading(9, 1, 60, 0)}, {false, reading(1, 4, 4, 4)}, {false, reading(0, 4, 4, 4)}},
			core.Decision{Policy: "burst", Limit: 3, Remaining: 0, ResetAfter: time.Minute, RetryAfter: 4 * time.Second}},
		{"refused: the least remaining may be another's", false,
			[]say{{true, reading(1, 1, 60, 0)}, {false, reading(2, 4, 4, 4)}, {true, reading(1, 0, 0, 0)}},
			core.Decision{Policy: "burst", Limit: 3, Remaining: 1, ResetAfter: time.Minute, RetryAfter: 4 * time.Second}},
		{"refused: for ever", false,
			[]say{{false, reading(0, 1, 60, 60)}, {false, forever}, {true, reading(1, 0, 0, 0)}},
			core.Decision{Policy: "burst", Limit: 3, Remaining: 0, ResetAfter: time.Minute, RetryAfter: core.Never}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newFakeStore(t)
			s.answer = says(test.allowed, test.says...)
			d := allow(t, newLimiter(t, s, "api", three...), "key", 1)
			test.want.Allowed, test.want.Source, test.want.Limiter = test.allowed, core.SourceStore, "api"
			if got, want := fields(d), fields(test.want); got != want {
				t.Errorf("decision %+v\nwant     %+v", got, want)
			}
			if d.Len() != 3 {
				t.Fatalf("%d answers", d.Len())
			}
			for i, s := range test.says {
				want := core.Answer{
					Limiter: "api", Policy: three[i].Name(), Allowed: s.admitted, Limit: three[i].Limit(), Window: three[i].Window(), Remaining: s.Remaining,
					NextAfter: micros(s.NextAfter), ResetAfter: micros(s.ResetAfter), RetryAfter: micros(s.RetryAfter),
				}
				if got := d.Answer(i); got != want {
					t.Errorf("answer %d is %+v\nwant        %+v", i, got, want)
				}
			}
		})
	}
}

func newFakeStore(t *testing.T) *fake { t.Helper(); return &fake{t: t} }

// micros is a span of package step as a duration.
func micros(us int64) time.Duration {
	if us == step.Never {
		return core.Never
	}
	return time.Duration(us) * time.Microsecond
}

// public are the exported fields of a decision.
type public struct {
	Allowed                bool
	Source                 core.Source
	Limiter, Policy        string
	Limit, Remaining       int64
	ResetAfter, RetryAfter time.Duration
}

func fields(d core.Decision) public {
	return public{d.Allowed, d.Source, d.Limiter, d.Policy, d.Limit, d.Remaining, d.ResetAfter, d.RetryAfter}
}

// TestFieldsAreCovered keeps public in step with Decision.
func TestFieldsAreCovered(t *testing.T) {
	exported := 0
	for _, f := range reflect.VisibleFields(reflect.TypeFor[core.Decision]()) {
		if f.IsExported() {
			exported++
		}
	}
	if got := reflect.TypeFor[public]().NumField(); got != exported {
		t.Errorf("public has %d fields, Decision exports %d", got, exported)
	}
}

// TestZeroDecision refuses, answers nothing and has nothing to settle.
func TestZeroDecision(t *testing.T) {
	var d core.Decision
	if d.Allowed || d.Len() != 0 {
		t.Errorf("%+v", d)
	}
	if _, err := d.Settle(t.Context(), 1); !errors.Is(err, core.ErrSettled) {
		t.Errorf("Settle: %v", err)
	}
	if err := d.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
		t.Errorf("Refund: %v", err)
	}
	if got := d.String(); !strings.HasPrefix(got, "refused") {
		t.Errorf("String() = %q", got)
	}
	for _, i := range []int{-1, 0, 1} {
		func() {
			defer func() {
				if got, want := recover(), fmt.Sprintf("headgate: answer %d of 0", i); got != want {
					t.Errorf("Answer(%d) panics with %v, want %q", i, got, want)
				}
			}()
			d.Answer(i)
		}()
	}
}

// TestCost: less than 0 units are an error, and not asked.
func TestCost(t *testing.T) {
	l := newLimiter(t, newFakeStore(t), "api", core.FixedWindow(core.PerMinute(10)))
	for _, n := range []int64{-1, -1 << 63} {
		if d, err := l.AllowN(t.Context(), "key", n); !errors.Is(err, core.ErrCost) || d.Allowed {
			t.Errorf("AllowN(%d) = %v, %v", n, d, err)
		}
		if d, err := core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "key", N: n}); !errors.Is(err, core.ErrCost) || d.Allowed {
			t.Errorf("AllowAll(%d) = %v, %v", n, d, err)
		}
	}
}

// TestByNumbers: what the numbers alone decide is not asked.
func TestByNumbers(t *testing.T) {
	for _, test := range []struct {
		name     string
		policies []core.Policy
		n        int64
		want     core.Decision
	}{
		{"above a window", []core.Policy{core.FixedWindow(core.PerMinute(10))}, 11,
			core.Decision{Policy: "api", Limit: 10, RetryAfter: core.Never}},
		{"above a burst", []core.Policy{core.TokenBucket(core.PerMinute(10), 3)}, 4,
			core.Decision{Policy: "api", Limit: 3, RetryAfter: core.Never}},
		{"above one of several", []core.Policy{core.FixedWindow(core.PerMinute(10)).Named("a"), core.SlidingLog(core.PerMinute(5)).Named("b")}, 6,
			core.Decision{Policy: "b", Limit: 5, RetryAfter: core.Never}},
		{"above the first of several", []core.Policy{core.SlidingLog(core.PerMinute(5)).Named("a"), core.FixedWindow(core.PerMinute(10)).Named("b")}, 6,
			core.Decision{Policy: "a", Limit: 5, RetryAfter: core.Never}},
		{"above all numbers", []core.Policy{core.MinInterval(time.Second)}, 1 << 62,
			core.Decision{Policy: "api", Limit: 1, RetryAfter: core.Never}},
		{"Unlimited", []core.Policy{core.Unlimited()}, 1,
			core.Decision{Allowed: true, Policy: "api", Limit: core.NoLimit, Remaining: core.NoLimit}},
		{"Unlimited and much", []core.Policy{core.Unlimited().Named("all")}, core.NoLimit,
			core.Decision{Allowed: true, Policy: "all", Limit: core.NoLimit, Remaining: core.NoLimit}},
		{"Unlimited and too much", []core.Policy{core.Unlimited()}, core.NoLimit + 1,
			core.Decision{Policy: "api", Limit: core.NoLimit, Remaining: core.NoLimit, RetryAfter: core.Never}},
		{"Blocked", []core.Policy{core.Blocked()}, 1,
			core.Decision{Policy: "api", RetryAfter: core.Never}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLimiter(t, newFakeStore(t), "api", test.policies...)
			test.want.Source, test.want.Limiter = core.SourcePolicy, "api"
			if d := allow(t, l, "key", test.n); fields(d) != fields(test.want) || d.Len() != len(test.policies) {
				t.Errorf("%+v\nwant %+v", fields(d), fields(test.want))
			}
		})
	}
	blocked := newLimiter(t, newFakeStore(t), "api", core.Blocked())
	if err := blocked.Reset(t.Context(), "key"); err != nil {
		t.Errorf("Reset: %v", err)
	}
	if d, err := blocked.Peek(t.Context(), "key"); err != nil || d.Allowed {
		t.Errorf("Peek = %v, %v", d, err)
	}
	unlimited := newLimiter(t, newFakeStore(t), "api", core.Unlimited())
	d := allow(t, unlimited, "key", 5)
	if uncovered, err := d.Settle(t.Context(), 7); err != nil || uncovered != 0 {
		t.Errorf("Settle = %d, %v", uncovered, err)
	}
	if err := d.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
		t.Errorf("Refund of what was settled: %v", err)
	}
}

// TestStoreErrors are passed on, and no decision was made.
func TestStoreErrors(t *testing.T) {
	s := newFakeStore(t)
	s.answer = func([]store.Charge, bool) (store.Result, error) {
		r, _ := says(true, say{true, step.Reading{Remaining: 9}})(nil, false)
		return r, errStore
	}
	s.reset = func(string) error { return errStore }
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(10)))
	other := newLimiter(t, s, "other", core.FixedWindow(core.PerMinute(10)))
	ctx := t.Context()
	for name, ask := range map[string]func() (core.Decision, error){
		"Allow": func() (core.Decision, error) { return l.Allow(ctx, "key") },
		"Peek":  func() (core.Decision, error) { return l.Peek(ctx, "key") },
		"Wait":  func() (core.Decision, error) { return l.Wait(ctx, "key") },
		"AllowAll": func() (core.Decision, error) {
			return core.AllowAll(ctx, core.Charge{Limiter: l, Key: "a", N: 1}, core.Charge{Limiter: other, Key: "b", N: 1})
		},
	} {
		d, err := ask()
		if !errors.Is(err, errStore) || d.Allowed || d.Len() != 0 || fields(d) != (public{}) {
			t.Errorf("%s = %+v, %v", name, d, err)
		}
	}
	if err := l.Reset(ctx, "key"); !errors.Is(err, errStore) {
		t.Errorf("Reset: %v", err)
	}
}

// TestStoreIsAskedWhatWasAsked: the key, the number and the kind of question.
func TestStoreIsAskedWhatWasAsked(t *testing.T) {
	type question struct {
		key  string
		n    int64
		peek bool
	}
	var got question
	s := newFakeStore(t)
	s.answer = func(cs []store.Charge, peek bool) (store.Result, error) {
		got = question{cs[0].Key, cs[0].N, peek}
		return says(true, say{true, step.Reading{Remaining: 9}})(cs, peek)
	}
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(10)))
	for _, test := range []struct {
		name string
		ask  func(key string) (core.Decision, error)
		want question
	}{
		{"Allow", func(key string) (core.Decision, error) { return l.Allow(t.Context(), key) }, question{"a\xffb", 1, false}},
		{"AllowN", func(key string) (core.Decision, error) { return l.AllowN(t.Context(), key, 10) }, question{"a\xffb", 10, false}},
		{"Peek", func(key string) (core.Decision, error) { return l.Peek(t.Context(), key) }, question{"a\xffb", 1, true}},
		{"WaitN", func(key string) (core.Decision, error) { return l.WaitN(t.Context(), key, 3) }, question{"a\xffb", 3, false}},
		{"AllowAll of one", func(key string) (core.Decision, error) {
			return core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: key, N: 4})
		}, question{"a\xffb", 4, false}},
	} {
		if _, err := test.ask("a\xffb"); err != nil {
			t.Fatal(err)
		}
		if got != test.want {
			t.Errorf("%s asked %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestKeysAreNotPrinted, however a decision or an error is.
func TestKeysAreNotPrinted(t *testing.T) {
	const secret = "4111-1111-1111-1111"
	s := newStore()
	a := newLimiter(t, s, "a", core.FixedWindow(perAge(2)))
	b := newLimiter(t, s, "b", core.FixedWindow(perAge(1)).Named("x"), core.SlidingLog(core.PerMinute(1)).Named("y"), core.MinInterval(time.Hour).Named("z"))
	ctx := t.Context()
	both := func() (core.Decision, error) {
		return core.AllowAll(ctx, core.Charge{Limiter: a, Key: secret, N: 1}, core.Charge{Limiter: b, Key: secret + "b", N: 1})
	}
	one, err1 := a.Allow(ctx, secret)
	all, err2 := both()
	refused, err3 := both()
	if err := errors.Join(err1, err2, err3); err != nil || !one.Allowed || !all.Allowed || refused.Allowed {
		t.Fatal(one, all, refused, err)
	}
	settled, err := core.AllowAll(ctx, core.Charge{Limiter: a, Key: secret + "2", N: 1}, core.Charge{Limiter: b, Key: secret + "3", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := settled.Refund(ctx); err != nil {
		t.Fatal(err)
	}
	var faults []error
	_, err = core.AllowAll(ctx, core.Charge{Limiter: a, Key: secret, N: 1}, core.Charge{Limiter: a, Key: secret, N: 1})
	faults = append(faults, err)
	_, err = core.AllowAll(ctx, core.Charge{Limiter: a, Key: secret, N: -1})
	faults = append(faults, err)
	_, err = core.AllowAll(ctx, core.Charge{Limiter: a, Key: secret, N: 1}, core.Charge{Key: secret, N: 1})
	faults = append(faults, err)
	_, err = a.WaitN(ctx, secret, 3)
	faults = append(faults, err)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = a.WaitN(short, secret, 2)
	faults = append(faults, err)
	_, err = all.Settle(ctx, 1)
	faults = append(faults, err)
	_, err = all.Settle(ctx, 1, -1)
	faults = append(faults, err)

	type inside struct {
		Exported   core.Decision
		unexported core.Decision
		pointer    *core.Decision
		list       []core.Decision
		any        any
	}
	var printed bytes.Buffer
	show := func(v any) {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&printed, verb+"\n", v)
		}
		fmt.Fprintln(&printed, v)
		slog.New(slog.NewJSONHandler(&printed, nil)).Info("decided", "d", v)
		slog.New(slog.NewTextHandler(&printed, nil)).Info("decided", "d", v)
	}
	for _, d := range []core.Decision{one, all, refused, settled} {
		show(d)
		show(&d)
		show(inside{d, d, &d, []core.Decision{d}, d})
		show(map[string]any{"d": d})
		show(struct{ error }{fmt.Errorf("%v", d)})
		show(d.Answer(0))
	}
	for i, err := range faults {
		if err == nil {
			t.Errorf("fault %d is none", i)
		}
		show(err)
	}
	for _, hidden := range []string{secret, secret[:9], fmt.Sprintf("%x", secret[:9]), "52 49 49"} {
		if i := strings.Index(printed.String(), hidden); i >= 0 {
			t.Errorf("%q is printed in %q", hidden, printed.String()[max(i-80, 0):i+len(hidden)])
		}
	}
	if !strings.Contains(printed.String(), `refused by \"x\"`) && !strings.Contains(printed.String(), `refused by "`) {
		t.Errorf("decisions were not printed:\n%.500s", printed.String())
	}
}

// TestStrings are for people.
func TestStrings(t *testing.T) {
	for want, d := range map[string]core.Decision{
		`allowed by "api": 3 of 10 left`:   {Allowed: true, Policy: "api", Limit: 10, Remaining: 3},
		`refused by "api": retry after 2s`: {Policy: "api", Limit: 10, RetryAfter: 2 * time.Second},
		`refused by "api" forever`:         {Policy: "api", Limit: 10, RetryAfter: core.Never},

		`allowed by "api": 3 of 10 left, without the store`:   {Source: core.SourceLocal, Allowed: true, Policy: "api", Limit: 10, Remaining: 3},
		`refused by "api": retry after 2s, without the store`: {Source: core.SourceLocal, Policy: "api", Limit: 10, RetryAfter: 2 * time.Second},
		`allowed without the store`:                           {Source: core.SourceOpen, Allowed: true, Policy: "api", Limit: 10},
	} {
		if got := d.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}

// TestSources: names for logs and metrics do not change.
func TestSources(t *testing.T) {
	for source, want := range map[core.Source]string{
		core.SourceNone:   "none",
		core.SourcePolicy: "policy",
		core.SourceStore:  "store",
		core.SourceCache:  "cache",
		core.SourceLocal:  "local",
		core.SourceOpen:   "open",
		core.SourceLease:  "lease",
		99:                "source(99)",
	} {
		if got := source.String(); got != want {
			t.Errorf("%d is %q, want %q", uint8(source), got, want)
		}
	}
}

// TestAnswerOutOfRange panics, on a decision of one limiter or of several.
func TestAnswerOutOfRange(t *testing.T) {
	s := newStore()
	a, b := newLimiter(t, s, "a", core.FixedWindow(perAge(9))), newLimiter(t, s, "b", core.FixedWindow(perAge(9)))
	one := allow(t, a, "key", 1)
	two, err := core.AllowAll(t.Context(), core.Charge{Limiter: a, Key: "key", N: 1}, core.Charge{Limiter: b, Key: "key", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []core.Decision{one, two} {
		for _, i := range []int{-1, d.Len(), d.Len() + 1, 64} {
			func() {
				defer func() {
					if got, want := recover(), fmt.Sprintf("headgate: answer %d of %d", i, d.Len()); got != want {
						t.Errorf("the panic says %v, want %s", got, want)
					}
				}()
				d.Answer(i)
			}()
		}
	}
}

// TestAge: spans shrink with time, but a wait that has not ended never becomes
// none, and what is never stays so.
func TestAge(t *testing.T) {
	r := store.Result{At: 1000, Allowed: true, Source: core.SourceCache}
	r.Add(true, step.Reading{Remaining: 3, NextAfter: 10, ResetAfter: 100, RetryAfter: 0})
	r.Add(false, step.Reading{Remaining: 0, NextAfter: 4, ResetAfter: 5, RetryAfter: 6})
	r.Add(false, step.Reading{RetryAfter: step.Never})
	r.Age(5)
	if r.At != 1005 || !r.Allowed || r.Source != core.SourceCache || r.Len() != 3 {
		t.Errorf("%+v", r)
	}
	for i, want := range []say{
		{true, step.Reading{Remaining: 3, NextAfter: 5, ResetAfter: 95, RetryAfter: 0}},
		{false, step.Reading{Remaining: 0, NextAfter: 1, ResetAfter: 1, RetryAfter: 1}},
		{false, step.Reading{RetryAfter: step.Never}},
	} {
		if admitted, x := r.Admitted(i), *r.Reading(i); admitted != want.admitted || x != want.Reading {
			t.Errorf("reading %d is %t %+v, want %+v", i, admitted, x, want)
		}
	}
}

// TestPolicyOfARefusalHasRefused, even if another has counted the attempt since and needs
// longer.
func TestPolicyOfARefusalHasRefused(t *testing.T) {
	for _, first := range []bool{true, false} {
		policies := []core.Policy{
			core.FixedWindow(perAge(2)).CountDenied().Named("attempts"),
			core.MinInterval(time.Second).Named("pace"),
		}
		if !first {
			slices.Reverse(policies)
		}
		l := newLimiter(t, newStore(), "api", policies...)
		allow(t, l, "key", 1)
		d := allow(t, l, "key", 1)
		if d.Allowed || d.Policy != "pace" || d.Limit != 1 || d.RetryAfter <= time.Second {
			t.Errorf("%+v", d)
		}
	}
}
