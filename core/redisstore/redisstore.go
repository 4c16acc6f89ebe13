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
	"github.com/headgate/headgate/internal/old/core/lease"
	old "github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redisslots"
	"github.com/headgate/headgate/internal/slots/keeper"
)

// Config configures a [Store]. Its zero value is ready to use.
type Config struct {
	// Prefix begins the name of every key in Redis. Empty means "headgate".
	Prefix string

	// Secret, of 32 bytes or more, hides keys: Redis sees their HMAC-SHA-256 under it. All servers must share it. Without
	// it keys are readable in Redis, but for those above 128 bytes, which are hashed.
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
	// means 2 s, or a third of SlotTTL if that is less.
	SlotTimeout time.Duration

	// SlotTTL is the time after which the slots of a process that died are free: 100 ms to 1 h, the same on all servers.
	// 0 means 15 s.
	SlotTTL time.Duration

	// RefusalTTL is the longest time for which a refusal is remembered. 0 means 1 s; a negative value that none is.
	RefusalTTL time.Duration

	// Lease, if not 0, lets this process charge units of busy keys ahead, for at most that long: 1 ms to 1 min. Then
	// hot keys are decided in memory, and the limit of the fleet still holds. Units that are leased and not used are
	// missing elsewhere until they are given back.
	Lease time.Duration
}

// Format implements [fmt.Formatter]: it prints no Secret.
func (c Config) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprintf(s, "redisstore.Config{Prefix: %q}", c.Prefix)
}

// Failure says how decisions are made while Redis is away.
type Failure int

const (
	// FailLocal decides in this process, by the limits divided by [Config].Servers. Slots count those that others held
	// by the last answer of Redis.
	FailLocal Failure = iota

	// FailOpen admits everything.
	FailOpen

	// FailClosed returns [core.ErrUnavailable]: guards answer with 503.
	FailClosed
)

// String returns "local", "open" or "closed".
func (f Failure) String() string {
	switch f {
	case FailLocal:
		return "local"
	case FailOpen:
		return "open"
	case FailClosed:
		return "closed"
	}
	return fmt.Sprintf("Failure(%d)", int(f))
}

// A Store is a [core.Store] in Redis. It is safe for concurrent use.
type Store struct {
	redis   *old.Store
	slots   *redisslots.Store
	leases  *lease.Store // nil: none
	backend backend.Store
	owned   bool // the client
}

// Open returns a store of one Redis, which a URL names: redis://user:password@host:6379/0, rediss:// with TLS, or
// unix:///run/redis.sock?db=0. It does not connect. The error has all faults, and does not show the URL.
func Open(url string, c Config) (*Store, error) {
	s, err := old.OpenURL(url, c.old())
	return c.made(s, err, true)
}

// New returns a store that uses a client, such as one of Sentinel or Cluster. It does not connect. The client must heed
// deadlines: it is refused without ContextTimeoutEnabled. The error has all faults.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	s, err := old.New(client, c.old())
	return c.made(s, err, false)
}

func (c *Config) old() old.Config {
	return old.Config{
		Prefix: c.Prefix, Secret: c.Secret, Failure: old.Failure(c.Failure), Servers: c.Servers,
		Observer: core.JoinObservers(c.Observers).Told,
		Timeout:  c.Timeout, SlotTimeout: c.SlotTimeout, SlotTTL: c.SlotTTL, RefusalTTL: c.RefusalTTL,
	}
}

func (c *Config) made(s *old.Store, err error, owned bool) (*Store, error) {
	if err != nil {
		return nil, err
	}
	made := &Store{redis: s, slots: c.slots(s), owned: owned}
	rates := store.Store(s)
	if c.Lease != 0 {
		if made.leases, err = lease.New(s, lease.Config{For: c.Lease}); err != nil {
			if owned {
				err = errors.Join(err, s.Client().Close())
			}
			return nil, err
		}
		rates = made.leases
	}
	made.backend.Rates, made.backend.Slots, made.backend.Observer = rates, made.slots, s.Observer()
	return made, nil
}

// slots returns the store of slots, with the defaults of the other.
func (c *Config) slots(s *old.Store) *redisslots.Store {
	ttl := cmp.Or(c.SlotTTL, 15*time.Second)
	sc := redisslots.Config{
		Names: rediskey.New(cmp.Or(c.Prefix, "headgate"), c.Secret), Failure: keeper.Failure(c.Failure), Servers: c.Servers,
		TTL: ttl, Timeout: cmp.Or(c.SlotTimeout, min(max(2*time.Second, c.Timeout), ttl/3)),
	}
	if o := s.Observer(); o != nil {
		sc.Lost, sc.Restated, sc.Changed = o.SlotsLost, o.SlotsRestated, o.Changed
		if o.Called != nil {
			sc.Called = func(keys int, took time.Duration, err error) {
				o.Called(store.CallEvent{Questions: keys, Took: took, Err: err})
			}
		}
	}
	return redisslots.New(s.Client(), sc)
}

// Backend is for package headgate itself.
func (s *Store) Backend() *backend.Store { return &s.backend }

// Client returns the client.
func (s *Store) Client() redis.UniversalClient { return s.redis.Client() }

// Check looks for what to put right before going live, on each server: a permission that is missing, a server that may
// evict counts, or whose clock is wrong. The error has all that it found, one line each. It takes as long as the context
// lets it.
func (s *Store) Check(ctx context.Context) error {
	report, err := s.redis.Check(ctx)
	errs := []error{err, s.slots.Check(ctx)}
	for _, problem := range report.Problems {
		errs = append(errs, errors.New("headgate: redisstore: "+problem))
	}
	return errors.Join(errs...)
}

// Away returns why Redis is not used at the moment, or nil. It makes no call.
func (s *Store) Away() error {
	if state := s.redis.State(); state.Away {
		return state.Reason
	}
	return s.slots.Away()
}

// Close gives leased units back, lets nobody acquire slots any more, states that this process holds none, and closes the
// client if Open made it. Call
// it when requests and sockets have ended. It may be called again.
func (s *Store) Close(ctx context.Context) error {
	var errs []error
	if s.leases != nil {
		errs = append(errs, s.leases.Close(ctx))
	}
	errs = append(errs, s.backend.CloseSlots(ctx))
	if s.owned {
		if err := s.Client().Close(); !errors.Is(err, redis.ErrClosed) { // by an earlier call
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
