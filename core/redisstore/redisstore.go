// Package redisstore keeps the state of limiters in Redis, so that all servers of
// a service share it: a single Redis, a primary behind Sentinel, or a Cluster;
// Redis 6.2 or later, or Valkey.
//
//	store, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{"localhost:6379"}}, redisstore.Config{})
//	...
//	limiter, err := core.New(store, "api", core.SlidingLog(core.PerMinute(60)))
//
// A decision is one call of one script, whatever the number of policies, timed by
// the clock of Redis: the clocks of the servers do not matter. Refused charges
// write nothing, except under CountDenied, and for a state that was kept under another
// rate, period or resolution, which is converted.
//
// # Fewer calls
//
// Decisions that arrive while others are in flight are sent together in the next
// call. A decision that arrives alone is sent at once, by its own goroutine. And
// a refusal is cached in this process for as long as it lasts, at most
// [Config].MemoryFor: the same question is refused meanwhile without a call. Neither
// changes a decision, except that what another process gives back, resets or raises
// is seen up to MemoryFor later.
//
// # When Redis is unavailable
//
// No decision takes longer than [Config].Timeout. After a few failures in a row no
// decision is sent to Redis until a probe in the background succeeds;
// [Config].Failure says how decisions are made meanwhile, and [core.Decision].Source
// shows it. A charge that was sent and not answered may have been made: then less is
// admitted, never more.
//
// If Redis loses its last writes in a failover, what they had charged is admitted
// once more, at most. A Cluster whose two halves both accept writes admits up to
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
// A Store is also a [core.SlotStore]. The process that holds slots has the truth: for
// each key, Redis stores how many each process has stated that it holds, and a process
// states them again where Redis may have lost them. A process sends a heartbeat every
// SlotTTL/3, however many slots it holds, from a goroutine that runs from the first
// acquire until all names are closed, or the client is. An acquire that races with
// [core.Slots.Close] may leave that goroutine running until the client is closed.
//
// While Redis answers, a key never holds more than its limit. Failures cost at most
// this, where n is the number of slots of a key that the process holds:
//
//   - A process is killed: its slots are free after SlotTTL and a third of it, or, with
//     an [Config].Instance, when it is started again. After [core.Slots.Close] they are
//     free at once.
//   - A process is stopped, or alone cut off from Redis, for longer than SlotTTL: others
//     take its slots, and it still holds n too many. [core.Slot.Lost] reports that, and
//     the slots count again as soon as the process reaches Redis.
//   - Redis is emptied, restarted, or fails over to a replica without the last writes: for
//     two thirds of SlotTTL at most the slots of other processes may not be counted, and
//     as many be granted again, never more than the limit to one process. No slot is lost.
//     Two halves of a Cluster that both accept writes grant up to the limit each.
//   - Redis is unavailable, to all processes and for up to a day: no slot is lost, and
//     what was released and granted meanwhile is counted when Redis is back. Under
//     FailLocal a process grants while it holds less than the limit, divided by
//     [Config].Servers; under FailOpen always, unless the limit is 0; under FailClosed
//     never.
//
// Releases are sent in the background, together with others. A refusal is cached for
// 150 ms. Slots are not granted in order: processes that acquire again at once after a
// release may keep others waiting. All servers of a service must use the same SlotTTL.
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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// A Store is a [core.Store] in Redis. It is safe for concurrent use. It has
// nothing to close but the client.
type Store struct {
	client  redis.UniversalClient
	config  Config // without the Secret
	names   namer
	local   *memstore.Store // for FailLocal
	queues  sendQueues
	cache   *refusalCache // nil if turned off
	seed    maphash.Seed
	pools   pools
	scripts scripts
	slots   slotKeeper
	cluster bool
	direct  bool // the client respects deadlines, so that calls need no goroutine

	// abandoned holds a value for each call that has outlived its deadline, as the
	// client does not respect deadlines.
	abandoned chan struct{}

	instant func() string // for tests: the time to use instead of the server's
}

// maxAbandoned is how many abandoned calls keep others from being sent.
const maxAbandoned = 64

// Open makes a suitable client and its Store. The options are used as they are, except
// that ContextTimeoutEnabled is set and that a DialTimeout, ReadTimeout or WriteTimeout
// of 0, and a ReadTimeout or WriteTimeout of -2, becomes the Config's Timeout. Close the
// client through [Store.Client].
func Open(options *redis.UniversalOptions, c Config) (*Store, error) {
	if options == nil {
		return nil, errors.New("headgate: redisstore: the options are nil")
	}
	o := *options
	o.ContextTimeoutEnabled = true
	c = c.withDefaults()
	if o.ReadTimeout == 0 || o.ReadTimeout < -1 { // below, go-redis sets no deadlines at all
		o.ReadTimeout = c.Timeout
	}
	if o.WriteTimeout == 0 || o.WriteTimeout < -1 {
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

// New makes a Store that uses the client. Any redis.UniversalClient will do except a
// Ring, which loses state when its servers change. Prefer [Open]: a client without
// ContextTimeoutEnabled, or with a ReadTimeout or WriteTimeout of -2, ignores deadlines,
// so that each of its calls takes a goroutine, which may outlive the decision. While 64
// do, no call is sent.
//
// The error joins everything that is wrong.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	c = c.withDefaults()
	s := &Store{
		client:    client,
		config:    c,
		names:     namer{c.Prefix, newMAC(c.Secret)},
		local:     memstore.New(memstore.Config{}),
		seed:      maphash.MakeSeed(),
		abandoned: make(chan struct{}, maxAbandoned),
	}
	s.config.Secret = nil // it is in names, where printing does not show it
	faults := c.faults()
	switch v := client.(type) {
	case nil:
		faults = append(faults, errors.New("headgate: redisstore: the client is nil"))
	case *redis.Client:
		if v != nil {
			o := v.Options()
			s.direct = o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0
		}
	case *redis.ClusterClient:
		if v != nil {
			o := v.Options()
			s.direct = o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0
		}
		s.cluster = true
		s.queues.cluster = v
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
		s.cache = newRefusalCache(c.MemoryFor, s.seed)
	}
	s.slots = s.newSlotKeeper()
	return s, nil
}

// Client returns the client, for example to close it.
func (s *Store) Client() redis.UniversalClient { return s.client }

// A note is what the store prepares for a limiter, and keeps in its first cell.
type note struct {
	hash      uint64        // of the limiter's name
	suffixes  []string      // of the cells' names
	constants []any         // of the cells' policies, as strings
	flat      *script       // for questions of this limiter only; nil if there is none
	local     *core.Limiter // decides while Redis is unavailable; nil without FailLocal
	cacheable bool          // no policy counts what is refused
	words     int           // of the states that are read and written whole
	logs      int           // the number of the others: long logs
}

func noteOf(l *core.Limiter) *note {
	return l.Cells()[0].Note.(*note) //nolint:forcetypeassert // Prepare was called, or there is no limiter
}

// Prepare makes a limiter ready for decisions. [core.New] calls it.
func (s *Store) Prepare(l *core.Limiter) error {
	cells := l.Cells()
	n := &note{hash: maphash.String(s.seed, l.Name()), cacheable: true}
	for i := range cells {
		n.suffixes = append(n.suffixes, suffix(l, &cells[i]))
		n.constants = append(n.constants, constants(&cells[i]))
		n.cacheable = n.cacheable && !cells[i].CountDenied
		if ranged(&cells[i]) {
			n.logs++
		} else {
			n.words += cells[i].Step.MaxWords()
		}
	}
	n.flat = s.scripts.flat(cells)
	if s.config.Failure == FailLocal {
		var err error
		if n.local, err = s.localLimiter(l); err != nil {
			return fmt.Errorf("for FailLocal: %w", err)
		}
	}
	cells[0].Note = n
	return nil
}

// Decide implements [core.Store]. If the deadline of the context comes before Redis
// answers, the error is the context's. A context that is cancelled ends the wait for a
// call that decisions share; a decision that was sent alone waits for its answer, at most
// until its deadline. Either way, what was sent may be charged.
func (s *Store) Decide(ctx context.Context, c core.Charge, peek bool) (core.Result, error) {
	q := s.pools.question()
	q.one[0] = c
	q.charges = q.one[:]
	if peek {
		q.mode = modePeek
	}
	return s.decide(ctx, q)
}

// DecideAll implements [core.Store]. The package documentation says what is different
// in a Cluster.
func (s *Store) DecideAll(ctx context.Context, cs []core.Charge) (core.Result, error) {
	if s.cluster && !s.inOneHashSlot(cs) {
		return s.decideInTurn(ctx, cs)
	}
	q := s.pools.question()
	q.charges = cs
	return s.decide(ctx, q)
}

// decide answers a question and frees it.
func (s *Store) decide(ctx context.Context, q *question) (core.Result, error) {
	var l lookup
	if s.cache != nil && q.mode == modeAsk {
		var r core.Result
		var known bool
		if l, r, known = s.cache.get(q.charges); known {
			s.decided(q.charges, &r, nil)
			s.pools.free(q)
			return r, nil
		}
	}
	q.deadline = s.deadline(ctx)
	if err := s.submit(ctx, q); err != nil {
		return s.fallback(ctx, q.charges, q.mode == modePeek, err)
	}
	r := q.result
	if s.cache != nil && q.mode == modeAsk && !r.Allowed {
		s.cache.put(l, q.charges, &r)
	}
	if q.mode == modeAsk {
		s.decided(q.charges, &r, nil)
	}
	s.pools.free(q)
	return r, nil
}

// deadline returns when a decision must be made: after the Timeout, or earlier if the
// caller's context ends before.
func (s *Store) deadline(ctx context.Context) time.Time {
	d := time.Now().Add(s.config.Timeout)
	if own, ok := ctx.Deadline(); ok && own.Before(d) {
		return own
	}
	return d
}

// ended returns the error of a context that has ended, or whose deadline has come: its
// own timer may be late.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

// decided calls the hook.
func (s *Store) decided(cs []core.Charge, r *core.Result, err error) {
	hook := s.config.Hooks.Decided
	if hook == nil {
		return
	}
	first := 0 // reading of the charge
	for i := range cs {
		l := cs[i].Limiter
		if err != nil {
			hook(DecisionEvent{Limiter: l.Name(), Err: err})
			continue
		}
		hook(DecisionEvent{Limiter: l.Name(), Policy: deciding(l.Cells(), r, first), Allowed: r.Allowed, Source: r.Source})
		first += len(l.Cells())
	}
}

// deciding returns the policy of a DecisionEvent. The first of the limiter's readings has
// that index.
func deciding(cells []core.Cell, r *core.Result, first int) (policy string) {
	var strictest int64
	for i := range cells {
		admitted, x := r.Reading(first + i)
		switch {
		case r.Allowed && (i == 0 || x.Remaining < strictest):
			policy, strictest = cells[i].Name, x.Remaining
		case !r.Allowed && !admitted && x.RetryAfter > strictest:
			policy, strictest = cells[i].Name, x.RetryAfter
		}
	}
	return policy
}

// resetScript deletes its keys. It is a script because a ClusterClient splits DEL into
// commands of its own, which it may retry.
const resetScript = `return redis.call("DEL", unpack(KEYS))`

// Reset implements [core.Store]. It is sent once, and not at all while Redis is
// unavailable: then, and after any other error, Redis may still have the state.
func (s *Store) Reset(ctx context.Context, l *core.Limiter, key string) error {
	cs := []core.Charge{{Limiter: l, Key: key}}
	s.cache.invalidate(cs)
	defer s.cache.invalidate(cs)
	if n := noteOf(l); n.local != nil {
		if err := s.local.Reset(ctx, n.local, key); err != nil {
			return err
		}
	}
	if !s.queueOfKey(key).breaker.allows() {
		return errUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	names := s.cells(nil, &cs[0])
	words := []any{eval, resetScript, len(names)}
	for _, name := range names {
		words = append(words, name)
	}
	_, err := s.process(ctx, words)
	return err
}
