package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

func TestSentinel(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinel(t)
	if len(d.Sentinels) != 3 || d.Master() != d.Servers[0] || d.Replica() != d.Servers[1] {
		t.Fatal("not as it should start")
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: d.Addrs()})
	defer client.Close()
	if err := client.Set(t.Context(), "a", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Wait(t.Context(), 1, 4*time.Second).Result(); n != 1 || err != nil {
		t.Fatalf("replicas in step: %d, %v", n, err)
	}

	if got := d.Failover(); got != d.Servers[1] || got != d.Master() || d.Replica() != d.Servers[0] {
		t.Fatal("the roles were not exchanged")
	}
	if got, err := client.Get(t.Context(), "a").Result(); got != "1" || err != nil {
		t.Errorf("after the failover: %q, %v", got, err)
	}

	old := d.KillMaster()
	if old != d.Servers[1] || old.Running() {
		t.Fatal("the master was not killed")
	}
	if got := d.WaitFailover(old); got != d.Servers[0] || got != d.Master() {
		t.Fatal("the replica has not taken over")
	}
	old.Restart() // as a master that the Sentinels make a replica
	d.WaitReady()
	if got, err := d.Replica().Do("GET", "a"); d.Replica() != old || got != "1" || err != nil {
		t.Errorf("the killed server has %v, %v", got, err)
	}
}
