package lease

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// settle charges an estimate and settles it after a while, or reports at times. It notes the units that
// were used and had room: of a charge, at its time, those that are not given back, even if
// the process is killed before it has given back the others; and of a report, or a settlement above the
// estimate, those that are covered. That is never more than what the store must count.
func settle(ctx context.Context, log *os.File, limiters []*core.Limiter) {
	<-time.After(time.Duration(rand.Int64N(int64(time.Millisecond))))
	i, n := rand.IntN(2), 1+rand.Int64N(4)
	charges := []core.Charge{{Limiter: limiters[i], Key: key, N: n}}
	if rand.IntN(4) == 0 { // both limits, one key
		charges = append(charges, core.Charge{Limiter: limiters[1-i], Key: key, N: n})
	}
	if rand.IntN(40) == 0 {
		report(ctx, log, charges, i)
		return
	}
	start := time.Now().UnixNano()
	d, err := core.AllowAll(ctx, charges...)
	end := time.Now().UnixNano()
	if err != nil || !d.Allowed {
		return
	}
	actual := rand.Int64N(2*n + 1)
	leased := d.Source == core.SourceLease
	used := func(start, end, n int64, leased bool) {
		if n == 0 {
			return
		}
		for j := range charges {
			note(log, spent{start, end, n, int8(i ^ j), leased})
		}
	}
	used(start, end, min(n, actual), leased)
	<-time.After(time.Duration(rand.Int64N(int64(4 * time.Millisecond))))
	all := []int64{actual, actual}[:len(charges)]
	start = time.Now().UnixNano()
	uncovered, err := d.Settle(ctx, all...)
	if end = time.Now().UnixNano(); err == nil && actual > n {
		used(start, end, actual-n-uncovered, false)
	}
}

// report counts units, and notes those that had room.
func report(ctx context.Context, log *os.File, charges []core.Charge, first int) {
	start := time.Now().UnixNano()
	_, uncovered, err := core.ReportAll(ctx, charges...)
	end := time.Now().UnixNano()
	if err != nil {
		return
	}
	for j, c := range charges {
		if covered := c.N - uncovered; covered > 0 {
			note(log, spent{start, end, covered, int8(first ^ j), false})
		}
	}
}

// Processes that share limits never use more than these admit, beside what they say had no room, while
// all settle and report, one is stopped for longer and for shorter than its leases last, and
// one is killed and another starts.
func TestProcessesSettle(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newCrew(t, 4, settling, "", server.Addr())
	c.works()
	for range *troubles {
		for _, pause := range []time.Duration{short * 3 / 2, short / 4} {
			c.members[0].Pause()
			<-time.After(pause)
			c.members[0].Resume()
			c.works()
		}
		c.members[3].Kill()
		c.members[3] = c.start()
		c.works()
	}
	if over := c.stop(); over > 0 {
		t.Errorf("%d too many were used", over)
	}
}
