// Package redisstore keeps the state of limiters in Redis, so that all servers of
// a service share it: a single Redis, a primary behind Sentinel, or a Cluster;
// Redis 6.2 or later, or Valkey.
//
//	store, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{})
//	...
//	limiter, err := core.New(store, "api", core.SlidingLog(core.PerMinute(60)))
//
// A decision is one call of one script, whatever the number of policies, timed by
// the clock of Redis: the clocks of the servers do not matter. Refused charges
// write nothing, except under CountDenied, for a key that is charged under several
// plans (see [core.Limiter.With]), and after the clock was ahead.
//
// If the clock of Redis steps ahead, each policy admits a key what it would in the time
// that is skipped, at most its limit or burst. When it is right again, keys that were charged
// meanwhile are refused for two of their windows at most.
//
// Redis answers nobody else while it runs a script. So the limits of all SlidingLogs of a
// limiter, which store each unit, are at most 2^14 units together, or [core.New] refuses the
// limiter; a [core.SlidingWindow] or [core.TokenBucket] may have any limit.
//
// # Fewer calls
//
// Decisions that arrive while others are in flight are sent together in the next
// call. A decision that arrives alone is sent at once, by its own goroutine. And
// a refusal is cached in this process for as long as it lasts, at most
// [Config].RefusalTTL: the same question, or a peek at it, is refused meanwhile
// without a call. Neither changes a decision: what this process charges, gives back or resets ends the cached
// refusals of the key. There are two exceptions, for at most RefusalTTL:
//
//   - What other processes do is not seen. After a charge of theirs, a cached RetryAfter is
//     too short; after a reset, a refund or a raised limit, the refusal is too long. The
//     same goes for a charge of this process that fails for its caller and is made later.
//   - Remaining does not grow with time. It never reaches what the question needs.
//
// # When Redis is unavailable
//
// No decision about a limit takes longer than [Config].Timeout, and none about a slot
// longer than SlotTimeout, in which what follows is said of Timeout. After three failures in a row, or two
// Timeouts in which Redis has answered nothing at all, no decision is sent to Redis until
// a probe in the background succeeds; [Config].Failure says how decisions are made
// meanwhile, and [core.Decision].Source shows it. A charge that was sent and not answered
// may have been made: then less is admitted, never more.
//
// A caller whose context ends earlier leaves then, and its call goes on without it. So
// Redis is found to be silent however early the callers' deadlines are, and callers who
// hang up, or whose questions are slow, do not make it unavailable to others.
//
// If Redis loses its last writes in a failover, what they had charged is admitted
// once more, at most; and if the clock of the replica is ahead, what the difference of the
// clocks admits: [Store.Check] reports the clocks. A Cluster whose two halves both accept writes admits up to
// the limit in each.
//
// # Keys in a Cluster
//
// All policies of a key are in one hash slot. [core.AllowAll] of keys in different hash
// slots makes the charges one after the other, the smallest limit first, and gives them
// back if a later one is refused. So another decision may be refused meanwhile that would
// be admitted a moment later. If giving back fails, or the process ends before, the charge
// counts until it expires, as if it had been admitted: less is admitted, never more.
//
// # Slots
//
// A Store is also a [store.SlotStore]. The process that holds slots has the truth: for
// each key, Redis stores how many each process has stated that it holds, and a process
// states them again where Redis may have lost them. A process sends a heartbeat every
// SlotTTL/3, however many slots it holds, from a goroutine that runs from the first
// acquire until all names are closed, or the client is. An acquire that races with
// [core.Slots.Close] may leave that goroutine running until the client is closed.
//
// While Redis answers, a key never holds more than its limit. Failures cost at most
// this, where n is the number of slots of a key that the process holds:
//
//   - A process is killed: its slots are free after two thirds of SlotTTL at the earliest,
//     for its death counts from its last heartbeat, and after SlotTTL and a third of it at
//     the latest, or as much later as the heartbeats of the others are late; or, with an
//     [Config].Instance, when it is started again. After [core.Slots.Close] they are free
//     at once.
//   - A process is stopped, or alone cut off from Redis: in the same span others begin to
//     take its slots, so a pause of two thirds of SlotTTL may be enough, and one of SlotTTL
//     is. It still holds n too many. [core.Slot.Lost] reports that with the next heartbeat,
//     which is at once after a stop, and after a partition SlotTTL/15 after it ends, or
//     SlotTimeout if that is longer. Then all its slots are stated again, 128 keys at a time;
//     what fails is tried again after SlotTTL/120, then after twice as long each time, up
//     to SlotTTL/15. With that, others take no more.
//   - Redis is emptied, restarted, or fails over to a replica without the last writes: for
//     two thirds of SlotTTL at most the slots of other processes may not be counted, and
//     as many be granted again, never more than the limit to one process. No slot is lost.
//     Two halves of a Cluster that both accept writes grant up to the limit each.
//   - Redis is unavailable, to all processes and for up to a day: no slot is lost, and
//     what was released and granted meanwhile is counted when Redis is back. Under
//     FailLocal a process grants while it holds less than the limit, divided by
//     [Config].Servers; with one server, while it and what the last answer about the key
//     counted of others, if it is not older than SlotTTL, are less than the limit. Under
//     FailOpen it always grants, unless the limit is 0; under FailClosed never. The same holds
//     for a process that starts meanwhile. A process in which 16,384 acquires wait for Redis
//     decides others in the same way.
//   - Heartbeats fail, to all processes: no slot is lost. Redis is unavailable to slots after
//     three failures, whatever else it answers. In a Cluster one master has the heartbeats of the
//     slots of all keys; slots of keys of other masters are granted by these for another SlotTTL.
//
// If a key holds more than its limit after that, it gets no more, and [core.Slot.Shed] gives
// up what is too many.
//
// Releases are sent in the background, together with others. A refusal is cached for
// 150 ms from when Redis was asked. A key of which nobody holds a slot is deleted, but up to
// 20 SlotTTL later if a call for it had no answer: that may yet arrive. Slots are not granted
// in order: processes that acquire again at once after a release may keep others waiting.
// All servers of a service must use the same SlotTTL.
//
// # Keys
//
// The policies of a limiter share a key in Redis for each key that they limit, and a
// SlidingLog has one of its own. See [Config] for how keys are named, hashed and hidden.
// Every key expires when its state no longer counts, or up to half as much later. A policy is found by a hash of its name:
// if two policies of limiters of one name have one algorithm and one hash, which is so once in
// millions, [core.New] and [core.Limiter.With] refuse the second.
package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/internal/remote"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
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
// User, password and database may be missing, and what is special in them is
// percent-encoded. More options are in the query, as [redis.ParseURL] describes.
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

// Open makes a suitable client and its Store. The options are used as they are, except
// that ContextTimeoutEnabled is set, and for what is 0:
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
	// Away means that Redis is unavailable, for limits, slots or both, and
	// [Config].Failure decides. In a Cluster, that is so for the keys of at least one
	// master, or will be for the slots of all keys, as heartbeats fail.
	Away   bool
	Since  time.Time // the time of the last change; zero if there was none
	Reason error     // the newest failure of what is unavailable; nil if nothing is
}
