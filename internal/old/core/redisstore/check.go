package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/rediskey"
)

// A Report is what [Store.Check] found.
type Report struct {
	Servers  []ServerReport
	Problems []string // what to put right before going live
}

// A ServerReport describes one server: the one that is used, or each master of a Cluster, and
// their replicas.
type ServerReport struct {
	Address         string
	Replica         bool
	Name            string        // "Redis", or what the server calls itself, such as "valkey"
	Version         string        // of that; empty if the server does not tell
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
		role := ""
		if s.Replica {
			role = "replica, "
		}
		fmt.Fprintf(&b, "%s: %s%s %s, round trip %v, clock off by %v, maxmemory %d %s\n",
			s.Address, role, s.Name, cmp.Or(s.Version, "of an unknown version"), s.RoundTrip, s.Offset, s.MaxMemory, s.MaxMemoryPolicy)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	return b.String()
}

// MaxClockOffset is the difference between the clocks of a server and of this process above which
// [Store.Check] reports it. A failover to a server whose clock is ahead, or a step of a clock,
// admits more. Each policy then admits as much for a key as it would in the difference.
const MaxClockOffset = 100 * time.Millisecond

// Check looks for faults before going live. Examples are missing permissions, or a server that may
// evict state, is too slow, or has a wrong clock. It makes a few calls to each server. On each
// master it runs every command that the store uses. It also makes a decision by every algorithm,
// for keys of its own that expire. Replicas are the replicas of the Cluster, or the ones that the server names, called by
// the same user. A replica that does not answer is a problem. Check takes as long as the context
// lets it. An error means that another server did not answer. Then the report has the problems
// found so far.
func (s *Store) Check(ctx context.Context) (*Report, error) {
	var r Report
	if !s.backend.isCluster() {
		info, err := s.checkServer(ctx, &r, s.backend.client, false)
		if err == nil {
			s.checkTrial(ctx, &r, "Redis", 0)
			s.checkReplicas(ctx, &r, info)
		}
		return &r, err
	}
	cluster := s.backend.servers.cluster
	var mu sync.Mutex // servers are visited at the same time
	visit := func(replica bool) func(ctx context.Context, c *redis.Client) error {
		return func(ctx context.Context, c *redis.Client) error {
			var one Report
			_, err := s.checkServer(ctx, &one, c, replica)
			if replica && err != nil {
				one.replicaSilent(c.Options().Addr, err)
				err = nil
			}
			mu.Lock()
			defer mu.Unlock()
			r.Servers = append(r.Servers, one.Servers...)
			r.Problems = append(r.Problems, one.Problems...)
			return err
		}
	}
	err := cluster.ForEachMaster(ctx, visit(false))
	if err == nil {
		err = cluster.ForEachSlave(ctx, visit(true))
	}
	checkCluster(ctx, &r, cluster)
	masters, fault := hashSlotOfEach(ctx, cluster)
	if fault != nil {
		r.problemf("the Cluster does not tell its hash slots: %v", fault)
	}
	for address, hashSlot := range masters {
		s.checkTrial(ctx, &r, address, hashSlot)
	}
	return &r, err
}

// checkReplicas checks the replicas that the server names in its reply to INFO.
func (s *Store) checkReplicas(ctx context.Context, r *Report, info string) {
	client, ok := s.backend.client.(*redis.Client)
	if !ok {
		return // how another type connects is not known
	}
	for _, address := range replicasOf(info) {
		o := *client.Options()
		if o.Addr == sentinelAddr {
			o.Dialer = nil // which dials the master
		}
		o.Addr, o.MinIdleConns = address, 0
		replica := redis.NewClient(&o)
		if _, err := s.checkServer(ctx, r, replica, true); err != nil {
			r.replicaSilent(address, err)
		}
		_ = replica.Close()
	}
}

// replicasOf returns the addresses in lines such as slave0:ip=10.0.0.7,port=6379,state=online.
func replicasOf(info string) (addresses []string) {
	for {
		fields := infoField(info, "slave"+strconv.Itoa(len(addresses)))
		if fields == "" {
			return addresses
		}
		var ip, port string
		for field := range strings.SplitSeq(fields, ",") {
			switch name, value, _ := strings.Cut(field, "="); name {
			case "ip":
				ip = value
			case "port":
				port = value
			}
		}
		addresses = append(addresses, net.JoinHostPort(ip, port))
	}
}

// sentinelAddr is what go-redis has for the address of a client that asks Sentinels.
const sentinelAddr = "FailoverClient"

func (r *Report) replicaSilent(address string, err error) {
	r.problemf("the replica %s does not answer, so whether it could take over is not known: %v", address, err)
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
	if n := infoField(info, "cluster_slots_ok"); n != strconv.Itoa(rediskey.HashSlots) {
		r.problemf("the Cluster serves %s of its %d hash slots: keys in the others fail", n, rediskey.HashSlots)
	}
}

// hashSlotOfEach returns a hash slot of each master, by its address.
func hashSlotOfEach(ctx context.Context, c *redis.ClusterClient) (map[string]int, error) {
	ranges, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // CLUSTER SHARDS is not in Redis 6.2
	all := make(map[string]int)
	for _, r := range ranges {
		if len(r.Nodes) > 0 {
			all[r.Nodes[0].Addr] = r.Start
		}
	}
	return all, err
}

func (r *Report) problemf(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// checkServer returns what the server has replied to INFO.
func (s *Store) checkServer(ctx context.Context, r *Report, c redis.UniversalClient, replica bool) (info string, err error) {
	info, err = c.Info(ctx).Result() // all sections: 6.2 takes the name of one only
	if err != nil && !forbidden(err) {
		return "", fmt.Errorf("headgate: redisstore: %sdoes not answer: %w", whose(serverReport("", c).Address), err)
	}
	server := serverReport(info, c)
	server.Replica = replica
	if err != nil {
		r.problemf("%s does not say how it is configured, so whether it evicts keys is not known: %v", server.Address, err)
	}
	switch unsure, err := measure(ctx, c, &server); {
	case forbidden(err):
		r.problemf("%s does not tell the time: %v", server.Address, err)
	case err != nil:
		return "", err
	case server.Offset > MaxClockOffset+unsure:
		r.problemf("the clock of %s is %v ahead of this process's: synchronize both", server.Address, server.Offset)
	case -server.Offset > MaxClockOffset+unsure:
		r.problemf("the clock of %s is %v behind this process's: synchronize both", server.Address, -server.Offset)
	}
	r.Servers = append(r.Servers, server)
	if infoField(info, "cluster_enabled") == "1" && !s.backend.isCluster() {
		r.problemf("%s is a node of a Cluster, and the client is not for one, so that most decisions fail: set IsClusterMode, or use a redis.ClusterClient",
			server.Address)
	}
	s.checkConfig(r, &server)
	return info, nil
}

// serverReport is what INFO says of a server.
func serverReport(info string, c redis.UniversalClient) (server ServerReport) {
	// Others than Redis have its version too, for compatibility.
	name := infoField(info, "server_name")
	server.Name = cmp.Or(name, "Redis")
	server.Version = cmp.Or(infoField(info, name+"_version"), infoField(info, "redis_version"))
	server.MaxMemory, _ = strconv.ParseInt(infoField(info, "maxmemory"), 10, 64)
	server.MaxMemoryPolicy = infoField(info, "maxmemory_policy")
	if v, ok := c.(*redis.Client); ok {
		server.Address = v.Options().Addr
	}
	return server
}

// whose returns the subject of a sentence about the server at an address, if that is known.
func whose(address string) string {
	if address == "" {
		return "Redis "
	}
	return "Redis at " + address + " "
}

// measuredCalls is how many calls are timed. It is odd, so that there is a median.
const measuredCalls = 9

// measure measures the round trip to a server and the offset of its clock. As in NTP, the offset is
// that of the fastest call, which bounds the error best: by half its time.
func measure(ctx context.Context, c redis.UniversalClient, server *ServerReport) (unsure time.Duration, err error) {
	var trips []time.Duration
	for range measuredCalls {
		start := time.Now()
		at, err := c.Time(ctx).Result()
		if err != nil {
			return 0, fmt.Errorf("headgate: redisstore: %sdoes not tell the time: %w", whose(server.Address), err)
		}
		trip := time.Since(start)
		if len(trips) == 0 || trip < slices.Min(trips) {
			server.Offset = at.Sub(start.Add(trip / 2))
		}
		trips = append(trips, trip)
	}
	slices.Sort(trips)
	server.RoundTrip = trips[measuredCalls/2]
	return trips[0] / 2, nil
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

// checkTrial does what is done for limits.
func (s *Store) checkTrial(ctx context.Context, r *Report, address string, hashSlot int) {
	if err := s.backend.try(ctx, hashSlot); err != nil {
		r.problemf("%s cannot make decisions: %v", address, err)
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
		return false // unknown: the trial will tell
	}
	return major < 6 || major == 6 && minor < 2
}
