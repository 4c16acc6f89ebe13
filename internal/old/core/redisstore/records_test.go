package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// All policies of a limiter and key are one key in Redis, but logs.
func TestPoliciesShareAValue(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	var all []core.Policy
	for i, p := range []core.Policy{
		core.TokenBucket(core.PerMinute(1), 100), core.SlidingLog(core.PerMinute(50)), core.FixedWindow(per(100, 400*day)),
		core.SlidingWindow(core.PerDay(100)), core.SlidingLog(core.PerMinute(100)), core.MinInterval(time.Microsecond),
	} {
		all = append(all, p.Named(fmt.Sprint(i)))
	}
	l := newLimiter(t, s, "api", all...)
	for n := range int64(3) {
		d := allow(t, l, "k", 1)
		for i, limit := range []int64{100, 50, 100, 100, 100} { // in the order of the policies, not of their values
			if a := d.Answer(i); a.Policy != fmt.Sprint(i) || a.Limit != limit || a.Remaining != limit-n-1 {
				t.Errorf("%d: %+v", n, a)
			}
		}
	}
	if n := keys(t, server); n != 3 {
		t.Errorf("%d keys", n)
	}
	// An admitted charge of policies that share a value reads and writes it once.
	l = newLimiter(t, s, "two", all[0], all[2])
	allow(t, l, "k", 1)
	server.ResetStats()
	allow(t, l, "k", 1)
	if reads, changes := server.Calls("get", "mget", "getrange"), server.Calls(writes...); reads != 1 || changes != 1 {
		t.Errorf("%d reads, %d writes", reads, changes)
	}
}

// A policy that is added, or taken away and added again, does not change what the others have
// counted.
func TestPoliciesAreAddedAndTakenAway(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	a, b, c := core.FixedWindow(per(10, 400*day)).Named("a"), core.TokenBucket(core.PerDay(1), 10).Named("b"), core.SlidingWindow(core.PerDay(10)).Named("c")
	used := make(map[string]int64)
	for i, policies := range [][]core.Policy{{a}, {a, b}, {b, a, c}, {c}, {c, b}, {a}, {a, b, c}} {
		d := allow(t, newLimiter(t, s, "api", policies...), "k", 1)
		for j, p := range policies {
			used[p.Name()]++
			if left := d.Answer(j).Remaining; left != 10-used[p.Name()] {
				t.Errorf("%d: %v has %d left, want %d", i, p, left, 10-used[p.Name()])
			}
		}
	}
	// A reset under some is not one of the others.
	l := newLimiter(t, s, "api", c, a)
	if err := l.Reset(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	d := allow(t, newLimiter(t, s, "api", a, b, c), "k", 1)
	if d.Answer(0).Remaining != 9 || d.Answer(1).Remaining != 10-used["b"]-1 || d.Answer(2).Remaining != 9 {
		t.Errorf("after the reset: %s", describe(&d))
	}
	if err := newLimiter(t, s, "api", a, b, c).Reset(t.Context(), "k"); err != nil || keys(t, server) != 0 {
		t.Errorf("%d keys after the last reset: %v", keys(t, server), err)
	}
}

// The record of a policy that is not used any more is dropped once it does not count, however often
// the value is written; a value lives as long as its records need.
func TestRecordsAreDropped(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	rate := per(1000, 500*time.Millisecond)
	for name, policy := range map[string]core.Policy{
		"fixed": core.FixedWindow(rate), "sliding": core.SlidingWindow(rate).Resolution(1),
		"bucket": core.TokenBucket(rate, 1000), "interval": core.MinInterval(500 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			long, short := core.FixedWindow(per(10_000, 400*day)).Named("long"), policy.Named("short")
			both, one := newLimiter(t, s, name, short, long), newLimiter(t, s, name, long)
			allow(t, both, "k", 1)
			cell := s.cell(t, one, "k")
			if ttl := number(t, server, "PTTL", cell); ttl < 1000 {
				t.Errorf("a life of %d ms", ttl)
			}
			length := func() int64 { return number(t, server, "STRLEN", cell) }
			if n := length(); n <= 7+28 {
				t.Errorf("%d bytes", n)
			}
			calls := int64(1)
			eventually(t, "the record is dropped", func() bool {
				calls++
				allow(t, one, "k", 1)
				return length() == 7+28
			})
			if d := allow(t, both, "k", 1); d.Answer(0).Remaining != policy.Limit()-1 || d.Answer(1).Remaining != 10_000-calls-1 {
				t.Errorf("%s", describe(&d))
			}
		})
	}
}
