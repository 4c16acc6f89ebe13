// Package redisstore makes rate limiters and slots distributed: it keeps their state in Redis, so
// that all servers of a service share limits and quotas. It works with a single Redis, a primary
// behind Sentinel, or a Cluster. It needs Redis 6.2 or later, or Valkey.
//
//	store, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{})
//	...
//	limiter, err := core.New(store, "api", core.SlidingLog(core.PerMinute(60)))
//
// A decision is one call of one script, whatever the number of policies. The clock of Redis times
// it; the clocks of the servers do not matter. A refused charge writes nothing, with three
// exceptions. It writes under CountDenied, and after the clock was ahead. It also writes for a key
// that is charged under several plans (see [core.Limiter.With]).
//
// The clock of Redis may step ahead. Then each policy admits a key for the skipped time, at most its
// limit or burst. When the clock is right again, keys that were charged meanwhile are refused for two
// of their windows at most. A token bucket refuses them at most until all of its Debt and its burst
// have refilled.
//
// Redis answers nobody else while it runs a script. A SlidingLog stores each unit, so all SlidingLogs
// of a limiter may have at most 2^14 units together. [core.New] refuses a limiter with more. A
// [core.SlidingWindow] or [core.TokenBucket] may have any limit.
//
// # Fewer calls
//
// Decisions that arrive while others are in flight are sent together in the next call. A decision
// that arrives alone is sent at once, by its own goroutine.
//
// This process also remembers a refusal for as long as it lasts, at most [Config].RefusalTTL.
// Meanwhile it refuses the same question, or a peek at it, without a call. A charge, refund or reset
// by this process ends the remembered refusals of the key. So neither changes a decision, with two
// exceptions that last at most RefusalTTL:
//
//   - Other processes are not seen. After their charges, a remembered RetryAfter is too short.
//     After their resets or refunds, or a raised limit, the refusal is too long. So it is after a
//     charge of this process that fails for its caller and is made later.
//   - Remaining does not grow with time. It never reaches the units that the question needs.
//
// # When Redis is unavailable
//
// No decision about a rate takes longer than [Config].Timeout. For slots, SlotTimeout takes its place
// here and below. Redis is away after three failures in a row. Timeouts count only if Redis has
// answered nothing for two Timeouts. Then no decision is sent to Redis until a probe in the background
// succeeds. [Config].Failure says how decisions are made meanwhile, and [core.Decision].Source shows
// it. A charge that was sent and not answered may have been made: then less is admitted, never more.
//
// A caller whose context ends earlier leaves then, and its call goes on without it. So Redis is found
// to be silent, however early the deadlines of callers are. Callers who hang up, or ask slow questions,
// do not make Redis unavailable to others.
//
// A failover may lose the last writes of Redis. Then the charges in them can be admitted once more, at
// most. If the clock of the replica is ahead, it also admits for the difference of the clocks, which
// [Store.Check] reports. A Cluster whose two halves both accept writes admits up to the limit in each.
//
// # Keys in a Cluster
//
// All policies of a key are in one hash slot. [core.AllowAll] of keys in different hash slots makes the
// charges one after the other. The first is the one that fits least often into its limit. If a later
// one is refused, it gives the earlier ones back. Until then it may cause another refusal, for a
// decision that would be admitted a moment later. If giving back fails, or the process ends before,
// the charge counts until it expires. Then less is admitted, never more.
//
// # Slots
//
// A Store is also a [store.SlotStore]. The process that holds slots has the truth. For each key,
// Redis stores how many slots each process has stated. A process states them again where Redis may
// have lost them. It sends one heartbeat every SlotTTL/3 for all its slots, from a single goroutine.
// The goroutine runs from the first acquire until all names are closed, or the client is. If an
// acquire races with [core.Slots.Close], the goroutine may run until the client is closed.
//
// While Redis answers, a key never holds more than its limit. Failures cost at most
// this, where n is the number of slots of a key that the process holds:
//
//   - A process is killed: its slots are free between two thirds of SlotTTL and four thirds after
//     that. Late heartbeats of the others add to that. With an [Config].Instance, they are free
//     when the process is started again. After [core.Slots.Close] they are free at once.
//   - A process is stopped, or alone cut off from Redis: others take its slots after the same time.
//     A pause of two thirds of SlotTTL may be enough, and a pause of SlotTTL is. The process still
//     holds its n slots, which are then too many. [core.Slot.Lost] reports that with the next
//     heartbeat. After a stop that is at once. After a partition it takes SlotTTL/15, or SlotTimeout
//     if that is longer. Then the process states all its slots again, 128 keys at a time. A failed
//     statement is repeated after SlotTTL/120, then after twice as long each time, up to SlotTTL/15.
//     From then on, others take no more.
//   - Redis is emptied, restarted, or fails over to a replica without the last writes: no slot is
//     lost. For up to two thirds of SlotTTL, the slots of other processes may not be counted. So as
//     many may be granted again, but one process never gets more than the limit. Two halves of a
//     Cluster that both accept writes grant up to the limit each.
//   - Redis is unavailable to all processes, for up to a day: no slot is lost. Releases and grants
//     of that time are counted when Redis is back. [Config].Failure decides meanwhile, also in a
//     process that starts then. FailClosed never grants. FailOpen always grants, unless the limit
//     is 0. With FailLocal, [Config].Servers divides the limit, and the process grants while it
//     holds less than that. With one server, it also counts the slots of others in the last answer
//     about the key, if that is not older than SlotTTL. A process in which 16,384 acquires wait for
//     Redis decides further acquires in the same way.
//   - Heartbeats fail, in all processes: no slot is lost. After three failures Redis is unavailable to
//     slots, whatever else it answers. In a Cluster, one master has the heartbeats for all keys. The
//     other masters still grant slots of their keys for another SlotTTL.
//
// If a key holds more than its limit after that, it gets no more slots. [core.Slot.Shed] gives up the
// surplus.
//
// Releases are sent in the background, together with others. A refusal is remembered for 150 ms from
// the call to Redis. A key without held slots is deleted. If a call for it had no answer, that may take
// up to 20 SlotTTL, because the call may yet arrive. Slots are not granted in order. Processes that
// acquire again at once after a release may keep others waiting. All servers of a service must use the
// same SlotTTL.
//
// # Keys
//
// The policies of a limiter share one Redis key for each key that they limit. A SlidingLog has
// a Redis key of its own. [Config] says how keys are named, hashed and hidden. Every key expires when
// its state no longer counts, or up to half as much later.
//
// A policy is found by a hash of its name. Two policies of one algorithm may have the same hash, in
// limiters of one name. That happens once in millions; then [core.New] and [core.Limiter.With] refuse
// the second.
package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redisurl"
)

// A Store is a [store.Store] in Redis. It is safe for concurrent use. It has
// nothing to close but the client.
type Store struct {
	limits // a stack of layers: see package remote
	slots

	backend *backend
	config  Config // without the Secret
}

type (
	limits = store.Store
	slots  = *remote.Slots
)

// OpenURL is [Open] for one Redis, which a URL names:
//
//	redis://user:password@localhost:6379/0
//	rediss://user:password@redis.example.com:6379/0    with TLS
//	unix://user:password@/run/redis.sock?db=0
//
// User, password and database may be missing. Special characters in them are percent-encoded. More
// options are in the query, as [redis.ParseURL] describes.
//
// An error does not show the URL, which may contain a password.
func OpenURL(url string, c Config) (*Store, error) {
	o, err := redisurl.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("headgate: redisstore: %w", err)
	}
	c = c.withDefaults()
	o.ContextTimeoutEnabled = true
	c.suit(&o.ReadTimeout, &o.WriteTimeout, &o.DialTimeout, &o.DialerRetries, &o.MaxRetries)
	return owning(redis.NewClient(o), c)
}

// Open makes a suitable client and its Store. It sets ContextTimeoutEnabled, and replaces options
// that are 0. Others stay as they are:
//
//   - WriteTimeout becomes the Config's Timeout, and DialTimeout and ReadTimeout that or
//     SlotTimeout, the longer. A ReadTimeout or WriteTimeout of -2 is treated as 0.
//   - DialerRetries becomes 1 and MaxRetries -1, so that a connection that is refused or cut
//     is known at once: nothing is repeated.
//
// Close the client through [Store.Client].
func Open(options *redis.UniversalOptions, c Config) (*Store, error) {
	if options == nil {
		return nil, errors.New("headgate: redisstore: the options are nil")
	}
	o := *options
	c = c.withDefaults()
	o.ContextTimeoutEnabled = true
	c.suit(&o.ReadTimeout, &o.WriteTimeout, &o.DialTimeout, &o.DialerRetries, &o.MaxRetries)
	return owning(redis.NewUniversalClient(&o), c)
}

// suit sets those of a client's options that are 0.
func (c Config) suit(read, write, dial *time.Duration, dialerRetries, maxRetries *int) {
	if *read == 0 || *read < -1 { // below, go-redis sets no deadlines at all
		*read = max(c.Timeout, c.SlotTimeout) // a call's own deadline may be earlier
	}
	if *write == 0 || *write < -1 {
		*write = c.Timeout
	}
	if *dial == 0 {
		*dial = max(c.Timeout, c.SlotTimeout)
	}
	if *dialerRetries == 0 {
		*dialerRetries = 1
	}
	if *maxRetries == 0 { // also of the first command on a connection, and to Sentinels
		*maxRetries = -1
	}
}

// owning makes the Store of a client of its own, which it closes if there is a fault.
func owning(client redis.UniversalClient, c Config) (*Store, error) {
	s, err := New(client, c)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return s, nil
}

// New makes a Store that uses the client: a redis.Client, also one that asks Sentinels, or
// a redis.ClusterClient. Prefer [Open], which sets a client's options right.
//
// A client that ignores deadlines is refused, as a decision would wait for it: one without
// ContextTimeoutEnabled, or with a ReadTimeout or WriteTimeout below -1. One that repeats takes until the Timeout to tell that a
// connection is refused: unless DialerRetries is 1 and MaxRetries -1. A charge is never repeated.
// A Ring is refused because it loses state when its servers change.
//
// Another type that implements redis.UniversalClient, such as one with a redis.Client
// embedded, is taken for a client of one server. If it has the method Options of the
// clients above, it is held to the same. If not, New cannot tell: it must return when a
// context's deadline comes. In any case it must not use a command after returning from it.
// A redis.ClusterClient must be given as it is: AddHook extends it.
//
// The error joins everything that is wrong.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	c = c.withDefaults()
	if faults := append(c.faults(), clientFaults(client)...); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	b := &backend{
		client: client, names: namer{c.Prefix, newMAC(c.Secret)},
		timeout: c.Timeout, slotTimeout: c.SlotTimeout,
	}
	c.Secret = nil // it is in names, where printing does not show it
	b.servers.cluster, _ = client.(*redis.ClusterClient)
	return &Store{limits: stack(b, c), slots: remote.NewSlots(b, c.remote(), c.slots()), backend: b, config: c}, nil
}

// stack returns the layers over a backend.
func stack(b *backend, c Config) store.Store {
	sender := remote.NewSender(b, c.remote())
	var top store.Store = sender
	if c.RefusalTTL > 0 {
		top = remote.NewRefusals(sender, c.RefusalTTL, c.Timeout)
	}
	if b.isCluster() {
		top = remote.NewInTurn(top, b.hashSlot, c.Timeout)
	}
	return remote.NewFailover(top, remote.Failure(c.Failure), memstore.New(memstore.Config{}), c.Servers)
}

// clientFaults returns all that is wrong with a client, as far as its options tell.
func clientFaults(client redis.UniversalClient) (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("headgate: redisstore: "+format, args...))
	}
	if client == nil {
		fault("the client is nil")
		return faults
	}
	if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() {
		fault("the client is a nil %T", client)
		return faults
	}
	const instead = "in the options, or use redisstore.Open"
	deadlines := func(enabled bool, read, write time.Duration) {
		if !enabled {
			fault("the client ignores deadlines: set ContextTimeoutEnabled: true " + instead)
		}
		// Negative is what go-redis makes of -2. Of -1, which respects deadlines, it makes 0.
		if read < 0 {
			fault("the client ignores deadlines when it reads: set a ReadTimeout of 0 or more " + instead)
		}
		if write < 0 {
			fault("the client ignores deadlines when it writes: set a WriteTimeout of 0 or more " + instead)
		}
	}
	switch v := client.(type) { // also what has one of go-redis's clients embedded
	case interface{ Options() *redis.Options }:
		o := v.Options()
		deadlines(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case interface{ Options() *redis.ClusterOptions }:
		if _, ok := client.(*redis.ClusterClient); !ok {
			fault("a %T hides a ClusterClient: use the ClusterClient itself, and its AddHook", client)
		}
		o := v.Options()
		deadlines(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case interface{ Options() *redis.RingOptions }:
		fault("a Ring loses state when its servers change: use a Cluster")
	}
	return faults
}

// Client returns the client, for example to close it.
func (s *Store) Client() redis.UniversalClient { return s.backend.client }

// Kind implements [store.Kinded]: "redis", and the Servers by which FailLocal divides.
func (s *Store) Kind() string {
	if s.config.Failure == FailLocal && s.config.Servers > 1 {
		return "redis " + strconv.Itoa(s.config.Servers)
	}
	return "redis"
}

// Observer implements [store.Store] and [store.SlotStore].
func (s *Store) Observer() *store.Observer { return s.config.Observer }

// State returns whether Redis is used at the moment. It makes no call.
func (s *Store) State() State { return State(remote.StateOf(s.backend.Servers(), s.slots)) }

// State is whether a Store uses Redis, as [Store.State] returns it.
type State struct {
	// Away means that Redis is unavailable, for limits, slots or both, and [Config].Failure
	// decides. In a Cluster, it is true for the keys of at least one master. Or heartbeats fail,
	// and it soon will be true for the slots of all keys.
	Away   bool
	Since  time.Time // the time of the last change; zero if there was none
	Reason error     // the newest failure of an unavailable server; nil if all are available
}
