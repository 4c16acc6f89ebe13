package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/step"
)

// A Report is what [Store.Check] found.
type Report struct {
	Servers  []ServerReport
	Problems []string // what should be put right before going live
}

// A ServerReport tells of one server: of each master, if there are several.
type ServerReport struct {
	Address         string
	Version         string        // of Redis, or of what speaks its protocol
	RoundTrip       time.Duration // the median of a few calls
	Offset          time.Duration // of the server's clock, against this process's
	MaxMemory       int64         // bytes; 0: no bound
	MaxMemoryPolicy string
}

// OK reports whether nothing has to be put right.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

// String lists what was found, a line each.
func (r *Report) String() string {
	var b strings.Builder
	for _, s := range r.Servers {
		fmt.Fprintf(&b, "%s: Redis %s, round trip %v, clock off by %v, maxmemory %d %s\n",
			s.Address, s.Version, s.RoundTrip, s.Offset, s.MaxMemory, s.MaxMemoryPolicy)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	return b.String()
}

// Check looks at what a person would want to know before going live: whether the
// scripts may run, whether the server may evict state, how far it is away. It takes
// a few calls to each server and writes one key that expires. An error means that
// a server could not be asked; what was found until then is in the report.
func (s *Store) Check(ctx context.Context) (*Report, error) {
	r := &Report{}
	if !s.direct {
		r.problemf("the client does not heed deadlines: set ContextTimeoutEnabled, or use Open")
	}
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return r, s.checkServer(ctx, r, s.client)
	}
	var mu sync.Mutex // masters are visited at the same time
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		one := &Report{}
		err := s.checkServer(ctx, one, c)
		mu.Lock()
		defer mu.Unlock()
		r.Servers = append(r.Servers, one.Servers...)
		r.Problems = append(r.Problems, one.Problems...)
		return err
	})
	if info, e := cluster.ClusterInfo(ctx).Result(); e == nil && !strings.Contains(info, "cluster_state:ok") {
		r.problemf("the cluster does not serve all of its slots")
	}
	return r, err
}

func (r *Report) problemf(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

const checkCalls = 9

func (s *Store) checkServer(ctx context.Context, r *Report, c redis.UniversalClient) error {
	info, err := c.Info(ctx, "server", "memory").Result()
	if err != nil {
		return fmt.Errorf("headgate: INFO: %w", err)
	}
	field := func(name string) string { return infoField(info, name) }
	server := ServerReport{
		Version:         field("redis_version"),
		MaxMemoryPolicy: field("maxmemory_policy"),
	}
	if v, ok := c.(*redis.Client); ok {
		server.Address = v.Options().Addr
	}
	server.MaxMemory, _ = strconv.ParseInt(field("maxmemory"), 10, 64)

	var trips []time.Duration
	for range checkCalls {
		start := time.Now()
		at, err := c.Time(ctx).Result()
		if err != nil {
			return fmt.Errorf("headgate: TIME: %w", err)
		}
		trip := time.Since(start)
		trips = append(trips, trip)
		server.Offset = at.Sub(start.Add(trip / 2))
	}
	server.RoundTrip = median(trips)
	r.Servers = append(r.Servers, server)

	if server.MaxMemory > 0 && server.MaxMemoryPolicy != "noeviction" {
		r.problemf("%s evicts keys when its memory is full (maxmemory-policy %s): a key that is evicted starts afresh; use noeviction, or a server of its own",
			server.Address, server.MaxMemoryPolicy)
	}
	if old(server.Version) {
		r.problemf("%s is version %s: 6.2 is the oldest that is supported", server.Address, server.Version)
	}
	if server.RoundTrip > s.config.Timeout/4 {
		r.problemf("a call to %s takes %v, more than a quarter of the Timeout of %v", server.Address, server.RoundTrip, s.config.Timeout)
	}
	const noQuestion = ""
	for a := algorithms(0).with(step.TokenBucket); a <= algorithms(0).with(step.MinInterval); a <<= 1 {
		err := c.Do(ctx, "eval", s.scripts.of(a).source, 0, "", noQuestion).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			r.problemf("%s does not run the scripts: %v", server.Address, err)
			break
		}
	}
	for _, script := range []script{s.slots.state, s.slots.beat} {
		if err := c.Do(ctx, "eval", script.source, 0).Err(); err != nil {
			r.problemf("%s does not run the scripts of slots: %v", server.Address, err)
			break
		}
	}
	if err := c.Set(ctx, s.config.Prefix+":probe", 1, time.Minute).Err(); err != nil && !redis.HasErrorPrefix(err, "MOVED") {
		r.problemf("%s does not accept writes: %v", server.Address, err)
	}
	return nil
}

// infoField returns a field of what INFO tells.
func infoField(info, name string) string {
	_, rest, _ := strings.Cut("\n"+info, "\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r")
	return value
}

func median(d []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[len(sorted)/2]
}

// old reports a version before 6.2.
func old(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return false // it says nothing: let the scripts tell
	}
	return major < 6 || major == 6 && minor < 2
}
