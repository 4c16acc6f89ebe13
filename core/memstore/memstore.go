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
// key is kept: it may be twice the largest number of units that ever counted at once.
//
// Keys themselves are not stored, only a 64-bit hash with a secret seed: among 10 million
// keys, the probability that two share a hash, and so a limit, is about 1 in 400,000, and
// an attacker cannot provoke it.
//
// A key whose state is again that of a fresh key is dropped at no loss. At the bound,
// the store samples some keys and evicts one: first those that have units left, then
// those that are used up but have never been refused, and last those that have been
// refused and still are; among equals, the one that would be fresh soonest. So a flood of
// made-up keys neither grows the memory nor gives an abuser a fresh start, unless all the
// keys of the flood are charged until they are refused too. [Store.Stats] counts the
// evictions that lost state.
//
// Slots are outside the bound. They take about 200 bytes for each key and 100 for each
// slot, and only while a slot is held.
//
// # Time
//
// The system clock is read once, when the store is made. After that, time advances with
// the process's monotonic clock, so that setting the system clock has no effect. Windows
// are aligned to UTC.
package memstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

// DefaultMaxBytes is 64 MiB, room for about 1.1 million token buckets.
const DefaultMaxBytes = 64 << 20

// minBytes keeps a lower bound on the number of keys that have a state.
const minBytes = 1 << 20

// Config is the configuration of a [Store]. Its zero value is ready to use.
type Config struct {
	// MaxBytes bounds the memory of all state, in bytes. 0 means [DefaultMaxBytes]. With a
	// negative value, or one below 1 MiB, [core.New] refuses the store; it also refuses a
	// policy whose state for one key may take more than a sixth.
	MaxBytes int64
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
)

// A Store is a [core.Store] and a [core.SlotStore] in this process. Make one with
// [New]: [core.New] refuses the zero Store. It is safe for concurrent use.
type Store struct {
	seed   maphash.Seed
	start  time.Time
	origin int64 // start in microseconds since 1970
	budget budget
	cursor atomic.Uint32 // the shard to sweep next
	shards [shards]shard
	slots  slots
}

type shard struct {
	mu     sync.Mutex
	_      [56]byte // waiters watch the lock: what its holder writes is on other cache lines
	calls  uint32
	number int
	table  table
	_      [64]byte // keeps the locks of adjacent shards on different cache lines
}

var (
	_ core.Preparer  = (*Store)(nil)
	_ core.SlotStore = (*Store)(nil)
)

// New returns an empty store.
func New(c Config) *Store {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	now := time.Now()
	s := &Store{
		seed:   maphash.MakeSeed(),
		start:  now,
		origin: now.UnixMicro(),
		budget: budget{max: c.MaxBytes},
	}
	for i := range s.shards {
		s.shards[i].number = i
		s.shards[i].table.budget = &s.budget
	}
	return s
}

func (s *Store) now() int64 {
	return s.origin + int64(time.Since(s.start)/time.Microsecond)
}

// A part is one cell of a call that is being decided.
type part struct {
	shard    *shard
	cell     *core.Cell
	hash     uint64
	n        int64
	entry    *entry    // nil: the key is fresh
	kept     step.Step // that the state was stored with
	state    []int64   // the entry's, or a copy converted to the cell's parameters
	adopted  bool      // state is that copy
	dated    bool      // and it depends on now
	admitted bool
}

// Decide implements [core.Store]. It ignores the context, since it does not block.
func (s *Store) Decide(_ context.Context, c core.Charge, peek bool) (r core.Result, err error) {
	key := maphash.String(s.seed, c.Key)
	sh := &s.shards[key%shards]
	cells := c.Limiter.Cells()
	now := s.now()
	r.At, r.Source = now, core.SourceStore

	sh.mu.Lock()
	if len(cells) == 1 { // the same as below, without the cost of a slice
		p := part{shard: sh, cell: &cells[0], hash: mix(key, cells[0].Hash), n: c.N}
		r.Allowed = p.ask(now)
		p.answer(&r, now, peek)
	} else {
		var room [2]part
		decide(split(room[:0], sh, key, c), &r, peek)
	}
	sweep := sh.tick()
	sh.mu.Unlock()

	if sweep {
		s.sweep(now)
	}
	if s.budget.overrun() {
		s.reclaim(sh, now)
	}
	return r, nil
}

// DecideAll implements [core.Store].
func (s *Store) DecideAll(_ context.Context, cs []core.Charge) (core.Result, error) {
	var partRoom [4]part
	parts := partRoom[:0]
	for _, c := range cs {
		parts = s.split(parts, c)
	}
	now := s.now()
	r := core.Result{At: now, Source: core.SourceStore}
	var lockRoom [4]*shard
	locked := lock(lockRoom[:0], parts)
	decide(parts, &r, false)
	unlock(locked)
	s.sweep(now)
	s.reclaim(parts[0].shard, now)
	return r, nil
}

// split appends the parts of a charge, which are all in one shard.
func (s *Store) split(parts []part, c core.Charge) []part {
	key := maphash.String(s.seed, c.Key)
	return split(parts, &s.shards[key%shards], key, c)
}

func split(parts []part, sh *shard, key uint64, c core.Charge) []part {
	cells := c.Limiter.Cells()
	for i := range cells {
		parts = append(parts, part{shard: sh, cell: &cells[i], hash: mix(key, cells[i].Hash), n: c.N})
	}
	return parts
}

// mix returns the hash of a key's cell. The table places it by its high bits; the shard
// was chosen by the low bits of the key. 0 marks an empty place.
func mix(key, cell uint64) uint64 { return max(key^cell, 1) }

// lock locks the shards of the parts, each once and in an order that prevents deadlocks,
// and appends them to room.
func lock(room []*shard, parts []part) []*shard {
	for i := range parts {
		room = append(room, parts[i].shard)
	}
	slices.SortFunc(room, func(a, b *shard) int { return cmp.Compare(a.number, b.number) })
	room = slices.Compact(room)
	for _, sh := range room {
		sh.mu.Lock()
	}
	return room
}

func unlock(locked []*shard) {
	for _, sh := range locked {
		sh.mu.Unlock()
	}
}

// decide decides a call whose shards are locked.
func decide(parts []part, r *core.Result, peek bool) {
	r.Allowed = true
	for i := range parts {
		if !parts[i].ask(r.At) {
			r.Allowed = false
		}
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
	p.admitted = p.cell.Step.Admits(p.state, now, p.n)
	return p.admitted
}

// answer charges the state, unless the call was refused or is a peek, and adds the
// reading. If this cell refused the charge, it marks the entry. It reports whether entries
// moved.
func (p *part) answer(r *core.Result, now int64, peek bool) (moved bool) {
	need := p.n
	switch {
	case r.Allowed:
		need = 0
		if !peek {
			moved = p.open(now)
			p.save(p.cell.Step.Charge(p.state, now, p.n))
		}
	case !peek && p.cell.CountDenied:
		moved = p.open(now)
		p.save(p.cell.Step.Refuse(p.state, now, p.n))
	case !peek && p.dated:
		p.open(now)
		p.save(p.state)
	}
	if !p.admitted && !peek && p.entry != nil {
		p.entry.markRefused()
	}
	r.Add(p.admitted, p.cell.Step.Read(p.state, now, need))
	return moved
}

// find looks up the state. One that was stored with other parameters is copied and
// converted.
func (p *part) find(now int64) {
	t := &p.shard.table
	p.kept, p.adopted, p.dated = p.cell.Step, false, false
	if p.entry = t.find(p.hash); p.entry == nil {
		p.state = nil
		return
	}
	p.state = t.state(p.entry)
	if kept := t.step(p.entry); kept != p.cell.Step && kept.Numbers() != p.cell.Step.Numbers() {
		p.state, p.dated = p.cell.Step.Adopt(slices.Clone(p.state), now, kept.Numbers())
		p.kept, p.adopted = kept, true
	}
}

// open makes the state writable, and reports whether entries moved.
func (p *part) open(now int64) (moved bool) {
	t := &p.shard.table
	if p.entry != nil {
		if p.adopted {
			t.setStep(p.entry, p.cell.Step)
		}
		return false
	}
	p.entry = t.insert(p.hash, p.cell.Step, now)
	p.state = t.state(p.entry)
	return true
}

// save stores the state if it is no longer the entry's own.
func (p *part) save(state []int64) {
	if p.adopted || &state[0] != &p.state[0] {
		p.shard.table.setState(p.entry, state)
	}
	p.state = state
}

// Settle implements [core.Store].
func (s *Store) Settle(_ context.Context, ss []core.Settlement) error {
	var parts []part
	for _, t := range ss {
		parts = s.split(parts, t.Charge)
	}
	now := s.now()
	defer s.reclaim(parts[0].shard, now)
	locked := lock(nil, parts)
	defer unlock(locked)
	i := 0
	for j := range ss {
		t := &ss[j]
		for range t.Limiter.Cells() {
			uncovered := parts[i].settle(now, t)
			t.Uncovered = max(t.Uncovered, uncovered)
			i++
		}
	}
	return nil
}

func (p *part) settle(now int64, t *core.Settlement) (uncovered int64) {
	p.find(now)
	state, changed, uncovered := step.Settle(p.cell.Step, p.state, p.kept.Numbers(), now, t.At, t.N, t.Actual)
	if changed {
		p.open(now)
		p.save(state)
	}
	return uncovered
}

// Reset implements [core.Store].
func (s *Store) Reset(_ context.Context, l *core.Limiter, key string) error {
	parts := s.split(nil, core.Charge{Limiter: l, Key: key})
	sh := parts[0].shard
	sh.mu.Lock()
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
	sh.table.sweep(now, sweepEvery)
}

// reclaim evicts long states, wherever they are, until the budget is kept: the call
// that took memory makes room for it. A pass that finds none is followed by another,
// which looks further on.
func (s *Store) reclaim(grew *shard, now int64) {
	for s.budget.overrun() {
		var from *shard
		var best candidate
		for i := range 3 {
			sh := grew
			if i > 0 {
				sh = &s.shards[s.cursor.Add(1)%shards]
			}
			sh.mu.Lock()
			c, found := sh.table.choose(now, longEntry, maxLooks)
			sh.mu.Unlock()
			if found && (from == nil || c.before(best)) {
				from, best = sh, c
			}
		}
		if from != nil {
			from.mu.Lock()
			from.table.evict(best, now)
			from.mu.Unlock()
		}
	}
}

// Prepare implements [core.Preparer]. It refuses limiters whose state for one key would
// not leave room for others, and all limiters if MaxBytes is wrong.
func (s *Store) Prepare(l *core.Limiter) error {
	most := s.budget.max
	switch {
	case most == 0:
		return errors.New("the store is the zero Store: use memstore.New")
	case most < minBytes:
		return fmt.Errorf("the store's MaxBytes is %d: it must be 0 or at least %d", most, minBytes)
	}
	// A sixth is below the quarter that long states may always have, and not less than the
	// longest log takes of the default.
	for _, c := range l.Cells() {
		if bytes := 8 * int64(c.Step.MaxWords()); bytes > most/6 {
			return fmt.Errorf("policy %q takes up to %d bytes for one key, more than a sixth of the store's %d: increase MaxBytes", c.Name, bytes, most)
		}
	}
	return nil
}
