package step_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// A row is a question asked at an instant, and everything that is answered just
// after it.
type row struct {
	at       int64 // after noon
	n        int64
	admitted bool

	remaining, next, reset, retry int64
}

// TestLife tells the life of a key under each policy, by the microsecond.
func TestLife(t *testing.T) {
	const ms = second / 1000
	for _, test := range []struct {
		name    string
		numbers step.Numbers
		rows    []row
	}{
		{"TokenBucket", bucket(7, second, 7), []row{
			// A unit takes 142857 1/7 microseconds.
			{0, 1, true, 6, 142_858, 142_858, 0},
			{0, 6, true, 0, 142_858, second, 0},
			{0, 1, false, 0, 142_858, second, 142_858},
			{0, 7, false, 0, 142_858, second, second},
			{142_857, 1, false, 0, 1, second - 142_857, 1},
			{142_858, 1, true, 0, 142_857, second, 0}, // the 6/7 that were not needed are kept
			{142_858, 8, false, 0, 142_857, second, step.Never},
			{142_858 + second, 8, false, 7, 0, 0, step.Never},
			{142_858 + second, 7, true, 0, 142_858, second, 0},
		}},
		{"TokenBucket/one token", bucket(1, minute, 1), []row{
			{0, 1, true, 0, minute, minute, 0},
			{minute - 1, 1, false, 0, 1, 1, 1},
			{minute, 1, true, 0, minute, minute, 0},
		}},
		{"FixedWindow", fixed(10, minute), []row{
			{59 * second, 4, true, 6, second, second, 0},
			{59 * second, 7, false, 6, second, second, second},
			{minute - 1, 6, true, 0, 1, 1, 0},
			{minute - 1, 1, false, 0, 1, 1, 1},
			{minute, 10, true, 0, minute, minute, 0},
			{minute, 11, false, 0, minute, minute, step.Never},
		}},
		{"FixedWindow/denied counted", denied(fixed(10, minute)), []row{
			{0, 8, true, 2, minute, minute, 0},
			{1, 3, false, 0, minute - 1, minute - 1, minute - 1},
			{2, 1, false, 0, minute - 2, minute - 2, minute - 2},
			{minute, 1, true, 9, minute, minute, 0}, // refusals of the last window do not count in this
		}},
		{"FixedWindow/from the first", fromFirst(fixed(10, minute)), []row{
			{59 * second, 4, true, 6, minute, minute, 0},
			{minute, 7, false, 6, 59 * second, 59 * second, 59 * second},
			{119*second - 1, 6, true, 0, 1, 1, 0},
			{119*second - 1, 1, false, 0, 1, 1, 1},
			{5 * minute, 1, true, 9, minute, minute, 0},
			{6 * minute, 11, false, 10, 0, 0, step.Never},
			{7*minute + 1, 10, true, 0, minute, minute, 0},
		}},
		{"FixedWindow/from the first, denied counted", fromFirst(denied(fixed(10, minute))), []row{
			{59 * second, 8, true, 2, minute, minute, 0},
			{minute, 3, false, 0, 59 * second, 59 * second, 59 * second},
			{119 * second, 1, true, 9, minute, minute, 0},
		}},
		{"SlidingWindow/two counters", sliding(100, hour, 1), []row{
			// One more fits when 1/84 of the next hour has passed, and one of the 84.
			{30 * minute, 84, true, 16, 30*minute + 42_857_143, 90 * minute, 0},
			// 84 * 5/6 = 70. One more fits at 15/84 of the hour, 69 being left of the 84.
			{70 * minute, 30, true, 0, 42_857_143, 110 * minute, 0},
		}},
		{"SlidingWindow/never over", never(sliding(10, minute, 2)), []row{
			{0, 6, true, 4, 90 * second, 90 * second, 0},
			{59 * second, 4, true, 0, 31 * second, 61 * second, 0},
			// 6 of [0 s, 30 s) count in full until no window of a minute can touch them.
			{90*second - 1, 1, false, 0, 1, 30*second + 1, 1},
			{90 * second, 7, false, 6, 30 * second, 30 * second, 30 * second},
			{90 * second, 6, true, 0, 30 * second, 90 * second, 0},
		}},
		{"SlidingLog", log(3, second), []row{
			{0, 1, true, 2, second, second, 0},
			{100 * ms, 2, true, 0, 900 * ms, second, 0},
			{200 * ms, 1, false, 0, 800 * ms, 900 * ms, 800 * ms},
			{200 * ms, 2, false, 0, 800 * ms, 900 * ms, 900 * ms},
			{200 * ms, 4, false, 0, 800 * ms, 900 * ms, step.Never},
			{second - 1, 1, false, 0, 1, 100*ms + 1, 1},
			{second, 1, true, 0, 100 * ms, second, 0}, // a window does not include its end
			{1100 * ms, 2, true, 0, 900 * ms, second, 0},
		}},
		{"SlidingLog/denied counted", denied(log(3, second)), []row{
			{0, 3, true, 0, second, second, 0},
			{600 * ms, 1, false, 0, 400 * ms, second, 400 * ms}, // counts 2 of 0 ms, 1 of 600 ms
			{900 * ms, 3, false, 0, second, second, second},     // counts 3 of 900 ms
			{1900 * ms, 1, true, 2, second, second, 0},
		}},
		{"MinInterval", interval(100 * ms), []row{
			{0, 1, true, 0, 100 * ms, 100 * ms, 0},
			{99 * ms, 1, false, 0, ms, ms, ms},
			{100 * ms, 5, true, 0, 100 * ms, 100 * ms, 0}, // calls, not units
			{201 * ms, 1, true, 0, 100 * ms, 100 * ms, 0},
		}},
		{"Unlimited", step.Numbers{Algorithm: step.Unlimited}, []row{
			{0, 1_000_000, true, step.MaxInt, 0, 0, 0},
			{0, step.MaxInt, true, step.MaxInt, 0, 0, 0},
		}},
		{"Blocked", step.Numbers{Algorithm: step.Blocked}, []row{
			{0, 1, false, 0, 0, 0, step.Never},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKey(t, test.numbers)
			for _, r := range test.rows {
				now, need := noon+r.at, r.n
				admitted := k.ask(t, now, r.n)
				if admitted {
					need = 0
				}
				got, want := k.step.Read(k.state, now, need), step.Reading{
					Remaining: r.remaining, NextAfter: r.next, ResetAfter: r.reset, RetryAfter: r.retry,
				}
				if admitted != r.admitted || got != want {
					t.Errorf("at %d, %d units: admitted %v, %+v\nwant %v, %+v", r.at, r.n, admitted, got, r.admitted, want)
				}
			}
		})
	}
}

// TestAskedTogether holds schedules that people ask about, under one or several
// policies that are charged together or not at all.
func TestAskedTogether(t *testing.T) {
	type ask struct {
		at       string // after noon
		n        int64
		admitted bool
	}
	var tenApart []ask // 10 calls, 100 ms apart
	for i := range 10 {
		tenApart = append(tenApart, ask{fmt.Sprintf("0:00:00.%d", i), 1, true})
	}
	edge := func(admitted bool) []ask {
		return []ask{{"0:00:59", 10, true}, {"0:01:01", 10, admitted}}
	}
	for _, test := range []struct {
		name     string
		policies []step.Numbers
		asks     []ask
	}{
		// 84 * 0.75 + 36 = 99: one more, and then none.
		{"84, 36, and a quarter past", []step.Numbers{sliding(100, hour, 1)}, []ask{
			{"0:20:00", 84, true},
			{"1:15:00", 36, true},
			{"1:15:00", 2, false},
			{"1:15:00", 1, true},
			{"1:15:00", 1, false},
			{"1:15:42.857142", 1, false}, // 84 * 62/84 + 38 at 22/84 of the hour
			{"1:15:42.857143", 1, true},
		}},
		{"a minute in 5 seconds", []step.Numbers{sliding(12, minute, 12)}, []ask{
			{"0:00:01", 5, true},
			{"0:00:58", 7, true},
			{"0:01:00", 1, false}, // 5 of [0 s, 5 s) in full
			{"0:01:02.5", 3, false},
			{"0:01:02.5", 2, true}, // half of them
			{"0:01:04.999999", 3, false},
			{"0:01:05", 3, true},  // none of them
			{"0:01:55", 1, false}, // 7 of [0:55, 1:00), 2, and 3
			{"0:02:00", 8, false},
			{"0:02:00", 7, true},
		}},
		{"10 a minute, 100 ms apart", []step.Numbers{log(10, minute), interval(second / 10)}, append(
			append([]ask{}, tenApart...), []ask{
				{"0:00:00.95", 1, false},
				{"0:00:01", 1, false},
				{"0:00:59.999999", 1, false},
				{"0:01:00", 1, true},
				{"0:01:00.05", 1, false}, // refused by the interval, so not charged to the minute
				{"0:01:00.1", 1, true},
				{"0:01:00.2", 1, true},
			}...)},
		{"nothing is charged if one refuses", []step.Numbers{bucket(1, hour, 10), fixed(3, minute)}, []ask{
			{"0:00:00", 3, true},
			{"0:00:01", 2, false}, // not charged to the bucket either
			{"0:01:00", 3, true},
			{"0:02:00", 3, true},
			{"0:03:00", 2, false},
			{"0:03:00", 1, true},
			{"0:04:00", 1, false},
		}},
		{"window's edge/FixedWindow", []step.Numbers{fixed(10, minute)}, edge(true)},
		{"window's edge/SlidingLog", []step.Numbers{log(10, minute)}, edge(false)},
		{"window's edge/SlidingWindow 1", []step.Numbers{sliding(10, minute, 1)}, edge(false)},
		{"window's edge/SlidingWindow 10", []step.Numbers{sliding(10, minute, 10)}, edge(false)},
		{"window's edge/NeverOver", []step.Numbers{never(sliding(10, minute, 1))}, edge(false)},
		{"window's edge/TokenBucket", []step.Numbers{bucket(10, minute, 10)}, edge(false)},
	} {
		t.Run(test.name, func(t *testing.T) {
			var keys []*key
			for _, m := range test.policies {
				keys = append(keys, newKey(t, m))
			}
			for _, a := range test.asks {
				now := noon + clock(t, a.at)
				admitted := true
				for _, k := range keys {
					admitted = admitted && k.step.Admits(k.state, now, a.n)
				}
				if admitted != a.admitted {
					t.Errorf("at %s %d units: %v, want %v", a.at, a.n, admitted, a.admitted)
				}
				if admitted {
					for _, k := range keys {
						k.ask(t, now, a.n)
					}
				}
			}
		})
	}
}

// clock reads h:mm:ss and up to six decimals.
func clock(t *testing.T, s string) int64 {
	t.Helper()
	var h, m int64
	var sec string
	if _, err := fmt.Sscanf(s, "%d:%d:%s", &h, &m, &sec); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	whole, decimals := sec, "000000"
	if len(sec) > 2 {
		whole, decimals = sec[:2], (sec[3:] + decimals)[:6]
	}
	var seconds, us int64
	if _, err := fmt.Sscanf(whole+" "+decimals, "%d %d", &seconds, &us); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return h*hour + m*minute + seconds*second + us
}

// TestDeniedAttemptsSaturate: however many attempts are counted, the counts of a sliding
// window add up to at most 2^53-1, each fills the limit, and the key is admitted again
// when they have expired.
func TestDeniedAttemptsSaturate(t *testing.T) {
	for _, m := range []step.Numbers{
		denied(sliding(10, minute, 1)),
		denied(sliding(10, minute, 10)),
		denied(sliding(10, minute, step.MaxResolution)),
	} {
		t.Run(describe(m), func(t *testing.T) {
			k := newKey(t, m)
			k.open()
			now := int64(noon)
			for range m.Resolution + 1 {
				now += sub(m)
				for range 2 {
					k.state = k.step.Refuse(k.state, now, step.MaxInt)
				}
			}
			sum := int64(0)
			for _, count := range k.state[1:] {
				if count < m.Limit {
					t.Fatalf("a count of %d, below the limit: %v", count, k.state)
				}
				if sum += count; sum > step.MaxInt {
					t.Fatalf("the counts add up to more than 2^53-1: %v", k.state)
				}
			}
			r := k.step.Read(k.state, now, m.Limit)
			if r.Remaining != 0 || r.RetryAfter <= m.Period || r.RetryAfter > m.Period+sub(m) {
				t.Errorf("%+v", r)
			}
			if !k.step.Admits(k.state, now+r.RetryAfter, m.Limit) || k.step.Admits(k.state, now+r.RetryAfter-1, m.Limit) {
				t.Errorf("RetryAfter %d is not exact", r.RetryAfter)
			}
		})
	}
}
