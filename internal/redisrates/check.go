package redisrates

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/rediskey"
)

// probed are the commands of the scripts.
const probed = "TIME|GET KEY|SET KEY 1 PX 1000|INCRBY KEY 1|APPEND KEY 1|SETRANGE KEY 0 1|DEL KEY"

// probeSource runs commands one after the other, and returns those that fail.
const probeSource = `
local missing = {}
for command in string.gmatch(ARGV[1], '[^|]+') do
  local words = {}
  for word in string.gmatch(command, '%S+') do words[#words + 1] = word == 'KEY' and KEYS[1] or word end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then missing[#missing + 1] = words[1] .. ' (' .. reply.err .. ')' end
end
return table.concat(missing, ', ')`

// apartSource sets keys, of which there are apartKeys: that one of two servers has them all is as likely as 1 in 2^31.
const (
	apartSource = `for _, key in ipairs(KEYS) do redis.call('SET', key, 1, 'PX', 60000) end`
	apartKeys   = 32
)

var errApart = errors.New("headgate: redisstore: a proxy sends each script to the server of its first key, and the " +
	"other keys are elsewhere: each server counts them by itself, up to the limit. Such proxies are not supported: " +
	"use one server, or a Cluster")

// maxOffset is the difference of clocks above which it is a fault: a failover to a server whose clock is ahead admits as
// much more as each policy would in the difference.
const maxOffset = 100 * time.Millisecond

// Check returns what to put right before going live, a line each: commands that fail, a server that may evict counts, or
// whose clock is not that of this process. On a Cluster it looks at each master.
func (s *Decider) Check(ctx context.Context) error {
	if s.servers.cluster == nil {
		if s.apart(ctx) {
			return errApart // a proxy may answer other questions by itself
		}
		return errors.Join(check(ctx, s.client, s.names.Common("rates", "check"))...)
	}
	ranges, err := s.servers.cluster.ClusterSlots(ctx).Result() //nolint:staticcheck // CLUSTER SHARDS is not in Redis 6.2
	if err != nil {
		return fmt.Errorf("headgate: redisstore: the Cluster does not tell its hash slots: %w", err)
	}
	faults, seen := []error(nil), make(map[string]bool)
	for _, r := range ranges {
		name := s.nameIn(r.Start, r.End)
		master, err := s.servers.cluster.MasterForKey(ctx, name)
		if err != nil {
			faults = append(faults, fmt.Errorf("headgate: redisstore: hash slots from %d on: %w", r.Start, err))
			continue
		}
		address := master.Options().Addr
		if seen[address] {
			continue
		}
		seen[address] = true
		for _, fault := range check(ctx, master, name) {
			faults = append(faults, fmt.Errorf("%w, at %s", fault, address))
		}
	}
	return errors.Join(faults...)
}

// apart reports whether what one script writes is not where each of its keys is read. A server that refuses keys of several
// hash slots in a script is not meant: the store sends these one by one.
func (s *Decider) apart(ctx context.Context) bool {
	var names []string
	for range apartKeys { // names that differ little may be at one server
		names = append(names, s.names.Common(rand.Text(), "check"))
	}
	err := s.client.Eval(ctx, apartSource, names).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false // of a script that fails, check tells
	}
	for _, name := range names {
		if err := s.client.Get(ctx, name).Err(); errors.Is(err, redis.Nil) {
			return true
		}
	}
	return false
}

// check returns the faults of one server.
func check(ctx context.Context, c redis.UniversalClient, name string) (f faults) {
	err := tryCommands(ctx, c, name)
	f.add(err != nil, "%w", err)
	start := time.Now()
	clock, err := c.Time(ctx).Result()
	took := time.Since(start)
	offset := clock.Sub(start.Add(took / 2))
	f.add(err == nil && max(offset, -offset) > maxOffset+took/2, "the clock of Redis is %v from that of this process", offset.Round(time.Millisecond))
	info, err := c.Info(ctx, "memory").Result() // who may not ask is not told
	evicts := !strings.Contains(info, "maxmemory:0\r") && !strings.Contains(info, "maxmemory_policy:noeviction")
	f.add(err == nil && evicts, "Redis may evict counts, and admits their limits again: set maxmemory-policy noeviction")
	return f
}

// tryCommands runs the commands of the scripts on a value that nobody uses, which lives for a second.
func tryCommands(ctx context.Context, c redis.UniversalClient, name string) error {
	missing, err := c.Eval(ctx, probeSource, []string{name}, probed).Text()
	if err != nil {
		return fmt.Errorf("scripts do not run: %w", err)
	}
	if missing != "" {
		return fmt.Errorf("commands fail in scripts: %s", missing)
	}
	return nil
}

// nameIn returns a name in a range of hash slots.
func (s *Decider) nameIn(first, last int) string {
	for i := 0; ; i++ {
		name := s.names.Common(fmt.Sprint("rates", i), "check")
		if hash := rediskey.HashSlot([]byte(name)); first <= hash && hash <= last {
			return name
		}
	}
}
