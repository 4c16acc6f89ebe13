package keeper

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// A session lasts from the first acquire until all names are closed. The keeper's lock
// guards it, and all that it has.
type session struct {
	*Keeper

	pools  map[string]*pool // that are open
	books  map[string]*book
	shards []shard
	recent []*entry            // changed or refused within the last beats
	drops  map[*entry][]string // dead incarnations whose fields were seen
	seen   map[string]bool     // other incarnations whose fields were seen since the last beat

	epoch   *epoch
	doubt   chan struct{} // closed when everything is stated again
	next    string        // the next incarnation, should this one be lost
	former  []string      // earlier incarnations from which not all entries have been moved
	moved   []string      // those from which all have
	unmoved int           // entries that were not stated since the epoch began
	version int           // how often everything was to be stated again
	renew   bool          // another incarnation is needed
	servers string        // Transport.Servers after the last beat

	tombstone *Beat // of the session, after its end

	beating  *pendingBeat  // the beat in flight; may be nil
	ackedAt  time.Time     // when the last beat that was answered was sent
	gap      time.Duration // the longest between two such, since the last compare
	clock    int64
	dead     map[string]bool // as of that beat
	failedAt time.Time       // when the last one failed
	failure  error

	running bool
	ended   bool
	stop    chan struct{}
	calls   int           // of the transport that are in flight
	quiet   chan struct{} // closed after the end, when there are none
}

// An epoch is the time for which an incarnation lives.
type epoch struct {
	id         string
	registered bool
	lost       chan struct{} // shared with the next epoch, unless this one was lost
}

// A book has the entries of one name.
type book struct {
	session *session
	name    string
	entries map[string]*entry
}

// A closing waits until left entries are stated as they are, or the session has ended.
type closing struct {
	session *session
	left    int
	done    chan struct{}
	err     error // why the end of the session failed, set before done is closed
}

func (c *closing) wait(ctx context.Context) error {
	select {
	case <-c.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.err != nil {
		return c.session.bury(ctx)
	}
	return nil
}

// A shard is the entries that fail together.
type shard struct {
	all      []*entry // in no order
	swept    int      // how far the sweep has come
	out      []*entry // to be stated
	needless int      // of these, about how many need not be stated any more
	failed   []*entry // could not be stated, and wait for a retry
	flushing bool
	stalled  bool          // nothing is sent until a retry
	retrying bool          // a retry is due
	pause    time.Duration // before that retry; 0 after a beat
}

// session returns the current session, or begins one, and starts its heartbeat.
func (k *Keeper) session() *session {
	s := k.current
	if s == nil {
		s = &session{
			Keeper: k,
			pools:  make(map[string]*pool),
			books:  make(map[string]*book),
			shards: make([]shard, k.config.Shards),
			drops:  make(map[*entry][]string),
			seen:   make(map[string]bool),
			epoch:  &epoch{id: k.newID(), lost: make(chan struct{})},
			doubt:  make(chan struct{}),
			next:   k.newID(),
			stop:   make(chan struct{}),
			quiet:  make(chan struct{}),
		}
		k.current = s
	}
	if !s.running {
		s.running = true
		go s.beatUntilEnd()
	}
	return s
}

func (s *session) pool(name string) *pool {
	p := s.pools[name]
	if p == nil {
		p = &pool{}
		s.pools[name] = p
	}
	return p
}

func (s *session) find(name, key string) *entry {
	if b := s.books[name]; b != nil {
		return b.entries[key]
	}
	return nil
}

func (s *session) entry(name, key string) *entry {
	b := s.books[name]
	if b == nil {
		b = &book{s, name, make(map[string]*entry)}
		s.books[name] = b
	}
	e := b.entries[key]
	if e == nil {
		shard := s.transport.Shard(key)
		all := &s.shards[shard].all
		e = &entry{book: b, key: key, shard: int32(shard), place: int32(len(*all)), known: true, moved: true}
		b.entries[key] = e
		*all = append(*all, e)
	}
	return e
}

// forget removes an entry that is not needed any more.
func (s *session) forget(e *entry) {
	if e.held > 0 || e.busy || e.queued || e.failed || e.recent || e.kept || e.wanted() || s.ended {
		return
	}
	all := &s.shards[e.shard].all
	last := len(*all) - 1
	moved := (*all)[last]
	(*all)[e.place], moved.place = moved, e.place
	(*all)[last] = nil
	*all = (*all)[:last]
	delete(e.book.entries, e.key)
}

// beatUntilEnd sends heartbeats until the session ends or the transport is closed.
func (s *session) beatUntilEnd() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-timer.C:
		}
		start := time.Now()
		s.mu.Lock()
		if s.ended {
			s.mu.Unlock()
			return
		}
		s.enter()
		f := s.startBeat()
		s.mu.Unlock()
		<-f.done
		servers := ""
		if f.err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), s.beatTimeout())
			servers = s.transport.Servers(ctx)
			cancel()
		}
		s.mu.Lock()
		s.leave()
		if errors.Is(f.err, ErrGone) {
			s.running = false
			s.mu.Unlock()
			return
		}
		pause := s.afterBeat(f.err == nil, servers)
		s.mu.Unlock()
		timer.Reset(time.Until(start.Add(pause)))
	}
}

// A pendingBeat is a beat in flight.
type pendingBeat struct {
	done chan struct{}
	err  error
}

// startBeat sends a beat, unless one is in flight, and returns it.
func (s *session) startBeat() *pendingBeat {
	if s.beating == nil {
		s.beating = &pendingBeat{done: make(chan struct{})}
		s.enter()
		go s.beat(s.beating)
	}
	return s.beating
}

// beatTimeout is how long a beat may take: no longer than until the next one, so that
// several fit into the TTL.
func (s *session) beatTimeout() time.Duration {
	return min(max(s.config.Timeout, s.config.retryPause()), s.config.beatPause())
}

func (s *session) beat(f *pendingBeat) {
	s.mu.Lock()
	b := &Beat{TTL: s.config.TTL, Step: s.config.maxClockStep(), New: s.next, Bury: slices.Clone(s.moved),
		Seen: slices.Collect(maps.Keys(s.seen))}
	clear(s.seen)
	switch {
	case !s.epoch.registered:
		b.New, b.Replaces = s.epoch.id, s.prefix()
	case !s.renew:
		b.ID = s.epoch.id
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.beatTimeout())
	defer cancel()
	sent := time.Now()
	f.err = s.transport.Beat(ctx, b)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beating = nil
	s.leave()
	if f.err == nil && !s.ended {
		s.beatAnswered(b, sent)
	} else {
		s.failedAt, s.failure = time.Now(), f.err
	}
	close(f.done)
}

// beatAnswered applies the reply of a beat.
func (s *session) beatAnswered(b *Beat, sent time.Time) {
	s.failure = nil
	if b.State != Spent {
		s.gap, s.ackedAt = max(s.gap, sent.Sub(s.ackedAt)), sent
	}
	if b.Clock < s.clock {
		s.renew = s.renew || s.gap > s.config.TTL // see compare
	}
	s.clock = b.Clock
	s.moved = s.moved[len(b.Bury):]
	s.dead = make(map[string]bool, len(b.Dead))
	for _, id := range b.Dead {
		s.dead[id] = true
	}
	switch b.State {
	case Live:
	case Spent:
		if s.next = s.newID(); !s.epoch.registered {
			s.epoch.id = s.newID()
		}
	case None:
		if s.epoch.registered {
			s.newEpoch(b.New, false)
			break
		}
		s.epoch.registered = true
		s.next = s.newID()
		s.stateAll()
	case Lost, Absent:
		s.newEpoch(b.New, b.State == Lost)
	}
	for i := range s.shards {
		s.shards[i].pause = 0
		s.retry(&s.shards[i])
	}
}

// newEpoch moves everything to another incarnation.
func (s *session) newEpoch(id string, lost bool) {
	old := s.epoch
	s.former = append(s.former, old.id)
	s.epoch = &epoch{id: id, registered: true, lost: old.lost}
	s.next, s.renew = s.newID(), false
	s.unmoved = 0
	var held int64
	for e := range s.entries() {
		e.moved, e.unclean = false, 0 // no op of the new incarnation is on its way
		s.unmoved++
		held += e.held
	}
	if lost {
		s.epoch.lost = make(chan struct{})
		close(old.lost)
		if s.config.Lost != nil {
			go s.config.Lost(held)
		}
	}
	s.stateAll()
}

func (s *session) entries() func(yield func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for i := range s.shards {
			for _, e := range s.shards[i].all {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// stateAll causes everything to be stated again.
func (s *session) stateAll() {
	s.version++
	close(s.doubt)
	s.doubt = make(chan struct{})
	n := 0
	for e := range s.entries() {
		e.known = false
		s.changed(e)
		n++
	}
	if s.config.Restated != nil && n > 0 {
		go s.config.Restated(n)
	}
}

// afterBeat does what is due after each beat, and returns the pause until the next.
func (s *session) afterBeat(beaten bool, servers string) time.Duration {
	if beaten {
		s.compare(servers)
		s.restateRecent()
		s.sweepSome()
		if s.unmoved == 0 {
			s.moved = append(s.moved, s.former...)
			s.former = nil
		}
	}
	if !beaten || s.renew {
		return s.config.retryPause()
	}
	return s.config.beatPause()
}

// compare causes everything to be stated again if the servers or their histories have
// changed. If this process was silent for so long that it may have been buried, which
// the servers may have lost, it needs another incarnation: others may still drop the
// fields of the old one.
func (s *session) compare(servers string) {
	if servers == "" {
		return
	}
	if s.servers != "" && servers != s.servers {
		s.renew = s.renew || s.gap > s.config.TTL
		s.stateAll()
	}
	s.servers, s.gap = servers, 0
}

// restateRecent states again what has changed within the last two beats: a server may
// have acknowledged it, and lost it.
func (s *session) restateRecent() {
	stay := s.recent[:0]
	for _, e := range s.recent {
		switch {
		case e.fresh > 0:
			e.fresh--
			e.dirty = true
			stay = append(stay, e)
		case e.kept && s.unclean(e), e.marked && s.since() < e.waits:
			stay = append(stay, e)
			continue
		default:
			e.recent = false
			e.dirty = e.dirty || e.kept || e.marked // then its zero, or its mark, is not needed any more
		}
		s.changed(e)
	}
	clear(s.recent[len(stay):])
	s.recent = stay
}

// sweepSome states a part of each shard again.
func (s *session) sweepSome() {
	const parts = sweepTTLs * beatsInTTL
	for i := range s.shards {
		sh := &s.shards[i]
		for range (len(sh.all) + parts - 1) / parts {
			if sh.swept >= len(sh.all) {
				sh.swept = 0
			}
			e := sh.all[sh.swept]
			sh.swept++
			e.dirty, e.listAll = true, true
			s.changed(e)
		}
	}
}

// ensureBeat makes sure that a recent beat was answered, and sends one if necessary. The
// lock is released meanwhile. Just after a failed beat it returns its error again.
func (s *session) ensureBeat(ctx context.Context, within time.Duration) error {
	if s.ended {
		return ErrClosed
	}
	if s.beaten(within) {
		return nil
	}
	if s.failure != nil && time.Since(s.failedAt) < s.config.askPause() {
		return s.failure
	}
	f := s.startBeat()
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) beaten(within time.Duration) bool {
	return s.epoch.registered && time.Since(s.ackedAt) <= within
}

// ensureRegistered makes sure that the incarnation is registered: otherwise it would
// never be found dead. The lock is released meanwhile.
func (s *session) ensureRegistered(ctx context.Context) error {
	for !s.epoch.registered {
		if err := s.ensureBeat(ctx, 0); err != nil {
			return err
		}
		if s.ended {
			return ErrClosed
		}
	}
	return nil
}

// deadAmong returns the incarnations that are dead, if that is known as of a recent beat.
func (s *session) deadAmong(fields []Field) (ids []string) {
	if len(s.dead) == 0 || time.Since(s.ackedAt) > s.config.deadTime() {
		return nil
	}
	for _, f := range fields {
		if s.dead[f.ID] {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// end ends the session, which is then to be buried. It is locked.
func (s *session) end() {
	s.ended = true
	close(s.stop)
	if s.calls == 0 {
		close(s.quiet)
	}
	s.current = nil
	for _, e := range slices.Collect(s.entries()) {
		if !e.busy {
			fail(e.waiters, ErrClosed)
			e.waiters = nil
		}
	}
	s.tombstone = &Beat{TTL: s.config.TTL, Step: s.config.maxClockStep(), Bury: slices.Concat(s.moved, s.former, []string{s.epoch.id})}
}

// bury buries a session that has ended, and then removes what it has stated.
func (s *session) bury(ctx context.Context) error {
	err := s.sendTombstone(ctx)
	if err == nil {
		s.erase(ctx)
	}
	return err
}

// erase removes the fields of a session that is buried, as far as the server answers
// before ctx ends. Others do not count them, but would drop them only for want of room. An
// op that lands later leaves a field of the dead, which expires.
func (s *session) erase(ctx context.Context) {
	select {
	case <-s.quiet:
	case <-ctx.Done():
	}
	for i := range s.shards {
		s.mu.Lock()
		all := s.shards[i].all
		s.shards[i].all = nil
		s.mu.Unlock()
		for batch := range slices.Chunk(all, batchSize) {
			if ctx.Err() != nil || !s.eraseBatch(ctx, i, batch) {
				break
			}
		}
	}
}

// eraseBatch reports whether the server has answered.
func (s *session) eraseBatch(ctx context.Context, shard int, entries []*entry) (answered bool) {
	var ops []*Op
	s.mu.Lock()
	for _, e := range entries {
		if e.stated > 0 || e.kept || !e.known {
			s.seq++
			ops = append(ops, &Op{Name: e.book.name, Key: e.key, ID: s.epoch.id, Seq: s.seq, Drop: s.former})
		}
	}
	s.mu.Unlock()
	if len(ops) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	s.transport.Run(ctx, shard, ops)
	return slices.ContainsFunc(ops, func(op *Op) bool { return op.Err == nil })
}

// sendTombstone sends the tombstone of a session that has ended. That gives back what other
// names still have to state, so it ends their closings too. It is tried even if ctx has
// ended: without it, all slots stay taken for a TTL.
func (s *session) sendTombstone(ctx context.Context) error {
	least, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.beatTimeout())
	defer cancel()
	var err error
	for range 3 {
		in := ctx
		if in.Err() != nil {
			in = least
		}
		b := *s.tombstone // others may send it at the same time
		if err = s.transport.Beat(in, &b); err == nil || errors.Is(err, ErrGone) {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.entries() {
		for _, c := range e.closing {
			if c.left > 0 {
				c.left, c.err = 0, err
				close(c.done)
			}
		}
		e.closing = nil
	}
	return err
}

// noteOthers notes the other incarnations that have stated something. Each beat reports
// some of them: a server that has lost them would otherwise never find them dead.
func (s *session) noteOthers(fields []Field) {
	for _, f := range fields {
		if len(s.seen) == seenSize {
			return
		}
		if !s.dead[f.ID] && !slices.Contains(s.former, f.ID) {
			s.seen[f.ID] = true
		}
	}
}

// closing gives back everything of a name, and returns what to wait for.
func (s *session) closing(name string) *closing {
	c := &closing{session: s, done: make(chan struct{})}
	var all []*entry
	if b := s.books[name]; b != nil {
		all = slices.Collect(maps.Values(b.entries))
	}
	for _, e := range all {
		e.held = 0
		if e.wanted() || e.busy {
			c.left++
			e.closing = append(e.closing, c)
			s.changed(e)
		}
	}
	if c.left == 0 {
		close(c.done)
	}
	return c
}
