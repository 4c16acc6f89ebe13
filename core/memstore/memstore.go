// Package memstore keeps the state of limiters, and of slots, in this process.
//
// A [Store] is divided into shards, each under a lock of its own, so that keys do
// not wait for each other. It starts no goroutine and needs no closing: the calls
// themselves sweep out what is no longer needed, about one entry for each call.
//
// # Memory
//
// The memory of a store is bounded by [Config].MaxBytes, whatever keys arrive. A
// token bucket, a fixed window or a minimum distance takes about 45 bytes for each
// key and policy. Keys themselves are not kept, only a 64-bit hash under a secret
// seed: among 10 million keys, two share a hash, and so a limit, with a
// probability of about 1 in 400,000, and nobody outside can aim for it. A
// sliding window takes 8 bytes more for each sub-window, a sliding log 8 bytes
// more for each unit that counts.
//
// A key whose state is again that of a fresh key is dropped at no loss. At the bound,
// the store samples some keys and evicts the one that would be fresh soonest; a key
// that is refused now goes only if the whole sample is. So a flood of made-up keys
// neither grows the memory nor gives an abuser a fresh start. [Store.Stats] counts the
// evictions that lost state.
//
// Slots are outside the bound: what they take, about 200 bytes for each key and 100
// for each slot, is there only while something is held.
//
// # Time
//
// The clock is the system's, read once when the store is made, and the process's
// monotonic clock since then: setting the system clock moves nothing. Windows are
// aligned to UTC.
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

// minBytes keeps a floor under the number of keys that can be told apart.
const minBytes = 1 << 20

// Config is what a Store is made of. Its zero value is ready to use.
type Config struct {
	// MaxBytes bounds the memory of all state. 0 or less means [DefaultMaxBytes];
	// less than 1 MiB means 1 MiB.
	MaxBytes int64
}

// Stats is what [Store.Stats] tells.
type Stats struct {
	Keys    int    // states held: one for each key and policy
	Bytes   int64  // memory of all state, at most MaxBytes
	Evicted uint64 // states dropped so far for want of room while they still counted
}

const (
	shards = 256

	// A call in sweepEvery sweeps that many entries of some shard.
	sweepEvery = 64
)

// A Store is a [core.Store] and a [core.SlotStore] in this process. Make one with
// [New]: limiters refuse the zero Store. It is safe for concurrent use.
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
	_      [56]byte // those who wait watch the lock: what its holder writes is on other cache lines
	calls  uint32
	number int
	table  table
	_      [64]byte // keeps the locks of neighbours on different cache lines
}

var (
	_ core.Preparer  = (*Store)(nil)
	_ core.SlotStore = (*Store)(nil)
)

// New returns an empty store.
func New(c Config) *Store {
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	now := time.Now()
	s := &Store{
		seed:   maphash.MakeSeed(),
		start:  now,
		origin: now.UnixMicro(),
		budget: budget{max: max(c.MaxBytes, minBytes)},
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

// A part is one cell of a question while it is being answered.
type part struct {
	shard    *shard
	cell     *core.Cell
	hash     uint64
	n        int64
	entry    *entry    // nil: the key is fresh
	kept     step.Step // what the entry was kept under
	state    []int64   // the entry's, or a copy under other numbers
	adopted  bool      // state is that copy
	dated    bool      // and depends on now
	admitted bool
}

// Decide implements [core.Store]. It ignores the context, for it never waits.
func (s *Store) Decide(_ context.Context, c core.Charge, peek bool) (r core.Result, err error) {
	key := maphash.String(s.seed, c.Key)
	sh := &s.shards[key%shards]
	cells := c.Limiter.Cells()
	now := s.now()
	r.At, r.Source = now, core.SourceStore

	sh.mu.Lock()
	if len(cells) == 1 { // the same as below, without a slice
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

// mix makes the hash of a key's cell. The table takes its places from the high
// bits, the choice of the shard the low ones, and 0 marks an empty place.
func mix(key, cell uint64) uint64 { return max(key^cell, 1) }

// lock locks the shards of the parts, each once and in one order for everybody, and
// appends them to room.
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

// decide answers a question whose shards are locked.
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

// answer charges the state, unless the question was refused or is a peek, and adds
// the reading. It reports whether entries moved.
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
	r.Add(p.admitted, p.cell.Step.Read(p.state, now, need))
	return moved
}

// find looks the state up. One that was kept under other numbers is converted in
// a copy.
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

// open makes the state one that can be written, and reports whether entries moved.
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

// save stores the state if it is not the entry's own any more.
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

// Stats adds up all shards, locking one at a time.
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

// tick reports whether it is this call's turn to sweep.
func (sh *shard) tick() bool {
	sh.calls++
	return sh.calls%sweepEvery == 0
}

// sweep drops fresh entries from some shard, so that all of them shrink as long
// as any is used.
func (s *Store) sweep(now int64) {
	sh := &s.shards[s.cursor.Add(1)%shards]
	if !sh.mu.TryLock() {
		return // it is busy: another call's turn
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

// Prepare refuses limiters whose state for one key would not leave room for
// others. [core.New] calls it.
func (s *Store) Prepare(l *core.Limiter) error {
	if s.budget.max == 0 {
		return errors.New("the store is the zero Store: use memstore.New")
	}
	for _, c := range l.Cells() {
		if bytes := 8 * int64(c.Step.MaxWords()); bytes > s.budget.max/8 {
			return fmt.Errorf("policy %q takes up to %d bytes for one key, more than an eighth of the store's %d: raise MaxBytes", c.Name, bytes, s.budget.max)
		}
	}
	return nil
}
