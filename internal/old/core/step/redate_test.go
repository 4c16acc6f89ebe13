package step_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/old/core/step"
)

// reach is how long a state counts at most.
func reach(m step.Numbers) int64 {
	m.Burst += m.Debt
	return window(m)
}

// datable are the subjects whose states fit several times behind noon.
func datable() (all []step.Numbers) {
	for _, m := range subjects {
		if m.Algorithm < step.Unlimited && reach(m) < (horizon-noon)/8 {
			all = append(all, m)
		}
	}
	return all
}

// grid is what the instants in a state are aligned to.
func grid(m step.Numbers) int64 {
	switch m.Algorithm {
	case step.FixedWindow:
		if !m.FromFirst {
			return m.Period
		}
	case step.SlidingWindow:
		return sub(m)
	}
	return 1
}

// TestRedate: a state that is ahead by a window is left as it is; one that is ahead by more
// shows full use as of now, for a window at most.
func TestRedate(t *testing.T) {
	for _, m := range datable() {
		t.Run(describe(m), func(t *testing.T) {
			k := newKey(t, m)
			ahead := noon + 2*window(m)
			ahead -= ahead % grid(m)
			k.ask(t, ahead, k.step.Max())
			own := step.Variant{Step: k.step, State: k.state}
			for _, now := range []int64{ahead + 5*window(m), ahead, ahead - 1, ahead - reach(m)} {
				if step.Redate(k.step, &own, nil, now) {
					t.Fatalf("%d after it, state %v was brought back to %v", now-ahead, k.state, own.State)
				}
			}
			now := ahead - reach(m) - 1
			if m.Algorithm == step.TokenBucket {
				now-- // its window is rounded up, and its state has fractions
			}
			if !step.Redate(k.step, &own, nil, now) {
				t.Fatalf("%d before it, state %v was not brought back", ahead-now, k.state)
			}
			k.fullUse(t, own.State, now)
			if step.Redate(k.step, &own, nil, now) {
				t.Errorf("state %v, which was brought back, is again", own.State)
			}
		})
	}
}

// fullUse checks that a state shows that, as of now.
func (k *key) fullUse(t failer, s []int64, now int64) {
	t.Helper()
	r := k.step.Read(s, now, 1)
	if r.Remaining != 0 || r.RetryAfter <= 0 || r.ResetAfter > window(k.numbers) {
		t.Fatalf("at %d: state %v: %+v", now, s, r)
	}
	if later := now + window(k.numbers); k.step.Read(s, later, 0).Remaining != limit(k.numbers) {
		t.Fatalf("at %d: state %v: after a window %+v", now, s, k.step.Read(s, later, 0))
	}
}

// TestRedateAny brings back the states of random schedules.
func TestRedateAny(t *testing.T) {
	for _, m := range datable() {
		t.Run(describe(m), rapid.MakeCheck(func(t *rapid.T) {
			s := &schedule{key: newKey(t, m), now: noon + 2*window(m)}
			for range rapid.IntRange(1, 20).Draw(t, "moves") {
				s.advance(t)
				s.ask(t)
			}
			if s.state == nil {
				return
			}
			now := rapid.Int64Range(1, s.newest).Draw(t, "now")
			own := step.Variant{Step: s.step, State: s.state}
			left := s.step.Read(s.state, now, 0).Remaining
			switch brought := step.Redate(s.step, &own, nil, now); {
			case brought && s.newest-now <= window(m):
				t.Fatalf("at %d, newest %d: state %v was brought back", now, s.newest, s.state)
			case brought:
				s.fullUse(t, own.State, now)
			case s.step.Read(own.State, now, 0).Remaining != left:
				t.Fatalf("at %d: state %v was changed to %v", now, s.state, own.State)
			case s.step.Read(own.State, now, 0).ResetAfter > 2*window(m)+reach(m):
				t.Fatalf("at %d: state %v was left as it is", now, s.state)
			}
		}))
	}
}

// A keptKey is asked as stores do whose clock may go back.
type keptKey struct {
	largest step.Step
	state   []int64
}

func (k *keptKey) ask(p step.Step, now, n int64) bool {
	own := step.Variant{Step: k.largest, State: k.state}
	if step.Redate(p, &own, nil, now) {
		k.state = own.State
	}
	ok := p.Admits(k.state, now, n)
	if k.state == nil {
		k.state = make([]int64, p.Words())
	}
	switch {
	case ok:
		k.state = p.Charge(k.state, now, n)
	case p.Numbers().CountDenied && n <= p.Max():
		k.state = p.Refuse(k.state, now, n)
	}
	return ok
}

// lower returns numbers of which only the limit differs.
func lower(m step.Numbers) step.Numbers {
	if m.Algorithm == step.TokenBucket {
		m.Burst = (m.Burst + 1) / 2
	} else if m.Algorithm != step.MinInterval {
		m.Limit = (m.Limit + 1) / 2
	}
	return m
}

// TestFlappingClock: while the clock flaps between two instants, each step ahead admits at
// most one quota more, its return included; also if there are plans with different limits.
func TestFlappingClock(t *testing.T) {
	for _, m := range datable() {
		t.Run(describe(m), rapid.MakeCheck(func(t *rapid.T) {
			plans := []step.Step{newKey(t, m).step, newKey(t, lower(m)).step}
			k, most := &keptKey{largest: plans[0]}, rapid.Int64Range(1, min(limit(m), 1_000_000)).Draw(t, "most")
			back := noon - noon%grid(m)
			now, quotas, total := back, int64(1), int64(0)
			for range rapid.IntRange(1, 80).Draw(t, "moves") {
				s := rapid.SampledFrom(plans).Draw(t, "plan")
				switch rapid.IntRange(0, 3).Draw(t, "move") {
				case 0:
					if now == back {
						quotas++
						now = back + rapid.Int64Range(1, 2*window(m)).Draw(t, "ahead") + rapid.Int64Range(0, 1).Draw(t, "far")*2*window(m)
					} else {
						now = back
					}
				case 1, 2: // all that fits
					if n := min(step.Room(s, k.state, now), limit(s.Numbers())); n > 0 && k.ask(s, now, n) {
						total += n
					}
				default:
					if n := rapid.Int64Range(1, most).Draw(t, "n"); k.ask(s, now, n) {
						total += units(m, n)
					}
				}
				if total > quotas*limit(m) {
					t.Fatalf("%d of %d units after %d steps ahead", total, limit(m), quotas-1)
				}
			}
			k.ask(plans[0], back, 1)
			if r := plans[0].Read(k.state, back, 0); r.ResetAfter > 2*window(m)+reach(m) {
				t.Fatalf("with the clock right again, state %v: %+v", k.state, r)
			}
		}))
	}
}

// TestFailback: of two servers whose clocks differ by less than a window, each failover to
// the one that is ahead admits what the difference refills, and none to the other anything.
func TestFailback(t *testing.T) {
	const gap = 5 * second
	p := newKey(t, bucket(10, second, 100)).step
	k := &keptKey{largest: p}
	for i, want := range []int64{100, 50, 0, 0, 0} {
		now, n := noon+int64(i%2)*gap, int64(0)
		for k.ask(p, now, 1) {
			n++
		}
		if n != want {
			t.Errorf("failover %d: %d units, want %d", i, n, want)
		}
	}
}

// TestRedateBesideOthers: a bucket may be in debt for as long as one beside it needs to fill.
// Others are kept for two windows.
func TestRedateBesideOthers(t *testing.T) {
	fast, slow := newKey(t, bucket(100, second, 100)).step, newKey(t, bucket(1_000_000, day, 1_000_000)).step
	full := slow.Charge([]int64{0, 0}, noon, 1_000_000)
	debt := fast.Count([]int64{0, 0}, noon, 1_000_000, slow.FreshAt(full))
	kept := func() []step.Variant {
		return []step.Variant{{Step: slow, State: full, Until: noon + day}, {Step: fast, State: debt, Until: noon + day}}
	}
	for _, test := range []struct {
		now, resets int64
		want        bool
	}{{noon, 10_000 * second, false}, {noon - day + 10_000*second, day, false}, {noon - day, second, true}} {
		own, others := step.Take(kept(), fast, test.now)
		got := step.Redate(fast, &own, others, test.now)
		if r := fast.Read(own.State, test.now, 0); got != test.want || r.ResetAfter != test.resets || r.Remaining != 0 {
			t.Errorf("%d before: %v: %+v", noon-test.now, got, r)
		}
		if until := min(noon+day, test.now+2*day); len(others) != 1 || others[0].Until != until {
			t.Errorf("%d before: others %+v, want one until %d", noon-test.now, others, until)
		}
	}
	own, others := step.Take(kept(), slow, noon-5*day)
	if !step.Redate(slow, &own, others, noon-5*day) || others[0].Until != noon-3*day {
		t.Errorf("days before: %+v, others %+v", own, others)
	}
}
