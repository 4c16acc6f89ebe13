package redisrates

import (
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

// A clock that steps back across a border admits nothing extra: neither in the window in which it is again, nor in the one
// that has begun, whatever is given back meanwhile.
func TestClockStepsBackAcrossABorder(t *testing.T) {
	const border = 1_800_057_600_000_000 // midnight in UTC
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, redistest.Start(t).Addr())
	var now int64
	s.script.instant = func(b []byte) []byte { return strconv.AppendInt(b, now, 10) }
	ask := func(t *testing.T, ps []step.Policy, at, units int64, want bool) step.Cell {
		t.Helper()
		now = border + at
		asked := cells(ps, "k", units)
		allowed, err := s.Ask(t.Context(), step.Allow, asked)
		if err != nil || allowed != want {
			t.Errorf("%d units at %d: %v, %v", units, at, allowed, err)
		}
		return asked[0]
	}
	giveBack := func(t *testing.T, at int64, charged step.Cell) {
		t.Helper()
		now = border + at
		charged.Units = -charged.Units
		_, err := s.Ask(t.Context(), step.Settle, []step.Cell{charged})
		if err != nil {
			t.Error(err)
		}
	}
	for _, numbers := range []step.Numbers{
		fixed(10, time.Minute),
		fixed(10_000_000, time.Second), // too large for a level: it is kept as a window
		{Kind: step.Calendar, Limit: 10, Period: step.Day},
	} {
		all := numbers.Limit
		t.Run(numbers.String(), func(t *testing.T) {
			ps := s.limiter(t, "l", numbers)
			before := ask(t, ps, -100, all, true)
			ask(t, ps, 100, 1, true)
			ask(t, ps, -100, all, false)
			ask(t, ps, 100, all, false)
			ask(t, ps, 110, all-1, true)
			ask(t, ps, -10, 1, false)
			giveBack(t, -5, before) // they were of the window before: they have come back
			ask(t, ps, -4, 1, false)
			ask(t, ps, 120, 1, false)
		})
		t.Run(numbers.String()+", given back", func(t *testing.T) {
			ps := s.limiter(t, "back", numbers)
			ask(t, ps, -100, all, true)
			giveBack(t, 100, ask(t, ps, 100, all, true))
			ask(t, ps, -50, all, true) // of the window that has begun, and there are no more
			ask(t, ps, -40, 1, false)
			ask(t, ps, 150, 1, false)
		})
		t.Run(numbers.String()+", by two windows", func(t *testing.T) {
			ps := s.limiter(t, "two", numbers)
			ask(t, ps, -100, all, true)
			later := ask(t, ps, 2*numbers.Period, all, true)
			ask(t, ps, -90, 1, false)
			giveBack(t, -80, later) // it is of no window that has been
			ask(t, ps, -70, 1, false)
		})
	}
}

// A clock that steps back to the instant of a call does not make that the last one: a later call was.
func TestClockStepsBackToACall(t *testing.T) {
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, redistest.Start(t).Addr())
	now := int64(1_800_000_000_000_000)
	s.script.instant = func(b []byte) []byte { return strconv.AppendInt(b, now, 10) }
	p := &s.limiter(t, "l", interval(time.Minute))[0]
	first := s.charge(t, p, "k", 1)
	now += 600e6
	s.charge(t, p, "k", 1)
	now -= 600e6
	first.Units = -1
	given := []step.Cell{first}
	_, err := s.Ask(t.Context(), step.Settle, given)
	if err != nil || given[0].Remaining != 0 {
		t.Errorf("%d left, %v", given[0].Remaining, err)
	}
	if again := s.charge(t, p, "k", 1); again.Shortfall == 0 {
		t.Error("another call is admitted")
	}
}
