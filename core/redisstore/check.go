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
)

// A Report is what [Store.Check] found.
type Report struct {
	Servers  []ServerReport
	Problems []string // what to put right before going live
}

// A ServerReport describes one server; in a Cluster, each master.
type ServerReport struct {
	Address         string
	Version         string        // of Redis, or of what speaks its protocol
	RoundTrip       time.Duration // the median of a few calls
	Offset          time.Duration // of the server's clock from this process's, by the fastest call
	MaxMemory       int64         // in bytes; 0: no bound
	MaxMemoryPolicy string
}

// OK reports whether there are no problems.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

// String lists the servers and the problems, a line each.
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

// Check looks for what is wrong before going live: scripts that may not run, a server
// that may evict state, a server that is too slow. It makes a few calls to each server
// and writes one key that expires. It takes as long as the context lets it. An error
// means that a server did not answer; the report has what was found until then.
func (s *Store) Check(ctx context.Context) (*Report, error) {
	var mu sync.Mutex // masters are visited at the same time, even after Check has returned
	var r Report
	add := func(one *Report) {
		mu.Lock()
		defer mu.Unlock()
		r.Servers = append(r.Servers, one.Servers...)
		r.Problems = append(r.Problems, one.Problems...)
	}
	if !s.direct {
		r.problemf("the client ignores deadlines: use Open, or set ContextTimeoutEnabled and no timeout of -2")
	}
	err := s.withDeadline(ctx, func() error {
		cluster, ok := s.client.(*redis.ClusterClient)
		if !ok {
			var one Report
			err := s.checkServer(ctx, &one, s.client)
			add(&one)
			return err
		}
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			var one Report
			err := s.checkServer(ctx, &one, c)
			add(&one)
			return err
		})
		var one Report
		checkCluster(ctx, &one, cluster)
		add(&one)
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	return &Report{slices.Clone(r.Servers), slices.Clone(r.Problems)}, err
}

func checkCluster(ctx context.Context, r *Report, c *redis.ClusterClient) {
	info, err := c.ClusterInfo(ctx).Result()
	if err != nil {
		r.problemf("the Cluster does not say whether it serves all of its hash slots: %v", err)
		return
	}
	if state := infoField(info, "cluster_state"); state != "ok" {
		r.problemf("the state of the Cluster is %q: decisions fail until it is ok", state)
	}
	if n := infoField(info, "cluster_slots_ok"); n != strconv.Itoa(hashSlots) {
		r.problemf("the Cluster serves %s of its %d hash slots: keys in the others fail", n, hashSlots)
	}
}

func (r *Report) problemf(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (s *Store) checkServer(ctx context.Context, r *Report, c redis.UniversalClient) error {
	info, err := c.Info(ctx).Result() // all sections: 6.2 takes the name of one only
	if err != nil {
		return fmt.Errorf("headgate: INFO: %w", err)
	}
	server := serverReport(info, c)
	if err := measure(ctx, c, &server); err != nil {
		return err
	}
	r.Servers = append(r.Servers, server)
	if infoField(info, "cluster_enabled") == "1" && !s.cluster {
		r.problemf("%s is a node of a Cluster, and the client is not for one, so that most decisions fail: set IsClusterMode, or use a redis.ClusterClient",
			server.Address)
	}
	s.checkConfig(r, &server)
	s.checkScripts(ctx, r, c, server.Address)
	s.checkWrites(ctx, r, c, server.Address)
	return nil
}

// serverReport is what INFO says of a server.
func serverReport(info string, c redis.UniversalClient) (server ServerReport) {
	server.Version = infoField(info, "redis_version")
	server.MaxMemory, _ = strconv.ParseInt(infoField(info, "maxmemory"), 10, 64)
	server.MaxMemoryPolicy = infoField(info, "maxmemory_policy")
	if v, ok := c.(*redis.Client); ok {
		server.Address = v.Options().Addr
	}
	return server
}

// measuredCalls is how many calls are timed. It is odd, so that there is a median.
const measuredCalls = 9

// measure measures the round trip to a server and the offset of its clock. As in NTP, the offset is
// that of the fastest call, which bounds the error best.
func measure(ctx context.Context, c redis.UniversalClient, server *ServerReport) error {
	var trips []time.Duration
	for range measuredCalls {
		start := time.Now()
		at, err := c.Time(ctx).Result()
		if err != nil {
			return fmt.Errorf("headgate: TIME: %w", err)
		}
		trip := time.Since(start)
		if len(trips) == 0 || trip < slices.Min(trips) {
			server.Offset = at.Sub(start.Add(trip / 2))
		}
		trips = append(trips, trip)
	}
	slices.Sort(trips)
	server.RoundTrip = trips[measuredCalls/2]
	return nil
}

func (s *Store) checkConfig(r *Report, server *ServerReport) {
	if server.MaxMemory > 0 && server.MaxMemoryPolicy != "noeviction" {
		r.problemf("%s evicts keys when its memory is full (maxmemory-policy %s), which admits their whole limit again: use noeviction, or a server of its own",
			server.Address, server.MaxMemoryPolicy)
	}
	if unsupported(server.Version) {
		r.problemf("%s is version %s: use 6.2 or later", server.Address, server.Version)
	}
	if server.RoundTrip > s.config.Timeout/4 {
		r.problemf("a call to %s takes %v, more than a quarter of the Timeout of %v: raise the Timeout, or use a server that is nearer",
			server.Address, server.RoundTrip, s.config.Timeout)
	}
}

// checkScripts runs each script without keys and questions.
func (s *Store) checkScripts(ctx context.Context, r *Report, c redis.UniversalClient, address string) {
	for _, x := range scripted {
		err := c.Do(ctx, eval, s.scripts.of(algorithmSet(0).with(x)).source, 0, "", "").Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			r.problemf("%s does not run the scripts: %v", address, err)
			break
		}
	}
	for _, script := range []script{s.slots.state, s.slots.beat} {
		if err := c.Do(ctx, eval, script.source, 0).Err(); err != nil {
			r.problemf("%s does not run the scripts of slots: %v", address, err)
			break
		}
	}
}

func (s *Store) checkWrites(ctx context.Context, r *Report, c redis.UniversalClient, address string) {
	err := c.Set(ctx, s.config.Prefix+":probe", 1, time.Minute).Err()
	if err != nil && (!s.cluster || !redis.HasErrorPrefix(err, "MOVED")) { // another master has that key
		r.problemf("%s does not accept writes: %v", address, err)
	}
}

// infoField returns a field of a reply of INFO.
func infoField(info, name string) string {
	_, rest, _ := strings.Cut("\n"+info, "\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r")
	return value
}

// unsupported reports whether a version is before 6.2.
func unsupported(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return false // unknown: checkScripts will tell
	}
	return major < 6 || major == 6 && minor < 2
}
