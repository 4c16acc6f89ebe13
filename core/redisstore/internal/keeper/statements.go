package keeper

import (
	"context"
	"errors"
	"slices"
	"time"
)

// changed causes an entry to be stated, if that is necessary.
func (s *session) changed(e *entry) {
	if e.busy || e.queued || e.failed || s.ended {
		return // it is looked at again when that is over
	}
	if !e.wanted() {
		e.closed()
		s.forget(e)
		return
	}
	if !s.epoch.registered {
		return // the registration states everything
	}
	sh := &s.shards[e.shard]
	e.queued = true
	sh.out = append(sh.out, e)
	s.startFlush(sh)
}

// startFlush starts to send what is to be stated.
func (s *session) startFlush(sh *shard) {
	if len(sh.out) > 0 && !sh.flushing && !sh.stalled && s.epoch.registered && !s.ended {
		sh.flushing = true
		go s.flush(sh)
	}
}

// flush states what is in a shard's out, batch by batch. If a whole batch fails, the rest
// waits for the next beat.
func (s *session) flush(sh *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended && !sh.stalled {
		batch := s.batch(sh)
		if len(batch) == 0 {
			break
		}
		ops := make([]*Op, len(batch))
		for i, r := range batch {
			ops[i] = r.op
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		s.transport.Run(ctx, int(batch[0].entry.shard), ops)
		cancel()
		s.mu.Lock()
		sh.stalled = true
		for _, r := range batch {
			sh.stalled = sh.stalled && r.op.Err != nil
			r.entry.waiters = append(s.settle(r), r.entry.waiters...)
			if s.idle(r.entry) {
				go s.rounds(r.entry)
			}
		}
	}
	sh.flushing = false
}

// batch takes out entries that are to be stated, and makes them busy.
func (s *session) batch(sh *shard) (batch []*run) {
	for len(batch) < batchSize && len(sh.out) > 0 {
		e := sh.out[0]
		sh.out[0] = nil
		sh.out = sh.out[1:]
		e.queued = false
		if e.busy {
			continue
		}
		if r := s.prepare(e); r != nil {
			e.busy = true
			batch = append(batch, r)
		} else {
			s.forget(e)
		}
	}
	if len(sh.out) == 0 {
		sh.out = nil
	}
	return batch
}

// round runs an op of an entry that the caller has made busy. If there are waiters after
// that, another goroutine serves them.
func (s *session) round(ctx context.Context, e *entry) {
	s.mu.Lock()
	s.once(ctx, e)
	more := s.idle(e)
	s.mu.Unlock()
	if more {
		go s.rounds(e) //nolint:gosec // the waiters have contexts of their own
	}
}

// rounds runs ops of a busy entry until there are no waiters.
func (s *session) rounds(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for more := true; more; more = s.idle(e) {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		s.once(ctx, e)
		cancel()
	}
}

// idle makes an entry idle, unless there are waiters.
func (s *session) idle(e *entry) (more bool) {
	if s.ended {
		fail(e.waiters, ErrClosed)
		e.waiters = nil
	}
	if len(e.waiters) > 0 {
		return true
	}
	e.busy = false
	s.changed(e)
	return false
}

// once runs an op, and again if it is refused and some of the other holders turn out to
// be dead.
func (s *session) once(ctx context.Context, e *entry) {
	// After a TTL of silence this process may have been declared dead.
	if err := s.ensureBeat(ctx, s.config.TTL); err != nil {
		fail(e.waiters, err)
		e.waiters = nil
		return
	}
	for try := 0; ; try++ {
		r := s.prepare(e)
		if r == nil {
			return
		}
		s.mu.Unlock()
		s.transport.Run(ctx, int(e.shard), []*Op{r.op})
		s.mu.Lock()
		short := s.settle(r)
		if len(short) == 0 {
			return
		}
		if try == 2 || !s.anyDead(ctx, r) {
			s.refuse(e, short)
			return
		}
		e.waiters = append(short, e.waiters...)
	}
}

// anyDead reports whether some of the incarnations that hold slots are dead, and notes
// which.
func (s *session) anyDead(ctx context.Context, r *run) bool {
	fields := r.op.Reply.Fields
	if len(fields) == 0 {
		return false
	}
	ids := s.deadAmong(fields)
	if len(ids) == 0 && time.Since(s.ackedAt) > deadFor && s.ensureBeat(ctx, deadFor) == nil {
		ids = s.deadAmong(fields)
	}
	if len(ids) > 0 && !s.ended {
		s.drops[r.entry] = ids
	}
	return len(ids) > 0
}

// refuse refuses the waiters, and caches the refusal.
func (s *session) refuse(e *entry, ws []*waiter) {
	e.refused = s.since() + refusedFor
	s.remember(e, 0)
	for _, w := range ws {
		w.held = max(e.held+e.others, w.limit) // some may have been released since
		close(w.done)
	}
}

// remember keeps an entry, and has it stated again with that many of the next beats.
func (s *session) remember(e *entry, fresh uint8) {
	e.fresh = max(e.fresh, fresh)
	if !e.recent && !s.ended {
		e.recent = true
		s.recent = append(s.recent, e)
	}
}

// A run is an op in flight.
type run struct {
	entry   *entry
	op      *Op
	batch   []*waiter // that it serves
	version int
}

// prepare makes the next op of an entry. It is nil if there is nothing to state or to
// acquire.
func (s *session) prepare(e *entry) *run {
	batch := e.next()
	if len(batch) == 0 && !e.wanted() {
		return nil
	}
	sh := &s.shards[e.shard]
	op := &Op{
		Name: e.book.name, Key: e.key, ID: s.epoch.id, Seq: e.seq,
		Held: e.held, Want: int64(len(batch)),
		Keep:    sh.unclean > 0 && s.since()-sh.unclean < s.config.sweepTime(),
		ListAll: e.listAll,
		Drop:    slices.Concat(s.former, s.stillDead(e)),
	}
	if op.Want > 0 {
		op.Limit = batch[0].limit
	}
	// What the server has already is stated under the old number, which writes nothing.
	if op.Want > 0 || !e.known || e.held != e.stated || len(op.Drop) > 0 || e.kept && !op.Keep {
		s.seq++
		op.Seq = s.seq
	}
	e.dirty, e.listAll = false, false
	return &run{e, op, batch, s.version}
}

// stillDead returns the incarnations in drops that are still known to be dead.
func (s *session) stillDead(e *entry) (ids []string) {
	seen := s.drops[e]
	if len(seen) == 0 {
		return nil
	}
	fields := make([]Field, len(seen))
	for i, id := range seen {
		fields[i].ID = id
	}
	if ids = s.deadAmong(fields); len(ids) == 0 {
		delete(s.drops, e)
	}
	return ids
}

// settle applies the answer to an op. It returns the waiters for whom there was no room.
func (s *session) settle(r *run) (short []*waiter) {
	e, op := r.entry, r.op
	if s.ended {
		fail(r.batch, ErrClosed)
		return nil
	}
	if op.Err == nil && op.Reply.Outcome == Stale {
		op.Err = errStale
	}
	if op.Err != nil {
		s.failedOp(r)
		return nil
	}
	if op.ID != s.epoch.id { // it no longer counts, and the new incarnation repeats it
		return r.batch
	}
	lost := r.version == s.version && e.known && !e.asFound(op.Reply.Found)
	s.acknowledged(r)
	granted := min(int(op.Reply.Granted), len(r.batch))
	for _, w := range r.batch[:granted] {
		switch {
		case w.gone:
		case w.pool.closed:
			fail([]*waiter{w}, ErrClosed)
		default:
			e.held++
			w.granted, w.held, w.lost = true, e.held+e.others, s.epoch.lost
			close(w.done)
		}
	}
	if e.held == e.stated {
		e.closed()
	}
	if lost {
		s.stateAll()
	}
	return r.batch[granted:]
}

// failedOp applies the failure of an op: it may have been executed, or may yet be.
func (s *session) failedOp(r *run) {
	e, sh := r.entry, &s.shards[r.entry.shard]
	if !errors.Is(r.op.Err, ErrUnsent) {
		e.known = false
		sh.unclean = s.since()
	}
	e.dirty, e.listAll = true, r.op.ListAll
	if !e.failed {
		e.failed = true
		sh.failed = append(sh.failed, e)
	}
	fail(r.batch, r.op.Err)
}

// acknowledged records what the server has now.
func (s *session) acknowledged(r *run) {
	e, op := r.entry, r.op
	stated := op.Held + op.Reply.Granted
	if stated != e.stated || !e.known {
		s.remember(e, 2)
	}
	e.stated, e.seq = stated, op.Seq
	e.known = r.version == s.version
	e.kept = stated == 0 && op.Keep
	if !e.moved {
		e.moved = true
		s.unmoved--
	}
	delete(s.drops, e)
	if op.Want == 0 && !op.ListAll {
		return
	}
	if op.ListAll || op.Reply.Granted < op.Want {
		s.noteOthers(op.Reply.Fields)
	}
	e.others = op.Reply.Others
	ids := s.deadAmong(op.Reply.Fields)
	for _, f := range op.Reply.Fields {
		if slices.Contains(ids, f.ID) {
			e.others -= f.Count
		}
	}
	if len(ids) > 0 {
		s.drops[e] = ids
	}
}
