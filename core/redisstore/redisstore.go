// Package redisstore keeps the state of limiters in Redis, so that all servers of
// a service share them: a single Redis, a primary behind Sentinel, or a Cluster;
// Redis 6.2 or later, or Valkey.
//
//	store, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{"localhost:6379"}}, redisstore.Config{})
//	...
//	limiter, err := core.New(store, "api", core.SlidingLog(core.PerMinute(60)))
//
// A decision is one call of one script, whatever the number of policies, timed by
// the clock of Redis: the clocks of the servers do not matter. Refused charges
// write nothing.
//
// # Fewer calls
//
// Decisions that arrive while others are on their way travel together in the next
// call. A decision that arrives alone is sent at once, by its own goroutine. And
// a refusal is remembered in this process for as long as it lasts, at most
// [Config].MemoryFor: the same question is refused meanwhile without a call. Both
// change nothing but the speed, except that what another process gives back,
// resets or raises is seen up to MemoryFor later.
//
// # When Redis is away
//
// No decision takes longer than [Config].Timeout. After a few failures in a row
// Redis is not asked any more until it answers again, which is tried in the
// background; [Config].Failure says what is decided meanwhile, and
// [core.Decision].Source tells that it was. A charge that was sent and not
// answered may have been made: then less is admitted, never more.
//
// If Redis loses its last writes in a failover, what they had charged is admitted
// once more, at most. A Cluster whose two halves both accept writes admits up to
// the limit in each.
//
// # Slots
//
// A Store is also a [core.SlotStore]. Truth is with the process that holds: Redis has,
// for each key, what each process has said that it holds, and a process says so again
// where Redis may have forgotten it. To stay alive takes a call in a third of
// [Config].SlotTTL, however many slots are held, and a goroutine from the first acquire
// until all names are closed, or the client is.
//
// While Redis answers, a key never holds more than its limit. What goes wrong costs at
// most this, where n is what the process holds of a key:
//
//   - A process is killed: its slots are free after SlotTTL, and a third of it; if it has
//     an [Config].Instance, when it is started again. After [core.Slots.Close] they are
//     free at once.
//   - A process is stopped, or alone cut off from Redis, for longer than SlotTTL: others
//     take its slots, and it goes on holding n too many. It is told so, by
//     [core.Slot.Lost], and counts again as soon as Redis hears of it.
//   - Redis is emptied, restarted, or fails over to a replica without the last writes: for
//     two thirds of SlotTTL at most the slots of other processes may not be counted, and
//     as many be granted again, never more than the limit to one process. Nobody loses one.
//     Two halves of a Cluster that both accept writes grant up to the limit each.
//   - Redis is away, for everybody and up to a day: nobody loses a slot when it is back,
//     and what was released and granted meanwhile is counted then. Under FailLocal a
//     process grants while it holds less than the limit, divided by [Config].Servers;
//     under FailOpen always; under FailClosed never.
//
// What is released is told in the background, together with others. A refusal is
// remembered for 150 ms. The servers of a service must agree on SlotTTL.
//
// # Keys
//
// See [Config] for how keys are named, hashed and hidden. Every key expires when
// its state no longer counts.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// Config says how a Store behaves. Its zero value is ready to use.
type Config struct {
	// Prefix begins the name of every key in Redis. Empty means "headgate".
	Prefix string

	// Secret, if not empty, hides keys: instead of a key, Redis sees its
	// HMAC-SHA-256 under this secret, which all servers must share. It has 32 bytes or
	// more, and should be random. Without a Secret, keys are readable in Redis, except
	// those above 128 bytes, which are hashed.
	Secret []byte

	// Timeout bounds every decision, counted from the call. 0 means 100 ms.
	Timeout time.Duration

	// Failure says what is decided while Redis is away.
	Failure Failure

	// Servers is by how many FailLocal divides the limits, so that together the
	// servers admit about what they should. 0 and 1 leave them as they are.
	Servers int

	// MemoryFor is how long a refusal is remembered at most. 0 means 1 s;
	// a negative value turns the memory off.
	MemoryFor time.Duration

	// Unmerged turns merging off: every decision is a call of its own.
	Unmerged bool

	// SlotTTL is after how long a process that was killed, or is cut off, holds no
	// slots any more; 100 ms to 1 h, the same for all servers. Three times in that
	// span a process tells that it is alive. 0 means 15 s.
	SlotTTL time.Duration

	// Instance, if not empty, is a name of this process that it will have again when
	// it is restarted, and that no other has, like that of a pod of a StatefulSet.
	// At its first acquire it then frees at once what its predecessor, which may
	// have been killed, still holds.
	Instance string

	// Hooks are called with what happens.
	Hooks Hooks
}

// Failure is what is decided while Redis is away.
type Failure int

const (
	// FailLocal decides by the same policies in this process.
	FailLocal Failure = iota
	// FailOpen admits everything.
	FailOpen
	// FailClosed decides nothing: the error is [core.ErrUnavailable].
	FailClosed
)

// Hooks are called in the goroutine of a decision, or of a call to Redis: they
// should be quick. They are told no keys. Any may be nil.
type Hooks struct {
	// Decided tells of each decision of a limiter. If several were asked together,
	// each of them is told of. Peeks are not.
	Decided func(limiter string, allowed bool, source core.Source)

	// SlotAcquired tells of each slot that was granted or refused, by the name of
	// the slots.
	SlotAcquired func(slots string, granted bool, source core.Source)

	// SlotsLost tells that others were told that this process is dead, while it held
	// so many slots. It goes on holding them: see [core.Slot.Lost].
	SlotsLost func(held int64)

	// SlotsRestated tells that Redis may have lost what it was told, so that it is
	// told again what is held of so many keys.
	SlotsRestated func(keys int)

	// Called tells of each call to Redis: the questions or slots' keys in it, the time
	// it took, and the error, if it failed. That a process is alive is told without
	// it.
	Called func(questions int, took time.Duration, err error)

	// Changed tells that Redis went away, with the reason, or came back, with
	// nil; of a Cluster, a part of it.
	Changed func(reason error)
}

// A Store is a [core.Store] in Redis. It is safe for concurrent use. It has
// nothing to close but the client.
type Store struct {
	client  redis.UniversalClient
	config  Config
	names   namer
	local   *memstore.Store
	lanes   []lane
	memory  *memory
	seed    maphash.Seed
	pools   pools
	scripts scripts
	slots   slotting
	cluster bool
	direct  bool          // the client heeds deadlines, so that calls need no goroutine
	stray   chan struct{} // holds a value for each call that is left to itself, or may be

	instant func() string // for tests: the instant instead of the server's
}

// Open makes a client that suits, and its Store. The options are used but for
// ContextTimeoutEnabled, which is set, and a DialTimeout, ReadTimeout and WriteTimeout
// of 0, which become the Timeout of the Config. Close the client through
// [Store.Client].
func Open(options *redis.UniversalOptions, c Config) (*Store, error) {
	if options == nil {
		return nil, errors.New("headgate: redisstore: the options are nil")
	}
	o := *options
	o.ContextTimeoutEnabled = true
	c = c.withDefaults()
	if o.ReadTimeout == 0 {
		o.ReadTimeout = c.Timeout
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = c.Timeout
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = c.Timeout
	}
	client := redis.NewUniversalClient(&o)
	s, err := New(client, c)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return s, nil
}

// New makes a Store that uses the client. Any redis.UniversalClient will do but a
// Ring, which loses state when its servers change. Prefer [Open]: a client without
// ContextTimeoutEnabled does not heed deadlines, so that its calls take a
// goroutine each, of which at most 64 wait for a Redis that does not answer.
//
// The error joins everything that is wrong.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	c = c.withDefaults()
	s := &Store{
		client: client,
		config: c,
		names:  namer{c.Prefix, newMAC(c.Secret)},
		local:  memstore.New(memstore.Config{}),
		seed:   maphash.MakeSeed(),
		stray:  make(chan struct{}, 64),
		lanes:  make([]lane, 1),
	}
	faults := c.faults()
	s.config.Secret = nil // it is in names, where printing does not show it
	switch v := client.(type) {
	case nil:
		faults = append(faults, errors.New("headgate: redisstore: the client is nil"))
	case *redis.Client:
		s.direct = v != nil && v.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		s.direct = v != nil && v.Options().ContextTimeoutEnabled
		s.cluster = true
		s.lanes = make([]lane, clusterLanes)
	case *redis.Ring:
		faults = append(faults, errors.New("headgate: redisstore: a Ring loses state when its servers change: use a Cluster"))
	}
	if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() {
		faults = append(faults, fmt.Errorf("headgate: redisstore: the client is a nil %T", client))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if c.MemoryFor > 0 {
		s.memory = newMemory(c.MemoryFor, s.seed)
	}
	s.slots = s.newSlotting()
	return s, nil
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "headgate"
	}
	if c.Timeout == 0 {
		c.Timeout = 100 * time.Millisecond
	}
	if c.MemoryFor == 0 {
		c.MemoryFor = time.Second
	}
	if c.SlotTTL == 0 {
		c.SlotTTL = 15 * time.Second
	}
	return c
}

func (c Config) faults() (faults []error) {
	if c.Timeout < time.Millisecond {
		faults = append(faults, fmt.Errorf("headgate: redisstore: a Timeout of %v is below 1 ms", c.Timeout))
	}
	if c.Failure < FailLocal || c.Failure > FailClosed {
		faults = append(faults, fmt.Errorf("headgate: redisstore: Failure %d is none of FailLocal, FailOpen, FailClosed", c.Failure))
	}
	if c.Servers < 0 {
		faults = append(faults, fmt.Errorf("headgate: redisstore: %d Servers: 0 or more", c.Servers))
	}
	if c.SlotTTL < 100*time.Millisecond || c.SlotTTL > time.Hour {
		faults = append(faults, fmt.Errorf("headgate: redisstore: a SlotTTL of %v is not 100 ms to 1 h", c.SlotTTL))
	}
	if n := len(c.Secret); n > 0 && n < minSecret {
		faults = append(faults, fmt.Errorf("headgate: redisstore: a Secret of %d bytes: use %d random bytes or more", n, minSecret))
	}
	for _, b := range []byte(c.Prefix) {
		if b == '{' || b == '}' {
			faults = append(faults, errors.New("headgate: redisstore: a Prefix with braces would decide the slots of a cluster"))
			break
		}
	}
	return faults
}

// Client returns the client, to close it for example.
func (s *Store) Client() redis.UniversalClient { return s.client }

// A plan is what the store notes in the cells of a limiter.
type plan struct {
	hash      uint64        // of the limiter's name
	suffixes  []string      // of the cells' names
	constants []any         // of the cells' policies, as strings
	flat      *script       // for questions of this limiter only; nil if there is none
	local     *core.Limiter // decides while Redis is away
	remember  bool          // no policy counts what is refused
}

func planOf(l *core.Limiter) *plan {
	return l.Cells()[0].Note.(*plan) //nolint:forcetypeassert // Prepare was called, or there is no limiter
}

// Prepare notes what decisions of the limiter need. [core.New] calls it.
func (s *Store) Prepare(l *core.Limiter) error {
	cells := l.Cells()
	p := &plan{hash: maphash.String(s.seed, l.Name()), remember: true}
	for i := range cells {
		p.suffixes = append(p.suffixes, suffix(l, &cells[i]))
		p.constants = append(p.constants, constants(&cells[i]))
		p.remember = p.remember && !cells[i].CountDenied
	}
	p.flat = s.scripts.flat(cells)
	policies := l.Policies()
	if n := int64(s.config.Servers); n > 1 {
		for i := range policies {
			policies[i] = policies[i].Share(n)
		}
	}
	if s.config.Failure == FailLocal {
		var err error
		if p.local, err = core.New(s.local, l.Name(), policies...); err != nil {
			return fmt.Errorf("for FailLocal: %w", err)
		}
	}
	cells[0].Note = p
	return nil
}

// Decide implements [core.Store].
func (s *Store) Decide(ctx context.Context, c core.Charge, peek bool) (core.Result, error) {
	q := s.pools.question()
	q.one[0] = c
	q.charges = q.one[:]
	if peek {
		q.mode = modePeek
	}
	return s.decide(ctx, q)
}

// DecideAll implements [core.Store]. On a Cluster, charges whose keys are in
// different slots are made one after the other and given back if a later one is
// refused: for a moment others may be refused too much, never admitted too much.
func (s *Store) DecideAll(ctx context.Context, cs []core.Charge) (core.Result, error) {
	if s.cluster && !s.together(cs) {
		return s.inTurn(ctx, cs)
	}
	q := s.pools.question()
	q.charges = cs
	return s.decide(ctx, q)
}

func (s *Store) decide(ctx context.Context, q *question) (core.Result, error) {
	var seen sighting
	if s.memory != nil && q.mode == modeAsk {
		var r core.Result
		var known bool
		if seen, r, known = s.memory.recall(q.charges); known {
			s.decided(q.charges, &r)
			s.pools.free(q)
			return r, nil
		}
	}
	q.deadline = time.Now().Add(s.config.Timeout)
	if err := s.travel(ctx, q); err != nil {
		return s.without(ctx, q.charges, q.mode == modePeek, err)
	}
	r := q.result
	if s.memory != nil && q.mode == modeAsk && !r.Allowed {
		s.memory.remember(seen, q.charges, &r)
	}
	if q.mode == modeAsk {
		s.decided(q.charges, &r)
	}
	s.pools.free(q)
	return r, nil
}

func (s *Store) decided(cs []core.Charge, r *core.Result) {
	if s.config.Hooks.Decided != nil {
		for i := range cs {
			s.config.Hooks.Decided(cs[i].Limiter.Name(), r.Allowed, r.Source)
		}
	}
}

// without decides although Redis did not.
func (s *Store) without(ctx context.Context, cs []core.Charge, peek bool, cause error) (r core.Result, err error) {
	if ctx.Err() != nil && errors.Is(cause, ctx.Err()) {
		return r, cause // its asker's wish
	}
	switch s.config.Failure {
	case FailOpen:
		r = admitAll(cs)
	case FailLocal:
		local := make([]core.Charge, len(cs))
		for i, c := range cs {
			l := planOf(c.Limiter).local
			local[i] = core.Charge{Limiter: l, Key: c.Key, N: min(c.N, most(l))}
		}
		if len(local) == 1 {
			r, err = s.local.Decide(ctx, local[0], peek)
		} else {
			r, err = s.local.DecideAll(ctx, local)
		}
		r.Source = core.SourceLocal
	default:
		return r, fmt.Errorf("%w: %w", core.ErrUnavailable, cause)
	}
	if !peek {
		s.decided(cs, &r)
	}
	return r, err
}

// most is the largest charge that a limiter whose limits were divided can grant.
func most(l *core.Limiter) int64 {
	n := int64(core.NoLimit)
	for _, c := range l.Cells() {
		n = min(n, c.Step.Max())
	}
	return n
}

// admitAll admits, and reads every policy as fresh.
func admitAll(cs []core.Charge) core.Result {
	r := core.Result{Allowed: true, Source: core.SourceOpen}
	for _, c := range cs {
		for _, cell := range c.Limiter.Cells() {
			r.Add(true, cell.Step.Read(nil, 0, 0))
		}
	}
	return r
}

// Settle implements [core.Store]. It is sent once: a settlement that is not
// answered may have been made.
func (s *Store) Settle(ctx context.Context, ss []core.Settlement) error {
	var shared, local []*core.Settlement
	for i := range ss {
		switch ss[i].Source {
		case core.SourceStore:
			shared = append(shared, &ss[i])
		case core.SourceLocal:
			local = append(local, &ss[i])
		}
	}
	for _, t := range local {
		l := planOf(t.Limiter).local
		own := []core.Settlement{*t}
		own[0].Limiter, own[0].N = l, min(t.N, most(l)) // as without has charged it
		own[0].Actual = min(t.Actual, own[0].N) + max(t.Actual-t.N, 0)
		if err := s.local.Settle(ctx, own); err != nil {
			return err
		}
		t.Uncovered = own[0].Uncovered
	}
	if len(shared) == 1 {
		return s.settle(ctx, shared[0])
	}
	faults := make([]error, len(shared))
	var all sync.WaitGroup
	for i, t := range shared {
		all.Go(func() { faults[i] = s.settle(ctx, t) })
	}
	all.Wait()
	return errors.Join(faults...)
}

func (s *Store) settle(ctx context.Context, t *core.Settlement) error {
	q := s.pools.question()
	q.mode = modeSettle
	q.one[0], q.at, q.actual = t.Charge, t.At, t.Actual
	q.charges = q.one[:]
	q.deadline = time.Now().Add(s.config.Timeout)
	s.memory.forget(q.charges)
	if err := s.travel(ctx, q); err != nil {
		return err
	}
	s.memory.forget(q.charges)
	t.Uncovered = q.uncovered
	s.pools.free(q)
	return nil
}

// Reset implements [core.Store].
func (s *Store) Reset(ctx context.Context, l *core.Limiter, key string) error {
	cs := []core.Charge{{Limiter: l, Key: key}}
	s.memory.forget(cs)
	defer s.memory.forget(cs)
	if p := planOf(l); p.local != nil {
		if err := s.local.Reset(ctx, p.local, key); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	return s.bounded(ctx, func() error { return s.client.Del(ctx, s.cells(nil, &cs[0])...).Err() })
}

// cells appends the names of a charge's cells.
func (s *Store) cells(names []string, c *core.Charge) []string {
	var room [maxPlainKey + 64]byte
	tag := s.names.tag(room[:0], c.Key)
	for _, suffix := range planOf(c.Limiter).suffixes {
		names = append(names, string(append(tag, suffix...)))
	}
	return names
}
