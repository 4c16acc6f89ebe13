package main

import (
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/step"
)

func TestInvariants(t *testing.T) {
	var results []result
	for _, traffic := range traffics {
		var done atomic.Int64
		r := simulate(traffic, 150_000, 1500, 7, 2, &done)
		results = append(results, r)
		if again := simulate(traffic, 150_000, 1500, 7, 1, &done); !reflect.DeepEqual(r, again) {
			t.Errorf("%s: one worker finds other numbers than two", traffic.name)
		}
		if done.Load() != 2*r.Requests || r.Requests < 100_000 || r.Requests > 200_000 {
			t.Errorf("%s: %d requests, %d reported", traffic.name, r.Requests, done.Load())
		}
		for i, p := range policies() {
			got := &r.Tallies[i]
			if p.Kind == step.SlidingLog && (got.wrong() > 0 || !p.CountDenied && got.Over+got.Under > 0) {
				t.Errorf("%s: the log is wrong: %+v", traffic.name, *got)
			}
			if (p.Kind == step.SlidingLog || p.NeverOver) && got.fullest() > limit {
				t.Errorf("%s: %s: %d in a window", traffic.name, p.name, got.fullest())
			}
			if p.NeverOver && got.Over > 0 {
				t.Errorf("%s: %s: over %d times", traffic.name, p.name, got.Over)
			}
			// Admitted more than the exact limiter: wrongly so.
			if more := got.Admitted - (r.Requests - r.Refused); !p.CountDenied && more != got.WronglyAdmitted-got.WronglyRefused {
				t.Errorf("%s: %s: admitted %d more, %d wrongly, %d wrongly not", traffic.name, p.name, more, got.WronglyAdmitted, got.WronglyRefused)
			}
		}
	}
	if r := results[0]; r.Refused == 0 || r.Tallies[1].wrong() <= r.Tallies[9].wrong() {
		t.Errorf("resolution 60 is no better than 1, or nothing was refused: %d and %d of %d", r.Tallies[9].wrong(), r.Tallies[1].wrong(), r.Refused)
	}

	if got := report(results, 150_000, 1500, 7); strings.Contains(got, "NaN") || strings.Contains(got, "%!") {
		t.Errorf("report:\n%s", got)
	}
}

// try puts one stream of attempts to one policy.
func try(n step.Numbers, at []int64) *trial {
	n.Limit, n.Period = limit, period
	trial := newTrial(policy{Numbers: n})
	var truth truth
	truth.about(at)
	trial.run(at, &truth)
	trial.nextSource()
	return trial
}

func repeat(at int64, n int) []int64 {
	s := make([]int64, n)
	for i := range s {
		s[i] = at
	}
	return s
}

// TestBoundary has a known result: 100 requests just before a boundary of the clock and
// 100 just after.
func TestBoundary(t *testing.T) {
	at := append(repeat(period-1, limit), repeat(period, limit)...)
	for _, c := range []struct {
		numbers step.Numbers
		over    int64
	}{
		{step.Numbers{Kind: step.FixedWindow}, limit},
		{step.Numbers{Kind: step.SlidingWindow, Resolution: 1}, 0},
		{step.Numbers{Kind: step.SlidingLog}, 0},
	} {
		got := try(c.numbers, at)
		if got.Over != c.over || got.WronglyAdmitted != c.over || int64(got.fullest()) != limit+c.over {
			t.Errorf("%v: over %d times, wrong %d, %d in a window", c.numbers, got.Over, got.WronglyAdmitted, got.fullest())
		}
	}
}

// TestPatience shows why no resolution makes an estimate exact: a client that spends the
// limit at the end of a sub-window, and returns when that is the oldest, finds the weight
// of its requests gone before they are a minute old.
func TestPatience(t *testing.T) {
	for _, k := range resolutions {
		sub := period / k
		at := append(repeat(sub-1, limit), repeat(sub-1+period-1, limit)...)
		numbers := step.Numbers{Kind: step.SlidingWindow, Resolution: k}
		if got := try(numbers, at).fullest(); got < 2*limit-1 {
			t.Errorf("resolution %d: %d in a window", k, got)
		}
		numbers.NeverOver = true
		if got := try(numbers, at).fullest(); got != limit {
			t.Errorf("resolution %d, never over: %d in a window", k, got)
		}
	}
}

// TestShortcut holds the claim that sources which never send more than the limit
// need no simulation.
func TestShortcut(t *testing.T) {
	for i := range 200 {
		next := newArrivals(float64(1+i), 3, uint64(i)).next
		var at []int64
		for len(at) < limit {
			at = append(at, next())
		}
		for _, p := range policies() {
			if got := try(p.Numbers, at); got.Admitted != limit || got.wrong() > 0 {
				t.Fatalf("source %d: %s admitted %d of %d, %d wrongly", i, p.name, got.Admitted, limit, got.wrong())
			}
		}
	}
}
