// Package memstore keeps the state of rate limiters in the memory of this process.
//
// A [Store] is divided into shards, each with its own lock, so that keys rarely wait for
// each other. It starts no goroutine and needs no closing. The calls themselves remove expired
// entries: each call looks at about one.
//
// # Memory
//
// [Config].MaxBytes bounds the memory of a store, whatever keys are charged. For each key and
// policy the state takes about
//
//	TokenBucket, FixedWindow, MinInterval   45 bytes
//	SlidingWindow                           90 bytes, and 8 for each sub-window
//	SlidingLog                              105 bytes, and 8 for each unit it has room for
//
// A sliding log starts with room for 4 units, or for its limit if that is lower. When the room is
// too small it at least doubles, up to the limit. It never shrinks while the key is kept. So it may
// be twice the largest number of units that ever counted at once. A key
// that is charged under several plans has a state for each, of about 200 bytes more.
//
// Keys themselves are not stored, only a 64-bit hash with a secret seed. Two keys with one hash
// share a limit. Among 10 million keys, the probability of such a pair is about 1 in 400,000. An
// attacker cannot provoke it.
//
// When the state of a key is again like the state of a fresh key, it is dropped at no loss. At the
// bound, the store samples 24 keys and evicts one, in this order:
//
//  1. a key that has units left
//  2. a key that is used up
//  3. a key that is refused, even if it has units left
//
// Among equals, it evicts the one that would be fresh soonest. A key is refused from the refusal of
// a charge until that charge would fit. So a flood of made-up keys neither grows the memory nor
// gives a refused key a fresh start.
//
// The exception is a flood whose own keys are refused. Refused keys are spared only while they are
// at most 21 of the 24, so that new keys are always limited. Suppose that each key of a flood is
// charged until it is refused. Then an older refused key gets about one fresh start each time the
// flood has filled the store. [Store.Stats] counts the evictions that lost state.
//
// # Time
//
// The store reads the system clock once, when it is made. After that, its time advances with the
// process's monotonic clock, so setting the system clock has no effect. For the calls of one key it
// never goes back, whatever their order. The exception is calls about a hot key that overlap: they
// may be dated the other way round. Windows are aligned to UTC.
package memstore

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// DefaultMaxBytes is 64 MiB, room for about 1.1 million token buckets.
const DefaultMaxBytes = 64 << 20

// minBytes keeps a lower bound on the number of keys that have a state.
const minBytes = 1 << 20

// Config is the configuration of a [Store]. Its zero value is ready to use.
type Config struct {
	// MaxBytes bounds the memory of all state, in bytes. 0 means [DefaultMaxBytes]. With a negative
	// value, or one below 1 MiB, core.New refuses the store. It also refuses a policy whose state
	// for one key may take more than a sixth of MaxBytes.
	MaxBytes int64

	// Observer, if not nil, is told of decisions.
	Observer *store.Observer
}

// Stats is the result of [Store.Stats].
type Stats struct {
	Keys    int    // states held: one for each key and policy
	Bytes   int64  // memory of all state, at most MaxBytes
	Evicted uint64 // states dropped so far for lack of room while they still counted
}

const (
	shards = 256

	// One in sweepEvery calls sweeps that many entries of a shard.
	sweepEvery = 64

	// So many shards are searched for a sample of long states, or all of them if what is
	// found is refused.
	manyShards = 16
)

// A Store is a [store.Store] in this process. Make one with
// [New]: core.New refuses the zero Store. It is safe for concurrent use.
type Store struct {
	place    store.Place // of what is kept with limiters
	seed     maphash.Seed
	start    time.Time
	origin   int64 // start in microseconds since 1970
	budget   budget
	observer *store.Observer
	cursor   atomic.Uint32 // the shard to sweep next
	hotAfter uint32        // which tests set
	shards   [shards]shard
}

// Format implements [fmt.Formatter]: it prints none of the states.
func (*Store) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "memstore.Store") }

type shard struct {
	hot    atomic.Pointer[hot] // beside the lock, as it ends when that is taken to decide
	mu     sync.Mutex
	_      [48]byte // waiters watch the lock: what its holder writes is on other cache lines
	calls  uint32
	row    uint32 // of calls about last
	last   uint64 // the hash that the last call was about
	number int
	newest int64 // instant of the latest call
	table  table
	work   work
	_      [64]byte // keeps the locks of adjacent shards on different cache lines
}

var _ store.Store = (*Store)(nil)

// New returns an empty store.
func New(c Config) *Store {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	now := time.Now()
	s := &Store{
		seed:     maphash.MakeSeed(),
		start:    now,
		origin:   now.UnixMicro(),
		budget:   budget{max: c.MaxBytes},
		observer: c.Observer,
		hotAfter: hotAfter,
	}
	for i := range s.shards {
		s.shards[i].number = i
		s.shards[i].table.budget = &s.budget
	}
	return s
}

// Observer implements [store.Store].
func (s *Store) Observer() *store.Observer { return s.observer }

func (s *Store) now() int64 {
	return s.origin + int64(time.Since(s.start)/time.Microsecond)
}

// A limiter is what the store keeps with a limiter.
type limiter struct {
	policies []policy
	leveled  bool // there is one policy, and it has a level, so that a key can be hot
}

type policy struct {
	step    step.Step
	numbers numbers
	words   int    // of a new state
	hash    uint64 // of what identifies it beside the key
	level   step.Level
}

// prepared returns what the store keeps with a limiter.
func (s *Store) prepared(l *store.Limiter) *limiter {
	return l.Kept(&s.place).(*limiter)
}

// policySeed is another than that of keys, so that no key cancels out a policy.
var policySeed = maphash.MakeSeed()

// identity returns the hash of what identifies a policy beside the key.
func identity(limiter string, p store.Policy) uint64 {
	// Names are printable, so the zero bytes keep them apart.
	return maphash.String(policySeed, limiter+"\x00"+p.Name+"\x00"+p.Step.Numbers().Algorithm.String())
}

// mix returns the hash of a policy for a key. The table places it by its high bits; the shard
// was chosen by the low bits of the key. 0 marks an empty place.
func mix(key, policy uint64) uint64 { return max(key^policy, 1) }

// locate returns the hash of a key, and its shard.
func (s *Store) locate(key string) (uint64, *shard) {
	hash := maphash.String(s.seed, key)
	return hash, &s.shards[hash%shards]
}

// lock locks a shard, and returns the instant of a call that read the clock before.
func (s *Store) lock(sh *shard, now int64) int64 {
	sh.mu.Lock()
	return s.locked(sh, now)
}

// locked is lock for a call that has the lock.
func (s *Store) locked(sh *shard, now int64) int64 {
	if sh.cool() {
		now = max(now, s.now())
	}
	return sh.advance(now)
}

// lockAll locks the shards of charges, each once and in an order that prevents deadlocks, and
// appends them to room. It returns the one instant of a call that read the clock before.
func (s *Store) lockAll(room []*shard, cs []store.Charge, now int64) ([]*shard, int64) {
	for i := range cs {
		_, sh := s.locate(cs[i].Key)
		room = append(room, sh)
	}
	slices.SortFunc(room, func(a, b *shard) int { return cmp.Compare(a.number, b.number) })
	room = slices.Compact(room)
	for _, sh := range room {
		now = s.lock(sh, now)
	}
	for _, sh := range room {
		sh.advance(now)
	}
	return room, now
}

func unlock(locked []*shard) {
	for _, sh := range locked {
		sh.mu.Unlock()
	}
}

// advance returns the instant of a call that has the lock. The call read the clock before
// it waited for the lock, which is then held for a shorter time than if it read it now. So
// others may have read it later and decided sooner: the call decides as of the latest of
// them.
func (sh *shard) advance(now int64) int64 {
	if now > sh.newest {
		sh.newest = now
	}
	return sh.newest
}

// Stats returns the sums over all shards, which it locks one at a time.
func (s *Store) Stats() Stats {
	var st Stats
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += sh.table.count
		st.Evicted += sh.table.evicted
		sh.mu.Unlock()
	}
	st.Bytes = s.budget.used()
	return st
}

// tick counts a call and reports whether it is its turn to sweep.
func (sh *shard) tick() bool {
	sh.calls++
	return sh.calls%sweepEvery == 0
}

// sweep drops fresh entries from the next shard, so that all of them shrink as long as
// any is used.
func (s *Store) sweep(now int64) {
	sh := &s.shards[s.cursor.Add(1)%shards]
	if !sh.mu.TryLock() {
		return // it is busy: leave it to another call
	}
	defer sh.mu.Unlock()
	if sh.cool() {
		now = s.now()
	}
	sh.table.sweep(sh.advance(now), sweepEvery)
}

// reclaim evicts long states, wherever they are, until the budget is kept: the call
// that took memory makes room for it. A pass that finds none is followed by another, which
// looks further on.
func (s *Store) reclaim(now int64) {
	for s.budget.overrun() {
		long := newSample()
		first, distance := long.salt, long.salt>>32|1 // odd, so that each shard is met once
		for i := uint64(0); i < manyShards || i < shards && long.open.count == 0; i++ {
			sh := &s.shards[(first+i*distance)%shards]
			s.lock(sh, now)
			sh.table.hand = sh.table.choose(&long, sh, now, sh.table.hand, maxLooks, longEntry)
			sh.mu.Unlock()
			if long.size() >= sampleSize {
				break
			}
		}
		if long.size() > 0 {
			c := long.choice()
			c.from.table.evict(c, s.lock(c.from, now))
			c.from.mu.Unlock()
		}
	}
}

// Kind implements [store.Kinded]: "memory" and the MaxBytes.
func (s *Store) Kind() string { return "memory " + strconv.FormatInt(s.budget.max, 10) }

// Prepare implements [store.Store]. It refuses limiters whose state for one key would
// not leave room for others, and all limiters if MaxBytes is wrong.
func (s *Store) Prepare(l *store.Limiter) error {
	most := s.budget.max
	switch {
	case most == 0:
		return errors.New("the store is the zero Store: use memstore.New")
	case most < minBytes:
		return fmt.Errorf("the store's MaxBytes is %d: it must be 0 or at least %d", most, minBytes)
	}
	// A sixth is below the quarter that long states may always have, and not less than the
	// longest log takes of the default.
	own := &limiter{}
	for _, p := range l.Spec().Policies {
		if bytes := 8 * int64(p.Step.MaxWords()); bytes > most/6 {
			return fmt.Errorf("policy %q takes up to %d bytes for one key, more than a sixth of the store's %d: increase MaxBytes", p.Name, bytes, most)
		}
		q := policy{step: p.Step, numbers: unique.Make(p.Step.Numbers()), words: p.Step.Words(), hash: identity(l.Spec().Name, p)}
		q.level, own.leveled = step.NewLevel(p.Step)
		own.policies = append(own.policies, q)
	}
	own.leveled = own.leveled && len(own.policies) == 1
	l.Keep(&s.place, own)
	return nil
}
