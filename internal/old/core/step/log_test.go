package step_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// The first words of a log's state are its header; a word for each unit follows.
const header = 4

// TestLogGrowth: a log grows as its key fills, doubling, and never beyond a word
// for each unit of the limit.
func TestLogGrowth(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 4, 5, 7, 8, 100, 1000, 4097} {
		k := newKey(t, log(n, hour))
		k.open()
		for i := range n {
			k.state = k.step.Charge(k.state, noon+i, 1)
			size, used := int64(len(k.state)-header), i+1
			if size < used || size > n || size > max(4, 2*used) {
				t.Fatalf("limit %d: %d words for %d units", n, size, used)
			}
		}
		if k.step.Admits(k.state, noon+n, 1) {
			t.Errorf("limit %d: one more is admitted", n)
		}
		full := len(k.state)
		for i := range 3 * n { // the ring goes round
			now := noon + hour*(1+i/n) + i%n
			if !k.step.Admits(k.state, now, 1) {
				t.Fatalf("limit %d: refused when unit %d has expired", n, i)
			}
			k.state = k.step.Charge(k.state, now, 1)
			if k.step.Admits(k.state, now, 1) {
				t.Fatalf("limit %d: two are admitted when unit %d has expired", n, i)
			}
		}
		if len(k.state) != full || full != k.step.MaxWords() {
			t.Errorf("limit %d: %d words grew to %d, want %d", n, full, len(k.state), k.step.MaxWords())
		}
	}
}

// TestLogAtOnce: a charge of the whole limit takes what it needs and no more.
func TestLogAtOnce(t *testing.T) {
	for _, n := range []int64{1, 5, 1000, step.MaxLog} {
		k := newKey(t, log(n, hour))
		k.open()
		k.state = k.step.Charge(k.state, noon, n)
		if int64(len(k.state)) != header+n {
			t.Errorf("limit %d: %d words", n, len(k.state))
		}
		want := step.Reading{NextAfter: hour, ResetAfter: hour, RetryAfter: hour}
		if r := k.step.Read(k.state, noon, 1); r != want {
			t.Errorf("limit %d: %+v, want %+v", n, r, want)
		}
	}
}

// TestLogWritesOneEntryForAUnit: however long the log is, n units write the header
// and n entries.
func TestLogWritesOneEntryForAUnit(t *testing.T) {
	for _, limit := range []int64{10, 10_000} {
		k := newKey(t, log(limit, hour))
		k.open()
		for i := range limit {
			k.state = k.step.Charge(k.state, noon+i, 1)
		}
		for i, n := range []int64{1, 1, 2, 5, 1} {
			now := noon + hour + int64(i+1)*10
			before := slices.Clone(k.state)
			k.state = k.step.Charge(k.state, now, n)
			written := int64(0)
			for j := header; j < len(before); j++ {
				if before[j] != k.state[j] {
					written++
				}
			}
			if written != n {
				t.Errorf("limit %d: a charge of %d wrote %d entries", limit, n, written)
			}
		}
	}
}

// TestLogLimitIsAnIndex: a ring made under one limit serves any other, lower or
// higher, without losing an entry.
func TestLogLimitIsAnIndex(t *testing.T) {
	k := newKey(t, log(8, minute))
	for i := range int64(8) {
		k.ask(t, noon+i*second, 1)
	}
	for i, test := range []struct{ limit, left, retry int64 }{
		{8, 0, minute - 8*second},
		{3, 0, minute - 3*second}, // the 6th of 8 must expire
		{100, 92, 0},
		{1, 0, minute - second},
		{9, 1, 0},
		{8, 0, minute - 8*second},
	} {
		k.adopt(t, noon+8*second, log(test.limit, minute))
		r := k.step.Read(k.state, noon+8*second, 1)
		if r.Remaining != test.left || r.RetryAfter != test.retry {
			t.Errorf("change %d to %d: %d left, retry after %d, want %d and %d",
				i, test.limit, r.Remaining, r.RetryAfter, test.left, test.retry)
		}
		k.check(t, noon+8*second, 1)
	}
}

// BenchmarkLog charges a full log whose oldest unit has just expired: the cost must
// not grow with the limit.
func BenchmarkLog(b *testing.B) {
	for _, limit := range []int64{10, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(limit), func(b *testing.B) {
			s, err := step.New(log(limit, limit))
			if err != nil {
				b.Fatal(err)
			}
			now := int64(noon)
			state := make([]int64, s.Words())
			for range limit {
				state = s.Charge(state, now, 1)
				now++
			}
			for b.Loop() {
				if !s.Admits(state, now, 1) {
					b.Fatal("refused")
				}
				state = s.Charge(state, now, 1)
				s.Read(state, now, 0)
				now++
			}
		})
	}
}

// BenchmarkDecision charges each policy once, and reads.
func BenchmarkDecision(b *testing.B) {
	for _, m := range []step.Numbers{
		bucket(1_000_000, second, 1_000_000), bucket(7, second, 7), fixed(1_000_000_000, second),
		sliding(1_000_000_000, second, 10), log(1000, 1000), interval(1),
	} {
		b.Run(describe(m), func(b *testing.B) {
			s, err := step.New(m)
			if err != nil {
				b.Fatal(err)
			}
			now := int64(noon)
			state := make([]int64, s.Words())
			for b.Loop() {
				if s.Admits(state, now, 1) {
					state = s.Charge(state, now, 1)
				}
				s.Read(state, now, 1)
				now++
			}
		})
	}
}
