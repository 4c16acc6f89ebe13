package lease

import (
	"cmp"
	"context"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/old/core/store"
)

const (
	shardCount = 256
	cellCount  = 64 // in a shard
)

// A shard has the keys of which the hash ends alike.
type shard struct {
	mu      sync.Mutex
	entries map[uint64]*entry
	busy    atomic.Bool // there are entries
	cells   [cellCount]cell
	_       [64]byte // keeps the locks of adjacent shards on different cache lines
}

// A cell remembers the demand of one of the keys that share it and have no entry. So a key that is asked for
// once takes no memory. Another key takes its place when it is the second in a row, or two keys that
// are asked for in turn would never have entries.
type cell struct {
	hash   uint64
	demand demand
	spared bool // another key has been asked for since: the next one takes its place
}

// A place is where a key is.
type place struct {
	*shard

	limiter *limiter
	key     string
	hash    uint64
}

// charge returns a charge of the key.
func (p *place) charge(n int64) store.Charge {
	return store.Charge{Limiter: p.limiter.Limiter, Key: p.key, N: n}
}

// allow returns a question for n units of the key.
func (p *place) allow(n, extra int64, fresh bool) *store.Question {
	return &store.Question{Mode: store.Allow, Charges: []store.Charge{p.charge(n)}, Extra: extra, Fresh: fresh}
}

func (s *Store) place(l *limiter, key string) place {
	hash := maphash.String(s.seed, key) ^ l.hash
	return place{&s.shards[hash%shardCount], l, key, hash}
}

// locked iterates over the shards, and holds the lock of each meanwhile.
func (s *Store) locked() iter.Seq[*shard] {
	return func(yield func(*shard) bool) {
		for i := range s.shards {
			if !s.shards[i].visit(yield) {
				return
			}
		}
	}
}

// lockedBusy is locked for those that have entries. It may leave out one that gets its first
// meanwhile.
func (s *Store) lockedBusy() iter.Seq[*shard] {
	return func(yield func(*shard) bool) {
		for i := range s.shards {
			if sh := &s.shards[i]; sh.busy.Load() && !sh.visit(yield) {
				return
			}
		}
	}
}

func (sh *shard) visit(yield func(*shard) bool) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return yield(sh)
}

// lockAll locks the shards of several places, each once and in one order. It returns what
// unlocks them.
func lockAll(places []place) func() {
	order := make([]*place, 0, len(places))
	for i := range places {
		order = append(order, &places[i])
	}
	slices.SortFunc(order, func(a, b *place) int { return cmp.Compare(a.hash%shardCount, b.hash%shardCount) })
	order = slices.CompactFunc(order, func(a, b *place) bool { return a.shard == b.shard })
	for _, p := range order {
		p.mu.Lock()
	}
	return func() {
		for _, p := range order {
			p.mu.Unlock()
		}
	}
}

// find returns the entry of the key, or nil.
func (p *place) find() *entry {
	for e := p.entries[p.hash]; e != nil; e = e.next {
		if e.limiter == p.limiter && e.key == p.key {
			return e
		}
	}
	return nil
}

// entry returns the entry of the key, and counts a call for n units. If there is none, it
// makes one if the key is asked for often, and not too long. The shard is locked.
func (s *Store) entry(p *place, now instant, n int64) *entry {
	if e := p.find(); e != nil {
		e.ask(s, now, n)
		return e
	}
	if len(p.key) > MaxKey {
		return nil
	}
	d := &p.cells[p.hash/shardCount%cellCount]
	if d.hash != p.hash {
		if d.hash != 0 && !d.spared {
			d.spared = true
			return nil
		}
		*d = cell{hash: p.hash}
	}
	d.demand.add(now.mono, s.span, n)
	if !s.calls.known.Load() || s.closed.Load() || d.demand.count(now.mono, s.span) < 2*float64(n) {
		return nil
	}
	if !s.reserve(entrySize(p.limiter, p.key), s.maxBytes/4*3) { // the rest is for what they give back
		return nil
	}
	e := &entry{ // the key may be a part of a long header
		limiter: p.limiter, key: strings.Clone(p.key), demand: d.demand, asked: now.mono, next: p.entries[p.hash],
	}
	p.entries[p.hash] = e
	p.busy.Store(true)
	s.entries.Add(1)
	s.wake()
	return e
}

// ask counts a call.
func (e *entry) ask(s *Store, now instant, n int64) {
	e.demand.add(now.mono, s.span, n)
	e.asked = now.mono
}

// endOthers ends the leases of the key under other plans, before a call that may charge it.
// For then they were charged earlier and would be spent later, when more counts under them.
func (s *Store) endOthers(p *place) {
	if p.limiter.family.plans.Load() > 1 {
		p.mu.Lock()
		defer p.mu.Unlock()
		s.endOthersLocked(p)
	}
}

// charge asks the store a question that may charge. Before anybody gets the answer, it ends what other plans
// have leased meanwhile, which the charge did not find.
func (s *Store) charge(ctx context.Context, q *store.Question) error {
	err := s.next.Ask(ctx, q)
	for i := range q.Charges {
		c := &q.Charges[i]
		if l := s.prepared(c.Limiter); l.family.plans.Load() > 1 && (q.Mode != store.Settle || c.Actual > c.N) {
			p := s.place(l, c.Key)
			s.endOthers(&p)
		}
	}
	return err
}

func (s *Store) endOthersLocked(p *place) {
	if p.limiter.family.plans.Load() == 1 {
		return
	}
	for e := p.entries[p.hash]; e != nil; e = e.next {
		if e.limiter.family == p.limiter.family && e.limiter != p.limiter && e.key == p.key {
			e.others++
			s.finish(e)
		}
	}
}
