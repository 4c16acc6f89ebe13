// Package memstore keeps the state of limiters, and of slots, in this process.
//
// A [Store] is divided into shards, each with its own lock, so that keys rarely wait for
// each other. It starts no goroutine and needs no closing: the calls themselves remove
// what has expired, by looking at about one entry per call.
//
// # Memory
//
// The memory of a store is bounded by [Config].MaxBytes, whatever keys are charged. For
// each key and policy the state takes about
//
//	TokenBucket, FixedWindow, MinInterval   45 bytes
//	SlidingWindow                           90 bytes, and 8 for each sub-window
//	SlidingLog                              105 bytes, and 8 for each unit it has room for
//
// A sliding log starts with room for 4 units, or for its limit if that is lower. The room
// at least doubles whenever it is too small, up to the limit, and never shrinks while the
// key is kept: it may be twice the largest number of units that ever counted at once. A key
// that is charged under several plans has a state for each, of about 200 bytes more.
//
// Keys themselves are not stored, only a 64-bit hash with a secret seed: among 10 million
// keys, the probability that two share a hash, and so a limit, is about 1 in 400,000, and
// an attacker cannot provoke it.
//
// A key whose state is again that of a fresh key is dropped at no loss. At the bound,
// the store samples 24 keys and evicts one: first those that have units left, then those
// that are used up, and last those that are refused, even if they have units left; among
// equals, the one that would be fresh soonest. A key is refused from the refusal of a charge
// until that charge would fit. So a flood of made-up keys neither grows the memory nor gives
// a refused key a fresh start.
//
// The exception is a flood that is refused itself. So that new keys are limited in any
// case, refused keys are spared only while they are at most 21 of the 24. If each key of a
// flood is charged until it is refused, a key that was refused before gets about one fresh
// start for as many of them as the store has room for. [Store.Stats] counts the evictions
// that lost state.
//
// Slots are outside the bound. They take about 200 bytes for each key and 100 for each
// slot, and only while a slot is held.
//
// # Time
//
// The system clock is read once, when the store is made. After that, time advances with
// the process's monotonic clock, so that setting the system clock has no effect. For the
// calls of one key it never goes back, whatever their order, except that calls about a hot
// key which overlap may be dated the other way round. Windows are aligned to UTC.
package memstore

import (
	"cmp"
	"context"
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

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// DefaultMaxBytes is 64 MiB, room for about 1.1 million token buckets.
const DefaultMaxBytes = 64 << 20

// minBytes keeps a lower bound on the number of keys that have a state.
const minBytes = 1 << 20

// Config is the configuration of a [Store]. Its zero value is ready to use.
type Config struct {
	// MaxBytes bounds the memory of all state, in bytes. 0 means [DefaultMaxBytes]. With a
	// negative value, or one below 1 MiB, core.New refuses the store; it also refuses a
	// policy whose state for one key may take more than a sixth.
	MaxBytes int64

	// Observer, if not nil, is told of decisions and slots.
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

// A Store is a [store.Store] and a [store.SlotStore] in this process. Make one with
// [New]: core.New refuses the zero Store. It is safe for concurrent use.
type Store struct {
	seed     maphash.Seed
	start    time.Time
	origin   int64 // start in microseconds since 1970
	budget   budget
	observer *store.Observer
	cursor   atomic.Uint32 // the shard to sweep next
	hotAfter uint32        // which tests set
	shards   [shards]shard
	slots    slots
}

// Format implements [fmt.Formatter]: it prints nothing of what the store keeps. Slots have keys.
func (*Store) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "memstore.Store") }

type shard struct {
	hot    atomic.Pointer[hot] // beside the lock, as it ends whenever that is taken
	mu     sync.Mutex
	_      [48]byte // waiters watch the lock: what its holder writes is on other cache lines
	calls  uint32
	row    uint32 // of calls about last
	last   uint64 // the hash that the last call was about
	number int
	newest int64 // instant of the latest call
	table  table
	spare  [2]int64 // room for part.copied
	_      [64]byte // keeps the locks of adjacent shards on different cache lines
}

var (
	_ store.Quick     = (*Store)(nil)
	_ store.SlotStore = (*Store)(nil)
)

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

// Observer implements [store.Store] and [store.SlotStore].
func (s *Store) Observer() *store.Observer { return s.observer }

func (s *Store) now() int64 {
	return s.origin + int64(time.Since(s.start)/time.Microsecond)
}

// A limiter is a limiter as the store has prepared it.
type limiter struct {
	spec     store.Spec
	policies []policy
}

type policy struct {
	step        step.Step
	numbers     numbers
	short       step.Short // the step, if that decides alone; or nil
	countDenied bool
	hash        uint64 // of what identifies it beside the key
	level       step.Level
	leveled     bool // it has a level, so that a key can be hot under it
}

// Spec implements [store.Limiter].
func (l *limiter) Spec() *store.Spec { return &l.spec }

func prepared(l store.Limiter) *limiter {
	return l.(*limiter) //nolint:forcetypeassert // it is what Prepare has returned
}

// policySeed is another than that of keys, so that no key cancels out a policy.
var policySeed = maphash.MakeSeed()

func newPolicy(limiter string, p store.Policy) policy {
	m := p.Step.Numbers()
	// Names are printable, so the zero bytes keep them apart.
	identity := limiter + "\x00" + p.Name + "\x00" + m.Algorithm.String()
	q := policy{step: p.Step, numbers: unique.Make(m), countDenied: m.CountDenied, hash: maphash.String(policySeed, identity)}
	if !m.CountDenied {
		q.short, _ = p.Step.(step.Short)
	}
	q.level, q.leveled = step.NewLevel(p.Step)
	return q
}

// A part is one policy of a call that is being decided.
type part struct {
	shard    *shard
	policy   *policy
	hash     uint64
	n        int64
	entry    *entry // nil: the key is fresh
	state    []int64
	renumber bool        // store the state with the policy's step
	step     step.Step   // if beside: to store the state with
	beside   bool        // the key is, or was, charged under other parameters too
	others   []step.Kept // states of those
	admitted bool
}

// Take implements [store.Quick]: for short states, of keys that have one, under the policy's
// own numbers.
func (s *Store) Take(l store.Limiter, key string, n int64) (at int64, x step.Reading, admitted, ok bool) {
	policies := prepared(l).policies
	p := &policies[0]
	if p.short == nil || len(policies) > 1 {
		return 0, x, false, false
	}
	hash := maphash.String(s.seed, key)
	sh := &s.shards[hash%shards]
	hash = mix(hash, p.hash)
	if h := sh.hot.Load(); h.is(p, hash) {
		if at, x, admitted, ok = h.take(s, n); ok {
			return at, x, admitted, true
		}
	}
	return s.takeLocked(sh, p, hash, s.now(), n)
}

// takeLocked is Take of a key that was not hot, by a call that has read the clock.
func (s *Store) takeLocked(sh *shard, p *policy, hash uint64, now, n int64) (at int64, x step.Reading, admitted, ok bool) {
	sh.mu.Lock()
	// While it waited, another call may have made the key hot. To end that would make all of
	// them wait again, and again.
	if h := sh.hot.Load(); h.is(p, hash) {
		if at, x, admitted, ok = h.take(s, n); ok {
			sh.mu.Unlock()
			return at, x, admitted, true
		}
	}
	at = s.locked(sh, now)
	e := sh.table.find(hash)
	if e == nil || e.kind&entryBits != 0 || !sh.table.has(e, p) {
		sh.mu.Unlock()
		return 0, x, false, false
	}
	if e.refused > 0 && !e.refuses(p.step, e.words[:], at) {
		e.refused = 0
	}
	if admitted, x = p.short.Take(e.words[:], at, n); !admitted {
		e.refuse(n)
	}
	sh.warm(p, e, at, s.hotAfter)
	sweep := sh.tick()
	sh.mu.Unlock()
	if sweep {
		s.sweep(at)
	}
	return at, x, admitted, true
}

// Self implements [store.Quick].
func (s *Store) Self() store.Store { return s }

// Decide implements [store.Store]. It ignores the context, since it does not block.
func (s *Store) Decide(_ context.Context, c store.Charge, peek bool, r *store.Result) error {
	if !peek && c.Extra == 0 {
		if at, x, admitted, ok := s.Take(c.Limiter, c.Key, c.N); ok {
			r.Start(at, store.SourceStore)
			r.Allowed = admitted
			r.Add(admitted, x)
			return nil
		}
	}
	key := maphash.String(s.seed, c.Key)
	sh := &s.shards[key%shards]
	policies := prepared(c.Limiter).policies
	now := s.lock(sh, s.now())
	r.Start(now, store.SourceStore)
	if len(policies) == 1 { // the same as below, without the cost of a slice
		p := part{shard: sh, policy: &policies[0], hash: mix(key, policies[0].hash), n: c.N}
		if r.Allowed = p.ask(now); r.Allowed && c.Extra > 0 {
			r.Extra = p.room(now, c.Extra)
			p.n += r.Extra
		}
		p.answer(r, now, peek)
	} else {
		var room [2]part
		decide(split(room[:0], sh, key, c), r, c.Extra, peek)
	}
	sweep := sh.tick()
	sh.mu.Unlock()

	if sweep {
		s.sweep(now)
	}
	if s.budget.overrun() {
		s.reclaim(now)
	}
	return nil
}

// DecideAll implements [store.Store].
func (s *Store) DecideAll(_ context.Context, cs []store.Charge, r *store.Result) error {
	var partRoom [4]part
	parts := partRoom[:0]
	for _, c := range cs {
		if c.Extra != 0 {
			return store.ErrExtra
		}
		parts = s.split(parts, c)
	}
	now := s.now()
	var lockRoom [4]*shard
	locked, now := s.lockAll(lockRoom[:0], parts, now)
	r.Start(now, store.SourceStore)
	decide(parts, r, 0, false)
	unlock(locked)
	s.sweep(now)
	s.reclaim(now)
	return nil
}

// split appends the parts of a charge, which are all in one shard.
func (s *Store) split(parts []part, c store.Charge) []part {
	key := maphash.String(s.seed, c.Key)
	return split(parts, &s.shards[key%shards], key, c)
}

func split(parts []part, sh *shard, key uint64, c store.Charge) []part {
	policies := prepared(c.Limiter).policies
	for i := range policies {
		parts = append(parts, part{shard: sh, policy: &policies[i], hash: mix(key, policies[i].hash), n: c.N})
	}
	return parts
}

// mix returns the hash of a policy for a key. The table places it by its high bits; the shard
// was chosen by the low bits of the key. 0 marks an empty place.
func mix(key, policy uint64) uint64 { return max(key^policy, 1) }

// lockAll locks the shards of the parts, each once and in an order that prevents deadlocks,
// and appends them to room. It returns the one instant of a call that read the clock before.
func (s *Store) lockAll(room []*shard, parts []part, now int64) ([]*shard, int64) {
	for i := range parts {
		room = append(room, parts[i].shard)
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

// decide decides a call whose shards are locked, with extra units if it is of one charge.
func decide(parts []part, r *store.Result, extra int64, peek bool) {
	r.Allowed = true
	for i := range parts {
		if !parts[i].ask(r.At) {
			r.Allowed = false
		}
	}
	if r.Allowed && extra > 0 {
		for i := range parts {
			extra = parts[i].room(r.At, extra)
		}
		for i := range parts {
			parts[i].n += extra
		}
		r.Extra = extra
	}
	moved := false // by an insertion, which invalidates what was found
	for i := range parts {
		if moved {
			parts[i].find(r.At)
		}
		if parts[i].answer(r, r.At, peek) {
			moved = true
		}
	}
}

// ask finds the state and reports whether the charge fits.
func (p *part) ask(now int64) bool {
	p.find(now)
	p.admitted = p.policy.step.Admits(p.state, now, p.n)
	return p.admitted
}

// room returns how many of the extra units fit beside those that were admitted.
func (p *part) room(now, extra int64) int64 {
	return min(extra, step.Room(p.policy.step, p.state, now)-p.n)
}

// answer charges the state, unless the call was refused or is a peek, and adds the
// reading. If this policy refused the charge, the entry notes that. It reports whether
// entries moved.
func (p *part) answer(r *store.Result, now int64, peek bool) (moved bool) {
	need := p.n
	switch {
	case r.Allowed:
		need = 0
		if !peek {
			p.lapse(now)
			moved = p.open(now)
			p.save(p.policy.step.Charge(p.state, now, p.n), now, p.n)
		}
	case peek && p.policy.countDenied: // as Allow would answer, of a copy
		p.state = p.policy.step.Refuse(p.copied(), now, p.n)
	case p.policy.countDenied:
		p.lapse(now)
		moved = p.open(now)
		p.save(p.policy.step.Refuse(p.state, now, p.n), now, 0)
	case !peek && p.beside && p.state != nil:
		p.save(p.state, now, 0)
	}
	if !p.admitted && !peek && p.entry != nil {
		p.entry.refuse(p.n)
	}
	r.Add(p.admitted, p.policy.step.Read(p.state, now, need))
	return moved
}

// copied returns a copy of the state, until the next: in the shard, if it is short.
func (p *part) copied() []int64 {
	words := p.policy.step.Words()
	if short := p.shard.spare[:]; words <= len(short) {
		clear(short)
		copy(short, p.state)
		return short[:words]
	}
	if p.state == nil {
		return make([]int64, words)
	}
	return slices.Clone(p.state)
}

// find looks up the state.
func (p *part) find(now int64) {
	t := &p.shard.table
	p.renumber, p.beside = false, false
	if p.entry = t.find(p.hash); p.entry == nil {
		p.state = nil
		return
	}
	if p.entry.kind&several != 0 || !t.has(p.entry, p.policy) {
		p.findBeside(now)
		return
	}
	p.state = t.state(p.entry)
}

// lapse forgets a refusal that no longer stands, before a charge by which it would seem to
// stand again.
func (p *part) lapse(now int64) {
	if e := p.entry; e != nil && e.refused > 0 && !e.refuses(p.policy.step, p.state, now) {
		e.refused = 0
	}
}

// open makes the state writable, and reports whether entries moved.
func (p *part) open(now int64) (moved bool) {
	t := &p.shard.table
	switch {
	case p.entry == nil:
		p.entry = t.insert(p.hash, p.policy.step, now)
		p.state = t.state(p.entry)
		return true
	case p.renumber:
		t.setStep(p.entry, p.policy.step)
	case p.state == nil: // that of others is fresh
		p.state = make([]int64, p.policy.step.Words())
	}
	return false
}

// save stores the state, after n units were charged.
func (p *part) save(state []int64, now, n int64) {
	if p.beside {
		p.saveBeside(state, now, n)
	} else if &state[0] != &p.state[0] {
		p.shard.table.setState(p.entry, state)
	}
	p.state = state
}

// Settle implements [store.Store].
func (s *Store) Settle(_ context.Context, ss []store.Settlement) error {
	var parts []part
	for _, t := range ss {
		if t.Extra != 0 {
			return store.ErrExtra
		}
		parts = s.split(parts, t.Charge)
	}
	now := s.now()
	defer s.reclaim(now)
	locked, now := s.lockAll(nil, parts, now)
	defer unlock(locked)
	i := 0
	for j := range ss {
		t := &ss[j]
		for range prepared(t.Limiter).policies {
			uncovered := parts[i].settle(now, t)
			t.Uncovered = max(t.Uncovered, uncovered)
			i++
		}
	}
	return nil
}

func (p *part) settle(now int64, t *store.Settlement) (uncovered int64) {
	p.find(now)
	p.lapse(now)
	state, changed, uncovered := step.Settle(p.policy.step, p.state, now, t.At, t.N, t.Actual)
	if changed {
		p.open(now)
		p.save(state, now, max(t.Actual-t.N-uncovered, 0))
	}
	return uncovered
}

// Reset implements [store.Store].
func (s *Store) Reset(_ context.Context, l store.Limiter, key string) error {
	parts := s.split(nil, store.Charge{Limiter: l, Key: key})
	sh := parts[0].shard
	s.lock(sh, s.now())
	defer sh.mu.Unlock()
	for i := range parts {
		sh.table.remove(parts[i].hash)
	}
	return nil
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
func (s *Store) Prepare(spec store.Spec) (store.Limiter, error) {
	most := s.budget.max
	switch {
	case most == 0:
		return nil, errors.New("the store is the zero Store: use memstore.New")
	case most < minBytes:
		return nil, fmt.Errorf("the store's MaxBytes is %d: it must be 0 or at least %d", most, minBytes)
	}
	// A sixth is below the quarter that long states may always have, and not less than the
	// longest log takes of the default.
	l := &limiter{spec: spec}
	for _, p := range spec.Policies {
		if bytes := 8 * int64(p.Step.MaxWords()); bytes > most/6 {
			return nil, fmt.Errorf("policy %q takes up to %d bytes for one key, more than a sixth of the store's %d: increase MaxBytes", p.Name, bytes, most)
		}
		l.policies = append(l.policies, newPolicy(spec.Name, p))
	}
	return l, nil
}
