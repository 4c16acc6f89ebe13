package redistest_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	if len(c.Masters) != 3 || len(c.Replicas) != 0 {
		t.Fatalf("%d masters, %d replicas", len(c.Masters), len(c.Replicas))
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Masters.Addrs()[:1]})
	defer client.Close()
	written := make(map[*redistest.Server]int)
	for i := range 300 {
		key := fmt.Sprint(i)
		if err := client.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		owner := c.Owner(key)
		written[owner]++
		if got, err := owner.Do("GET", key); got != key || err != nil {
			t.Errorf("key %s at %s: %v, %v", key, owner.Addr(), got, err)
		}
	}
	for i, master := range c.Masters {
		if n := written[master]; n < 50 || int64(n) != master.Calls("set") {
			t.Errorf("master %d has %d keys and saw %d calls", i, n, master.Calls("set"))
		}
	}

	c.Masters[1].Restart()
	c.WaitReady()
	if err := client.Set(t.Context(), "a", 1, 0).Err(); err != nil {
		t.Errorf("after the restart of a master: %v", err)
	}
}

func TestClusterWithReplicas(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	const key = "a"
	master := c.Owner(key)
	var replica *redistest.Server
	for i := range c.Masters {
		if c.Masters[i] == master {
			replica = c.Replicas[i]
		}
	}
	if _, err := master.Do("SET", key, "1"); err != nil {
		t.Fatal(err)
	}
	if got, err := master.Do("WAIT", "1", "4000"); got != int64(1) || err != nil {
		t.Fatalf("replicas in step: %v, %v", got, err)
	}

	master.Kill()
	c.WaitReady()
	if got := c.Owner(key); got != replica {
		t.Fatalf("%s has taken over from %s, not its replica %s", got.Addr(), master.Addr(), replica.Addr())
	}
	if got, err := replica.Do("GET", key); got != "1" || err != nil {
		t.Errorf("the new master has %v, %v", got, err)
	}
	master.Restart() // as a replica
	c.WaitReady()
	if got := c.Owner(key); got != replica {
		t.Errorf("%s has taken over from %s", got.Addr(), replica.Addr())
	}
}
