package redisstore

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A failover loses at most what its last moments had charged, and nobody restarts.
func TestSentinelFailover(t *testing.T) {
	notShort(t)
	t.Parallel()
	deployment := redistest.StartSentinel(t)
	s := openWith(t, Config{Failure: FailClosed, Timeout: 200 * time.Millisecond, RefusalTTL: -1}, &redis.UniversalOptions{
		Addrs: deployment.Addrs(), MasterName: redistest.MasterName,
	})
	patiently := openWith(t, Config{}, &redis.UniversalOptions{Addrs: deployment.Addrs(), MasterName: redistest.MasterName})
	if r, err := patiently.Check(t.Context()); err != nil || !r.OK() || len(r.Servers) != 2 || r.Servers[1].Address != deployment.Replica().Addr() {
		t.Errorf("%v: %+v", err, r)
	}
	const limit, askers = 1000, 20
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(limit)).Named("log"), core.FixedWindow(per(limit, 400*day)).Named("window"))
	var n load
	n.start(t, l, askers, 10*time.Millisecond, func(int) string { return "k" })
	n.await(t, "some to be admitted", func() bool { return n.admitted.Load() > limit/4 })
	killed := time.Now()
	old := deployment.KillMaster()
	atKill := n.admitted.Load()
	n.await(t, "Redis to be away", func() bool { return s.State().Away })
	master := deployment.WaitFailover(old)
	n.await(t, "Redis to be back", func() bool { return !s.State().Away })
	t.Logf("Redis was back %v after its master was killed", time.Since(killed))
	n.await(t, "the limit to be reached", func() bool { return n.refused.Load() > 20 })
	n.stop()

	// What the replica had not got, and what was charged for nobody, is the difference.
	got := n.admitted.Load()
	t.Logf("%d admitted of %d; %d when the master was killed; %d failed; the longest decision took %v",
		got, limit, atKill, n.failed.Load(), n.worst())
	if got > limit+atKill+askers || got < limit-n.failed.Load() {
		t.Errorf("%d admitted, the limit is %d", got, limit)
	}
	before := master.Calls("evalsha")
	eventually(t, "the new master to be asked", func() bool {
		d, err := l.Allow(t.Context(), "another")
		return err == nil && d.Allowed && master.Calls("evalsha") > before
	})
}
