// Package redisstore keeps the counts of limiters and slots in Redis, so that all servers share them: Redis from 6.2
// on or Valkey, one server, Sentinel or Cluster.
//
//	store, err := redisstore.Open("redis://localhost:6379/0", redisstore.Config{})
//	...
//	defer store.Close(ctx)
//	limit := nethttp.Limit(store, "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
//
// A decision is one call of a script, which decisions of other callers share; a refusal is remembered, and repeated
// without a call. Times are those of the Redis server. While Redis is away, [Config].Failure decides.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/lease"
	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redisrates"
	"github.com/headgate/headgate/internal/redisslots"
	"github.com/headgate/headgate/internal/redisurl"
	"github.com/headgate/headgate/internal/slots/keeper"
	"github.com/headgate/headgate/internal/store"
)

// Config configures a [Store]. Its zero value is ready to use.
type Config struct {
	// Prefix begins the name of every key in Redis. Empty means "headgate".
	Prefix string

	// Secret, of 32 bytes or more, hides keys: Redis sees their HMAC-SHA-256 under it. All servers must share it.
	// Without it keys are readable in Redis, but for those above 128 bytes, which are hashed.
	Secret []byte `json:"-"`

	// Failure says how decisions are made while Redis is away.
	Failure Failure

	// Servers is the number of servers: FailLocal divides limits by it. 0 and 1 leave them as they are.
	Servers int

	// Observers are told of decisions and slots, and when Redis is away or back.
	Observers []*core.Observer

	// Timeout bounds a decision about a rate: 1 ms or more; 0 means 100 ms.
	Timeout time.Duration

	// SlotTimeout bounds one call about slots, of which an acquire may need two: from 1 ms to a third of SlotTTL. 0
	// means 2 s, or Timeout if that is more, or a third of SlotTTL if that is less.
	SlotTimeout time.Duration

	// SlotTTL is the time after which the slots of a process that died are free: 100 ms to 1 h, the same on all
	// servers. 0 means 15 s.
	SlotTTL time.Duration

	// RefusalTTL is the longest time for which a refusal is remembered. 0 means 1 s; a negative value that none is.
	RefusalTTL time.Duration

	// Lease, if not 0, lets this process charge units of hot keys ahead, for at most that long: 1 ms to 1 min. Then
	// these keys are decided in memory, and the limit of the fleet still holds. Only FixedWindow, SlidingWindow and
	// Calendar are leased, without FromFirst and CountDenied. Units that are leased and not used are missing elsewhere
	// until they are given back.
	Lease time.Duration
}

// Format implements [fmt.Formatter]: it prints no Secret.
func (c Config) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "redisstore.Config{Prefix: %q}", c.Prefix)
}

// Failure says how decisions are made while Redis is away. Its texts are "local", "open" and "closed".
type Failure = outage.Failure

const (
	// FailLocal decides in this process, by the limits divided by [Config].Servers. Slots count those that others held
	// by the last answer of Redis.
	FailLocal = outage.FailLocal

	// FailOpen admits everything but a charge above a limit, and slots whose limit is 0.
	FailOpen = outage.FailOpen

	// FailClosed returns [core.ErrUnavailable]: guards answer with 503.
	FailClosed = outage.FailClosed
)

// A Store is a [core.Store] in Redis. It is safe for concurrent use.
type Store struct {
	rates   *redisrates.Decider
	slots   *redisslots.Registry
	backend backend.Stores
	owned   bool // the client
}

// Open returns a store of the Redis that a URL names, as go-redis reads it:
//
//	redis://user:password@host:6379/0                        one server; rediss:// with TLS, unix:///redis.sock?db=0
//	redis://user:password@host:6379?addr=host2:6379          a Cluster, with addr for each further node
//	redis://host:26379/0?master_name=main&addr=host2:26379   a primary behind Sentinels, with addr for each further
//	    &username=user&password=password                     one; the user before the host is that of the Sentinels
//
// It does not connect. The error has all faults, and does not show the URL.
func Open(url string, config Config) (*Store, error) {
	config = config.withDefaults()
	client, err := redisurl.Open(url, redisurl.Config{Timeout: max(config.Timeout, config.SlotTimeout)})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("headgate: redisstore: %w", err), config.faults())
	}
	s, err := New(client, config)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s.owned = true
	return s, nil
}

// New returns a store that uses a client of yours. It does not connect. The client must heed
// deadlines: it is refused without ContextTimeoutEnabled. The error has all faults.
func New(client redis.UniversalClient, config Config) (*Store, error) {
	config = config.withDefaults()
	var observer *store.Observer // nil: nobody is told
	for _, o := range config.Observers {
		observer = observer.And(o.Backend(nil))
	}
	hooks := cmp.Or(observer, new(store.Observer))
	rates, err := redisrates.New(client, redisrates.Config{
		Prefix: config.Prefix, Secret: config.Secret, Timeout: config.Timeout, RefusalTTL: config.RefusalTTL,
		Failure: config.Failure, Servers: config.Servers, Called: hooks.Called, Changed: hooks.Changed,
	})
	if err := errors.Join(err, config.faults()); err != nil {
		return nil, err
	}
	s := &Store{rates: rates}
	s.slots = redisslots.New(client, redisslots.Config{
		Names: rediskey.New(config.Prefix, config.Secret), Called: hooks.Called,
		Config: keeper.Config{
			TTL: config.SlotTTL, Timeout: config.SlotTimeout, Failure: config.Failure, Servers: config.Servers,
			Changed: hooks.Changed, Lost: hooks.SlotsLost, Restated: hooks.SlotsRestated,
		},
	})
	s.backend.Rates = s.rates
	s.backend.Slots = s.slots
	s.backend.Observer = observer
	if config.Lease > 0 {
		s.backend.Leases = lease.New(s.rates, s.rates.Uncached(), config.Lease, config.Timeout)
		s.backend.Rates = s.backend.Leases
	}
	return s, nil
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "headgate")
	c.Timeout = cmp.Or(c.Timeout, 100*time.Millisecond)
	c.SlotTTL = cmp.Or(c.SlotTTL, 15*time.Second)
	c.SlotTimeout = cmp.Or(c.SlotTimeout, min(max(2*time.Second, c.Timeout), c.SlotTTL/3))
	return c
}

// faults returns what is wrong with the fields that the store of rates does not have.
func (c Config) faults() error {
	var faults []error
	if c.SlotTTL < 100*time.Millisecond || c.SlotTTL > time.Hour {
		faults = append(faults, fmt.Errorf("headgate: redisstore: a SlotTTL of %v is not 100 ms to 1 h", c.SlotTTL))
	} else if c.SlotTimeout < time.Millisecond || c.SlotTimeout > c.SlotTTL/3 {
		faults = append(faults, fmt.Errorf("headgate: redisstore: a SlotTimeout of %v is not 1 ms to a third of the "+
			"SlotTTL, %v", c.SlotTimeout, c.SlotTTL/3))
	}
	if c.Lease != 0 && (c.Lease < time.Millisecond || c.Lease > time.Minute) {
		faults = append(faults, fmt.Errorf("headgate: redisstore: a Lease of %v is not 1 ms to 1 min", c.Lease))
	}
	return errors.Join(faults...)
}

// Backend is sealed, as that of other stores: its result is internal.
func (s *Store) Backend() *backend.Stores { return &s.backend }

// Client returns the client.
func (s *Store) Client() redis.UniversalClient { return s.rates.Client() }

// Check makes each kind of call to each server, and looks for what to put right before going live: a permission that is
// missing, or a server that may evict counts. The error has all that it found, one line each. It takes as long as the
// context lets it.
func (s *Store) Check(ctx context.Context) error {
	if ctx == nil {
		return backend.ErrNoContext
	}
	return errors.Join(s.rates.Check(ctx), s.slots.Check(ctx))
}

// Away returns why Redis is not used at the moment, or nil. It makes no call.
func (s *Store) Away() error { return cmp.Or(s.rates.Away(), s.slots.Away()) }

// Close lets nobody acquire slots any more, gives back what is leased, states that this process holds no slots, and
// closes the client if Open made it. Call it when requests and sockets have ended. It may be called again.
func (s *Store) Close(ctx context.Context) error {
	if ctx == nil {
		return backend.ErrNoContext
	}
	err := s.backend.CloseSlots(ctx)
	if s.backend.Leases != nil {
		err = errors.Join(err, s.backend.Leases.Close(ctx))
	}
	if s.owned {
		closed := s.Client().Close()
		if !errors.Is(closed, redis.ErrClosed) { // by an earlier call
			err = errors.Join(err, closed)
		}
	}
	return err
}
