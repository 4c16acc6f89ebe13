// Package redisstore keeps the state of limiters in Redis: a single one, a primary behind Sentinel, or a
// Cluster. What users are promised is in docs/redis.md and SECURITY.md, and how it works in docs/design/redis.md.
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
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redisurl"
)

// A Store is a [store.Store] in Redis. It is safe for concurrent use. It has
// nothing to close but the client.
type Store struct {
	limits // a stack of layers: see package remote

	backend *backend
	config  Config // without the Secret
}

type limits = store.Store

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
		client: client, names: namer{rediskey.New(c.Prefix, c.Secret)},
		timeout: c.Timeout,
	}
	c.Secret = nil // it is in names, where printing does not show it
	b.servers.cluster, _ = client.(*redis.ClusterClient)
	return &Store{limits: stack(b, c), backend: b, config: c}, nil
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

// Observer implements [store.Store].
func (s *Store) Observer() *store.Observer { return s.config.Observer }

// State returns whether Redis is used at the moment. It makes no call.
func (s *Store) State() State { return State(remote.StateOf(s.backend.Servers())) }

// State is whether a Store uses Redis, as [Store.State] returns it.
type State struct {
	// Away means that Redis is unavailable, and [Config].Failure decides. In a Cluster, it is true for the keys of at
	// least one master.
	Away   bool
	Since  time.Time // the time of the last change; zero if there was none
	Reason error     // the newest failure of an unavailable server; nil if all are available
}
