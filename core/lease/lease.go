package lease

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core/store"
)

// Defaults and bounds of a [Config].
const (
	DefaultFor     = time.Second
	MaxFor         = time.Minute
	MinFor         = time.Millisecond
	DefaultMaxKeys = 1 << 16
)

// Config is the configuration of a [Store]. Its zero value is ready to use.
type Config struct {
	// For is the longest time for which units are leased, from [MinFor] to [MaxFor]. 0 means
	// [DefaultFor]. A longer time saves calls of the store, and what one server has leased
	// and does not use is missing elsewhere for longer. Leases end with the sub-window
	// anyhow, and there are none in the last four round trips before that.
	For time.Duration

	// MaxKeys bounds the number of keys with leases, and so the memory, of about 500 bytes
	// for each and 1 MB for all. What other keys ask is passed on. 0 means [DefaultMaxKeys].
	MaxKeys int
}

// A Store is a [store.Store] that leases units from another. Make one with [New]. It is safe
// for concurrent use. While keys have been asked for often lately, a timer runs.
type Store struct {
	next    store.Store
	span    int64 // Config.For, in nanoseconds
	maxKeys int64
	now     func() instant
	seed    maphash.Seed

	mu       sync.Mutex
	families map[string]*family

	ahead   atomic.Int64 // about how far the store's clock is ahead of the monotonic one, in microseconds
	trip    atomic.Int64 // about how long a call takes, in nanoseconds
	known   atomic.Bool  // the two
	closed  atomic.Bool
	entries atomic.Int64
	shards  [shardCount]shard
	returns returns
}

const (
	shardCount = 256
	cellCount  = 64 // in a shard
)

// A shard has the keys of which the hash ends alike.
type shard struct {
	mu      sync.Mutex
	entries map[uint64]*entry
	cells   [cellCount]cell
	_       [64]byte // keeps the locks of adjacent shards on different cache lines
}

// A cell remembers the demand of the key that was asked for last, of those that share it and
// have no entry. So a key that is asked for once takes no memory.
type cell struct {
	hash   uint64
	demand demand
}

var _ store.Store = (*Store)(nil)

// New returns a store that leases from another, which stays in use for itself, for example
// for slots. The error says what is wrong with the configuration.
func New(next store.Store, c Config) (*Store, error) {
	if c.For == 0 {
		c.For = DefaultFor
	}
	if c.MaxKeys == 0 {
		c.MaxKeys = DefaultMaxKeys
	}
	var faults []error
	if next == nil {
		faults = append(faults, errors.New("the store is nil"))
	}
	if _, leased := next.(*Store); leased {
		faults = append(faults, errLeased)
	}
	if c.For < MinFor || c.For > MaxFor {
		faults = append(faults, fmt.Errorf("a For of %v is not from %v to %v", c.For, MinFor, MaxFor))
	}
	if c.MaxKeys < 0 {
		faults = append(faults, fmt.Errorf("MaxKeys is %d, less than 0", c.MaxKeys))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("headgate: lease: %w", errors.Join(faults...))
	}
	s := &Store{
		next:     next,
		span:     int64(c.For),
		maxKeys:  int64(c.MaxKeys),
		now:      clock(),
		seed:     maphash.MakeSeed(),
		families: make(map[string]*family),
		returns:  returns{sending: make(chan struct{}, 1)},
	}
	for i := range s.shards {
		s.shards[i].entries = make(map[uint64]*entry)
	}
	return s, nil
}

// Observer implements [store.Store]. It is that of the store below.
func (s *Store) Observer() *store.Observer { return s.next.Observer() }

// Prepare implements [store.Store].
func (s *Store) Prepare(spec store.Spec) (store.Limiter, error) {
	next, err := s.next.Prepare(spec)
	if err != nil {
		return nil, err
	}
	if _, leased := next.(*limiter); leased {
		return nil, errLeased
	}
	s.mu.Lock()
	f := s.families[spec.Name]
	if f == nil {
		f = new(family)
		s.families[spec.Name] = f
	}
	s.mu.Unlock()
	l := &limiter{Limiter: next, hash: maphash.String(s.seed, spec.Name), family: f, leasable: leasable(&spec)}
	if f.join(&spec) {
		s.end(func(e *entry) bool { return e.limiter.family == f })
	}
	return l, nil
}

// A place is where a key is.
type place struct {
	*shard

	limiter *limiter
	key     string
	hash    uint64
}

func (s *Store) place(l *limiter, key string) place {
	hash := maphash.String(s.seed, key) ^ l.hash
	return place{&s.shards[hash%shardCount], l, key, hash}
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

// Decide implements [store.Store].
func (s *Store) Decide(ctx context.Context, c store.Charge, peek bool) (r store.Result, err error) {
	l := below(c.Limiter)
	c.Limiter = l.Limiter
	p := s.place(l, c.Key)
	if !l.leasable {
		if !peek {
			s.endOthers(&p)
		}
		return s.next.Decide(ctx, c, peek)
	}
	if peek || c.Extra > 0 {
		return s.decideRest(ctx, &p, c, peek)
	}
	now := s.now()
	p.mu.Lock()
	if e := p.find(); e != nil && e.spend(&r, now, c.N, false) {
		e.demand.add(now.mono, s.span, c.N)
		p.mu.Unlock()
		return r, nil
	}
	p.mu.Unlock()
	return s.ask(ctx, &p, c)
}

// decideRest decides what opens no lease. A peek asks the store too: what is left in a lease
// is known, and what others did since it was opened is not.
func (s *Store) decideRest(ctx context.Context, p *place, c store.Charge, peek bool) (r store.Result, err error) {
	if !peek {
		s.endOthers(p)
		_ = s.giveBackNow(ctx, []place{*p}) // so that the store sees all that is left
		return s.next.Decide(ctx, c, false)
	}
	now := s.now()
	p.mu.Lock()
	e := p.find()
	if e != nil && e.refuse(&r, now, c.N) {
		p.mu.Unlock()
		return r, nil
	}
	left := int64(0)
	if e != nil && now.before(e.until) {
		left = e.left
	}
	p.mu.Unlock()
	r, err = s.next.Decide(ctx, c, true)
	if left == 0 || err != nil {
		return r, err
	}
	extra := r.Extra
	if r = beside(&r, left, c.N); r.Allowed {
		r.Extra = min(extra+left, c.Extra)
	}
	return r, nil
}

// ask decides with a call of the store, or with what another call has leased meanwhile.
func (s *Store) ask(ctx context.Context, p *place, c store.Charge) (r store.Result, err error) {
	for waited := false; ; waited = true {
		now := s.now()
		p.mu.Lock()
		s.endOthersLocked(p)
		e := p.find()
		if e != nil {
			if !waited {
				e.demand.add(now.mono, s.span, c.N)
			}
			if e.spend(&r, now, c.N, false) || e.refuse(&r, now, c.N) {
				p.mu.Unlock()
				return r, nil
			}
			if flight := e.flight; flight != nil && !waited {
				p.mu.Unlock()
				select {
				case <-flight:
					continue
				case <-ctx.Done():
					return r, ctx.Err()
				}
			}
		} else if e = s.warm(p, now, c.N); e == nil {
			p.mu.Unlock()
			return s.call(ctx, c)
		}
		return s.borrow(ctx, p, e, c, now)
	}
}

// warm counts a call for a key without an entry, and makes one if it is asked for often.
func (s *Store) warm(p *place, now instant, n int64) *entry {
	d := &p.cells[p.hash/shardCount%cellCount]
	if d.hash != p.hash {
		*d = cell{hash: p.hash}
	}
	d.demand.add(now.mono, s.span, n)
	if !s.known.Load() || s.closed.Load() || d.demand.units(now.mono, s.span) < 2*float64(n) || s.entries.Load() >= s.maxKeys {
		return nil
	}
	e := &entry{ // the key may be a part of a long header
		limiter: p.limiter, key: strings.Clone(p.key), demand: d.demand, next: p.entries[p.hash],
	}
	p.entries[p.hash] = e
	s.entries.Add(1)
	s.wake()
	return e
}

// want returns how many units to lease beside n.
func (s *Store) want(e *entry, now instant, n int64) int64 {
	if s.closed.Load() {
		return 0
	}
	at := s.ahead.Load() + now.mono/1000 // about
	_, end := e.limiter.family.bounds(at)
	span := min((end-at)*1000, s.span)
	if span <= 4*s.trip.Load() {
		return 0
	}
	units := (e.demand.units(now.mono, s.span) - float64(n)) * float64(span) / float64(s.span)
	if units < float64(n) {
		return 0
	}
	return min(int64(units), e.room/4)
}

// call asks the store, and notes how long that takes, and what its clock says.
func (s *Store) call(ctx context.Context, c store.Charge) (store.Result, error) {
	sent := s.now()
	r, err := s.next.Decide(ctx, c, false)
	if err == nil && r.Source == store.SourceStore {
		now := s.now()
		trip := now.mono - sent.mono
		if s.known.Load() {
			old := s.trip.Load()
			trip = old + (trip-old)/8
		}
		s.trip.Store(trip)
		s.ahead.Store(r.At - now.mono/1000)
		s.known.Store(true)
	}
	return r, err
}

// borrow asks the store for n units and more. The shard is locked, and is not after it.
func (s *Store) borrow(ctx context.Context, p *place, e *entry, c store.Charge, sent instant) (r store.Result, err error) {
	c.Extra = s.want(e, sent, c.N)
	resets, others, flight := e.resets, e.others, chan struct{}(nil)
	if c.Extra > 0 && e.flight == nil {
		flight = make(chan struct{})
		e.flight = flight
	}
	e.calls++
	p.mu.Unlock()
	answered := false
	defer func() {
		if !answered { // a panic
			s.landed(p, e, flight)
		}
	}()
	r, err = s.call(ctx, c)
	now := s.now()
	surplus := r.Extra
	r.Extra = 0

	answered = true
	p.mu.Lock()
	s.landedLocked(e, flight)
	var back *store.Settlement
	if err == nil {
		if e.resets != resets {
			surplus = 0 // which may be forgotten, or count until it expires
		}
		back = s.learn(e, &r, sent, now, c, surplus, e.others == others)
	}
	left := e.left
	p.mu.Unlock()
	if back != nil {
		_ = s.next.Settle(context.WithoutCancel(ctx), []store.Settlement{*back}) // or less is admitted
	}
	if err != nil || r.Allowed || left == 0 || least(&r)+left < c.N {
		return r, err
	}
	// What is left here, and what is left there, may be enough together.
	if err := s.giveBackNow(ctx, []place{*p}); err != nil {
		return r, nil
	}
	c.Extra = 0
	return s.call(ctx, c)
}

func (s *Store) landed(p *place, e *entry, flight chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.landedLocked(e, flight)
}

func (*Store) landedLocked(e *entry, flight chan struct{}) {
	e.calls--
	if flight != nil {
		close(flight)
		e.flight = nil
	}
}

// learn takes over what the store answered to a charge, of which the surplus is leased: or
// returned, if it cannot be. It adds what is leased to the result.
func (s *Store) learn(e *entry, r *store.Result, sent, now instant, c store.Charge, surplus int64, alone bool) (back *store.Settlement) {
	if r.Source == store.SourceStore {
		e.room = least(r)
	}
	switch {
	case !r.Allowed && (r.Source == store.SourceStore || r.Source == store.SourceCache):
		e.refusal = refusal{n: c.N, result: *r, from: now.mono}
		e.pause(s, now)
	case e.refusal.n > 0 && now.mono-e.refusal.from < s.span:
		e.pause(s, now)
	default:
		e.refusal = refusal{}
	}
	c.N, c.Extra = c.N+surplus, 0
	switch {
	case surplus == 0:
	case r.Source != store.SourceStore || !alone:
		back = &store.Settlement{Charge: c, At: r.At, Source: r.Source, Actual: c.N - surplus}
	default:
		s.open(e, r, sent, now, surplus)
	}
	if r.Allowed && r.Source == store.SourceStore && e.left > 0 && now.before(e.until) {
		*r = beside(r, e.left, 0)
	}
	return back
}

// pause keeps the key from asking the store for what it has refused, for a twentieth of a
// lease's life, but not beyond the sub-window.
func (e *entry) pause(s *Store, now instant) {
	at := s.ahead.Load() + now.mono/1000
	start, end := e.limiter.family.bounds(at)
	e.refusal.until = now.mono + min(s.span/20, (end-start)*1000/20, max(end-at, 0)*1000)
}

// open leases units that the store charged at r.At, by a call that was sent at that time.
func (s *Store) open(e *entry, r *store.Result, sent, now instant, units int64) {
	start, end := e.limiter.family.bounds(r.At)
	until := sent.add(min(life(end-r.At), s.span))
	fresh := store.Settlement{
		Charge: store.Charge{Limiter: e.limiter, Key: e.key, N: units},
		At:     r.At, Source: store.SourceStore,
	}
	same := e.start == start && e.end == end // the units are counted alike
	switch {
	case s.closed.Load(), !now.before(until), !same && r.At < e.at:
		s.giveBack(fresh)
		return
	case same && now.before(e.until):
		e.left, e.charged, e.until = e.left+units, e.charged+units, e.until.later(until)
		if r.At < e.at {
			return
		}
	default:
		s.finish(e)
		e.left, e.charged, e.start, e.end, e.until = units, units, start, end, until
	}
	e.at, e.answer, e.from = r.At, *r, now.mono
}

// finish ends a lease.
func (s *Store) finish(e *entry) {
	var t store.Settlement
	if e.take(&t) {
		s.giveBack(t)
	}
	e.until = instant{}
}

// DecideAll implements [store.Store]. The charges are passed on; if they are refused, what
// is leased of their keys is given back first, and they are passed on again.
func (s *Store) DecideAll(ctx context.Context, cs []store.Charge) (store.Result, error) {
	all := slices.Clone(cs)
	places := make([]place, 0, len(cs))
	for i := range all {
		l := below(all[i].Limiter)
		all[i].Limiter = l.Limiter
		p := s.place(l, all[i].Key)
		s.endOthers(&p)
		if l.leasable {
			places = append(places, p)
		}
	}
	r, err := s.next.DecideAll(ctx, all)
	if err != nil || r.Allowed || !slices.ContainsFunc(places, func(p place) bool { return p.holds() }) {
		return r, err
	}
	if err := s.giveBackNow(ctx, places); err != nil {
		return r, nil //nolint:nilerr // it is refused
	}
	return s.next.DecideAll(ctx, all)
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

// holds reports whether units of the key are leased.
func (p *place) holds() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.find()
	return e != nil && e.left > 0
}

// Settle implements [store.Store]. What was spent from a lease that is not over goes back to
// it, and what it holds covers units that are charged later.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) error {
	for i := range ss {
		if ss[i].Extra != 0 {
			return store.ErrExtra
		}
	}
	rest := make([]store.Settlement, 0, len(ss))
	from := make([]int, 0, len(ss)) // of the rest
	for i, t := range ss {
		l := below(t.Limiter)
		if l.leasable {
			s.settle(l, &t)
		}
		if t.Source == store.SourceLease {
			t.Source = store.SourceStore
		}
		t.Limiter = l.Limiter
		if t.Actual != t.N {
			rest, from = append(rest, t), append(from, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	err := s.next.Settle(ctx, rest)
	for i := range rest {
		ss[from[i]].Uncovered = rest[i].Uncovered
	}
	return err
}

// settle settles in the lease what can be. What cannot is left in t.
func (s *Store) settle(l *limiter, t *store.Settlement) {
	p, now := s.place(l, t.Key), s.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.find()
	if e == nil {
		return
	}
	e.refusal = refusal{}
	switch live := now.before(e.until); {
	case !live:
	case t.Actual > t.N:
		more := min(t.Actual-t.N, e.left)
		e.left, t.Actual = e.left-more, t.Actual-more
	case t.Source == store.SourceLease && e.start <= t.At && t.At < e.end:
		back := min(t.N-t.Actual, e.charged-e.left)
		e.left, t.Actual = e.left+back, t.Actual+back
	}
}

// Reset implements [store.Store]. Other servers keep what they have leased.
func (s *Store) Reset(ctx context.Context, sl store.Limiter, key string) error {
	l := below(sl)
	p := s.place(l, key)
	p.reset()
	defer p.reset() // what was charged meanwhile may be forgotten, or not
	s.returns.forget(l, key)
	return s.next.Reset(ctx, l.Limiter, key)
}

// reset ends the leases of all plans.
func (p *place) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := p.entries[p.hash]; e != nil; e = e.next {
		if e.limiter.family == p.limiter.family && e.key == p.key {
			e.resets++
			e.refusal, e.left, e.charged, e.until, e.room = refusal{}, 0, 0, instant{}, 0
		}
	}
}
