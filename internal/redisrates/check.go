package redisrates

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/rediskey"
)

// faults are what is wrong with a store.
type faults []error

func (f *faults) add(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf("headgate: redisstore: "+format, args...))
	}
}

// addClient adds all that is wrong with a client, as far as its options tell.
func (f *faults) addClient(client redis.UniversalClient) {
	// A nil pointer in the interface would pass for a client, until the first decision.
	value := reflect.ValueOf(client)
	if !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		f.add(true, "the client is nil")
		return
	}
	// A client that does not return at the deadline holds up everybody who shares the call.
	deadlines := func(enabled bool, read, write time.Duration) {
		const instead = "in the options, or use redisstore.Open"
		f.add(!enabled, "the client ignores deadlines: set ContextTimeoutEnabled: true "+instead)
		// Negative is what go-redis makes of -2. Of -1, which respects deadlines, it makes 0.
		f.add(read < 0, "the client ignores deadlines when it reads: set a ReadTimeout of 0 or more "+instead)
		f.add(write < 0, "the client ignores deadlines when it writes: set a WriteTimeout of 0 or more "+instead)
	}
	switch v := client.(type) { // also what has one of go-redis's clients embedded
	case interface{ Options() *redis.Options }:
		o := v.Options()
		deadlines(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case interface{ Options() *redis.ClusterOptions }:
		// It is by its type that the store knows that there are hash slots.
		_, ok := client.(*redis.ClusterClient)
		f.add(!ok, "a %T hides a ClusterClient: use the ClusterClient itself, and its AddHook", client)
		o := v.Options()
		deadlines(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case interface{ Options() *redis.RingOptions }:
		f.add(true, "a Ring loses state when its servers change: use a Cluster")
	}
}

// scriptCommands are those of the scripts.
const scriptCommands = "TIME|GET KEY|SET KEY 1 PX 1000|INCRBY KEY 1|APPEND KEY 1|SETRANGE KEY 0 1|DEL KEY"

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

// maxOffset is the difference of clocks above which it is a fault: a failover to a server whose clock is ahead admits
// as much more as each policy would in the difference.
const maxOffset = 100 * time.Millisecond

// check is [Decider.Check].
func (s *script) check(ctx context.Context) error {
	if s.cluster == nil {
		if s.apart(ctx) {
			return errApart // a proxy may answer other questions by itself
		}
		return errors.Join(checkServer(ctx, s.client, s.names.Common("rates", "check"))...)
	}

	// A master is asked about a name of its own, which takes a range of its hash slots. It may have many ranges.
	ranges, err := s.cluster.ClusterSlots(ctx).Result() //nolint:staticcheck // CLUSTER SHARDS is not in Redis 6.2
	if err != nil {
		return fmt.Errorf("headgate: redisstore: the Cluster does not tell its hash slots: %w", err)
	}
	var faults []error
	seen := make(map[string]bool)
	for _, r := range ranges {
		name := s.nameIn(r.Start, r.End)
		master, err := s.cluster.MasterForKey(ctx, name)
		if err != nil {
			faults = append(faults, fmt.Errorf("headgate: redisstore: hash slots from %d on: %w", r.Start, err))
			continue
		}
		address := master.Options().Addr
		if seen[address] {
			continue
		}
		seen[address] = true
		for _, fault := range checkServer(ctx, master, name) {
			faults = append(faults, fmt.Errorf("%w, at %s", fault, address))
		}
	}
	return errors.Join(faults...)
}

// apart reports whether what one script writes is not where each of its keys is read. A server that refuses keys of
// several hash slots in a script is not meant: the store sends these one by one.
func (s *script) apart(ctx context.Context) bool {
	var names []string
	for range apartKeys { // names that differ little may be at one server
		names = append(names, s.names.Common(rand.Text(), "check"))
	}
	err := s.client.Eval(ctx, apartSource, names).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false // of a script that fails, checkServer tells
	}
	for _, name := range names {
		err := s.client.Get(ctx, name).Err()
		if errors.Is(err, redis.Nil) {
			return true
		}
	}
	return false
}

// checkServer returns the faults of one server.
func checkServer(ctx context.Context, client redis.UniversalClient, name string) (f faults) {
	err := tryCommands(ctx, client, name)
	f.add(err != nil, "%w", err)

	// The clock is read somewhere within the round trip: half of that is no offset.
	start := time.Now()
	clock, err := client.Time(ctx).Result()
	took := time.Since(start)
	offset := clock.Sub(start.Add(took / 2))
	apart := err == nil && max(offset, -offset) > maxOffset+took/2
	f.add(apart, "the clock of Redis is %v from that of this process", offset.Round(time.Millisecond))

	info, err := client.Info(ctx, "memory").Result() // who may not ask is not told
	evicts := !strings.Contains(info, "maxmemory:0\r") && !strings.Contains(info, "maxmemory_policy:noeviction")
	f.add(err == nil && evicts,
		"Redis may evict counts, and admits their limits again: set maxmemory-policy noeviction")
	return f
}

// tryCommands runs the commands of the scripts on a value that nobody uses, which lives for a second.
func tryCommands(ctx context.Context, client redis.UniversalClient, name string) error {
	missing, err := client.Eval(ctx, probeSource, []string{name}, scriptCommands).Text()
	if err != nil {
		return fmt.Errorf("scripts do not run: %w", err)
	}
	if missing != "" {
		return fmt.Errorf("commands fail in scripts: %s", missing)
	}
	return nil
}

// nameIn returns a name in a range of hash slots. There is no other way than to try: it is a hash.
func (s *script) nameIn(first, last int) string {
	for i := 0; ; i++ {
		name := s.names.Common(fmt.Sprint("rates", i), "check")
		hashSlot := rediskey.HashSlot([]byte(name))
		if first <= hashSlot && hashSlot <= last {
			return name
		}
	}
}
