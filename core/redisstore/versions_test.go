package redisstore

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// newClient makes a client that repeats nothing, as the versions must be told of which
// [heedsNoRetry] is false.
func newClient(o *redis.Options) *redis.Client {
	if !heedsNoRetry() && o.MaxRetries == 0 {
		o.MaxRetries = -1
	}
	return redis.NewClient(o)
}

const requireCluster = "HEADGATE_REQUIRE_CLUSTER"

// onCluster skips a test of Clusters under a version of go-redis that is refused for them,
// unless HEADGATE_REQUIRE_CLUSTER=1 is set. Then it fails.
func onCluster(t testing.TB) {
	t.Helper()
	if heedsNoRetry() {
		return
	}
	if os.Getenv(requireCluster) == "1" {
		t.Fatal("this version of go-redis is refused for Clusters; " + requireCluster + "=1 forbids to skip this test")
	}
	t.Skip("this version of go-redis is refused for Clusters")
}

// Versions that would repeat charges are refused, as far as they do.
func TestClientsThatRepeatAreRefused(t *testing.T) {
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true})
	defer single.Close()
	defer cluster.Close()
	for want, client := range map[string]redis.UniversalClient{
		"set MaxRetries: -1 in the options, or use redisstore.Open, or take go-redis 9.19 or later": single,
		"a Cluster needs go-redis 9.19 or later":                                                    cluster,
	} {
		if _, err := New(client, Config{}); (err == nil) != heedsNoRetry() || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if s, err := New(newClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}), Config{}); err != nil {
		t.Error(err)
	} else {
		s.Client().Close()
	}
}

func TestNoConnection(t *testing.T) {
	for text, want := range map[string]bool{
		"redis: connection pool timeout":   true,
		"redis: connection pool exhausted": true,
		"redis: client is closed":          false,
	} {
		if err := errors.New(text); noConnection(err) != want || noConnection(fmt.Errorf("a node: %w", err)) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
	if noConnection(nil) {
		t.Error("nil is an error")
	}
}
