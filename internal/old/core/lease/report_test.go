package lease

import (
	"context"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

func reported(t *testing.T, l *core.Limiter, n int64) (core.Decision, int64) {
	t.Helper()
	d, uncovered, err := l.Report(context.Background(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d, uncovered
}

// What is reported is taken from what this server has leased, so it does not go on admitting from that;
// the store counts the rest.
func TestReportFromLeases(t *testing.T) {
	for name, p := range map[string]core.Policy{
		"window": year(1000),
		"bucket": core.TokenBucket(core.PerSecond(10), 1000).Leasable(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				shared := memstore.New(memstore.Config{})
				s, link := newServer(t, shared, Config{}, 0)
				l, below := named(t, s, "a", p), named(t, shared, "a", p)
				for range 200 {
					time.Sleep(time.Millisecond)
					allow(t, l, 1)
				}
				e := s.place(s.prepared(l.Prepared()), key)
				held := e.find().held(s.now())
				if held < 10 {
					t.Fatalf("%d units are leased", held)
				}
				left, calls := remaining(t, below), link.calls.Load()
				d, uncovered := reported(t, l, held-5)
				if !d.Allowed || uncovered != 0 || d.Source != core.SourceLease || link.calls.Load() != calls || e.find().held(s.now()) != 5 || d.RetryAfter != 0 {
					t.Errorf("%v from the %v, %d uncovered, %d calls, %d held", d, d.Source, uncovered, link.calls.Load()-calls, e.find().held(s.now()))
				}
				if got := allow(t, l, 0); !got.Allowed || got.Source != core.SourceLease {
					t.Errorf("a check with units left in a lease: %v from the %v", got, got.Source)
				}
				d, uncovered = reported(t, l, left+25)
				if d.Allowed || uncovered != 20 || d.Source != core.SourceStore || d.Remaining != 0 || d.RetryAfter <= 0 || link.calls.Load() != calls+1 {
					t.Errorf("%v from the %v, %d uncovered, %d calls, wait %v", d, d.Source, uncovered, link.calls.Load()-calls, d.RetryAfter)
				}
				if got := allow(t, l, 1); got.Allowed {
					t.Errorf("the limit is exceeded by 20, and one more is admitted by the %v", got.Source)
				}
				if got := allow(t, l, 0); got.Allowed {
					t.Errorf("the limit is exceeded by 20, and a check fits")
				}
				if got := allow(t, below, 1); got.Allowed {
					t.Error("another server admits one more")
				}
			})
		})
	}
}

// Beside charges that leases cover, what counts anyway is counted, whoever refuses.
func TestReportBesideLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, link := newServer(t, shared, Config{}, 0)
		hot, used, log := named(t, s, "hot", year(1000)), named(t, s, "used", year(1000)), named(t, s, "log", core.SlidingLog(core.PerDay(3)))
		for range 200 {
			time.Sleep(time.Millisecond)
			allow(t, hot, 1)
		}
		calls := link.calls.Load()
		d := together(t, core.Charge{Limiter: used, Key: key, N: 7, Anyway: true}, core.Charge{Limiter: hot, Key: key, N: 1})
		if !d.Allowed || d.Source != core.SourceLease || d.Answer(0).Limiter != "used" || d.Answer(0).Remaining != 993 || link.calls.Load() != calls+1 {
			t.Errorf("%v from the %v, %+v, %d calls", d, d.Source, d.Answer(0), link.calls.Load()-calls)
		}
		if err := d.Refund(context.Background()); err != nil || remaining(t, used) != 993 || remaining(t, hot) != 800 {
			t.Errorf("refunded: %v, %d and %d are left", err, remaining(t, used), remaining(t, hot))
		}
		calls = link.calls.Load()
		for i, want := range []bool{true, true, true, false} {
			d := together(t, core.Charge{Limiter: log, Key: key, N: 1}, core.Charge{Limiter: used, Key: key, N: 1, Anyway: true})
			if d.Allowed != want || d.Answer(1).Remaining != 992-int64(i) {
				t.Errorf("call %d: %v, %+v", i, d, d.Answer(1))
			}
		}
		if n := link.calls.Load() - calls; n != 4 {
			t.Errorf("%d calls, where nothing is leased of what may refuse", n)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
