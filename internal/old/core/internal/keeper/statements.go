package keeper

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

// changed causes an entry to be stated, if that is necessary.
func (s *session) changed(e *entry) {
	switch {
	case e.busy, e.failed, s.ended:
		return // it is looked at again when that is over
	case e.queued:
		if !e.wanted() {
			s.tidy(&s.shards[e.shard])
		}
		return
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

// tidy takes out what need not be stated any more, once that may be half of a shard's out. While the server is away,
// keys come and go, and are not to stay.
func (s *session) tidy(sh *shard) {
	if sh.needless++; sh.needless <= len(sh.out)/2 {
		return
	}
	sh.needless = 0
	var needless []*entry
	sh.out = slices.DeleteFunc(sh.out, func(e *entry) bool {
		if e.busy || e.wanted() {
			return false
		}
		needless = append(needless, e)
		return true
	})
	for _, e := range needless {
		e.queued = false
		e.closed()
		s.forget(e)
	}
}

// startFlush starts to send what is to be stated.
func (s *session) startFlush(sh *shard) {
	if len(sh.out) > 0 && !sh.flushing && !sh.stalled && s.epoch.registered && !s.ended {
		sh.flushing = true
		go s.flush(sh)
	}
}

// flush states what is in a shard's out, batch by batch. If a whole batch fails, the rest
// waits for a retry.
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
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		s.run(ctx, batch[0].entry.shard, ops)
		cancel()
		sh.stalled = true
		for _, r := range batch {
			sh.stalled = sh.stalled && r.op.Err != nil
			r.entry.waiters = append(s.answered(r), r.entry.waiters...)
			if s.idle(r.entry) {
				go s.rounds(r.entry)
			}
		}
	}
	sh.flushing = false
}

// run runs ops. The lock is released meanwhile.
func (s *session) run(ctx context.Context, shard int32, ops []*Op) {
	s.enter()
	defer s.leave()
	s.mu.Unlock()
	defer s.mu.Lock()
	s.transport.Run(ctx, int(shard), ops)
}

// enter counts a call of the transport, until leave.
func (s *session) enter() { s.calls++ }

func (s *session) leave() {
	if s.calls--; s.calls == 0 && s.ended {
		close(s.quiet)
	}
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
		sh.out, sh.needless = nil, 0
	}
	return batch
}

// lead runs ops of an entry that a waiter has made busy, the first of them under its context, until there are no
// waiters.
func (s *session) lead(ctx context.Context, e *entry, w *waiter) {
	s.mu.Lock()
	s.once(ctx, e)
	more := s.idle(e)
	s.led(w, -1)
	s.mu.Unlock()
	if more {
		s.rounds(e)
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

// once runs an op. If it is refused, it runs again if some of the other holders turn out
// to be dead, or if everything was to be stated again meanwhile: then the answer is that
// of a server that has lost something, or was given to another incarnation. For waiters that
// shed, it first asks how many slots the key holds, as what the dead hold must not count.
func (s *session) once(ctx context.Context, e *entry) {
	// After a TTL of silence this process may have been declared dead.
	err := s.ensureBeat(ctx, s.config.TTL)
	if s.ended {
		err = ErrClosed
	}
	if err != nil {
		fail(e.waiters, err)
		e.waiters = nil
		return
	}
	for deaths := 0; ; {
		r := s.prepare(e)
		if r == nil {
			return
		}
		s.run(ctx, e.shard, []*Op{r.op})
		short := s.answered(r)
		if len(short) == 0 {
			return
		}
		dead := s.anyDead(ctx, r)
		switch {
		case s.ended:
			fail(short, ErrClosed)
			return
		case r.version != s.version:
		case dead && deaths < 2:
			deaths++
		case r.surveys() && r.op.Held+e.others > e.most():
			for _, w := range short {
				w.over = true
			}
		case short[0].sheds:
			keep(short)
			return
		default:
			s.refuse(r, short)
			return
		}
		e.waiters = append(short, e.waiters...)
	}
}

// surveys reports whether an op asks how many slots the key holds, for waiters that may have
// to give theirs up.
func (r *run) surveys() bool {
	return len(r.batch) > 0 && r.batch[0].sheds && !r.batch[0].over
}

// keep ends the wait of some waiters that keep their slots.
func keep(ws []*waiter) {
	for _, w := range ws {
		close(w.done)
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

// refuse refuses the waiters, and caches the refusal. It is as old as the question: when
// the server answered is not known.
func (s *session) refuse(r *run, ws []*waiter) {
	e := r.entry
	due := 0
	if r.op.Waits == WaitsShort || r.op.Waits == WaitsOn {
		due = r.op.Reply.Due
		e.turn, e.turnAt, e.due = r.made+refusedFor, uint32(min(e.stated, math.MaxUint32)), uint8(min(due, math.MaxUint8))
		e.turnFor = uint32(min(r.op.Limit, math.MaxUint32))
		if again := Again(due); again > 0 {
			e.turn = r.made + again*3/4 // they ask a little earlier than that
		}
	} else {
		e.refused = r.made + refusedFor
	}
	s.remember(e, 0)
	for _, w := range ws {
		// Some may have been released since, or be kept for others that wait.
		w.held, w.due = max(e.held+e.others, w.limit), due
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
	made    time.Duration
	version int
}

// prepare makes the next op of an entry. It is nil if there is nothing to state or to
// acquire.
func (s *session) prepare(e *entry) *run {
	batch := e.next()
	if len(batch) == 0 && !e.wanted() {
		return nil
	}
	op := &Op{
		Name: e.book.name, Key: e.key, ID: s.epoch.id, Seq: e.seq,
		Held: e.held, Want: int64(len(batch)),
		Keep:    s.unclean(e),
		ListAll: e.listAll,
		Waits:   s.waits(e, batch),
		Drop:    slices.Concat(s.former, s.stillDead(e)),
	}
	r := &run{e, op, batch, s.since(), s.version}
	switch {
	case len(batch) == 0:
	case r.surveys():
		op.Want, op.ListAll = 0, true
	case batch[0].sheds:
		op.Want, op.Limit = -op.Want, e.most()
	default:
		op.Limit = batch[0].limit
	}
	// What the server has already is stated under the old number, which writes nothing.
	forgets := (e.kept || e.marked) && !op.Keep && op.Waits == WaitsNot
	if op.Want != 0 || !e.known || e.held != e.stated || len(op.Drop) > 0 || forgets {
		s.seq++
		op.Seq = s.seq
	}
	e.dirty, e.listAll = false, false
	return r
}

// waits returns what an op says of callers that wait. Statements, and what is asked for callers that
// do not wait, change nothing for those who do.
func (s *session) waits(e *entry, batch []*waiter) Waits {
	waits := WaitsNot
	for _, w := range batch {
		switch {
		case w.callers > 1:
			waits = WaitsOn
		case w.callers > 0 && waits == WaitsNot:
			waits = WaitsShort
		}
	}
	if waits != WaitsNot {
		e.waits = s.since() + waitsFor
	} else if s.since() < e.waits {
		waits = WaitsStill
	}
	return waits
}

// unclean reports whether an earlier op of the entry may still be on its way: a zero is
// kept then, as its number keeps the op from being executed.
func (s *session) unclean(e *entry) bool {
	return e.unclean > 0 && s.since()-e.unclean < s.config.sweepTime()
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

// answered applies the answer to an op. It returns the waiters for whom there was no room.
func (s *session) answered(r *run) (short []*waiter) {
	e, op := r.entry, r.op
	if s.ended {
		e.known = false
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
	granted := min(int(max(op.Reply.Granted, -op.Reply.Granted)), len(r.batch))
	if granted < len(r.batch) {
		last := func(w *waiter) int { // who has left needs no slot
			if w.gone {
				return 1
			}
			return 0
		}
		slices.SortStableFunc(r.batch, func(v, w *waiter) int { return last(v) - last(w) })
	}
	for _, w := range r.batch[:granted] {
		switch {
		case w.gone:
		case w.pool.closed:
			fail([]*waiter{w}, ErrClosed)
		case w.sheds:
			e.giveUp(w)
		default:
			e.grant(w.shedAt)
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
		e.unclean = s.since()
	}
	e.dirty, e.listAll = true, r.op.ListAll
	if !e.failed {
		e.failed = true
		sh.failed = append(sh.failed, e)
	}
	s.retryLater(sh)
	for _, w := range r.batch {
		if r.op.Want < 0 && !errors.Is(r.op.Err, ErrUnsent) && !w.pool.closed {
			e.giveUp(w) // others may have the slot
		} else {
			fail([]*waiter{w}, r.op.Err)
		}
	}
}

// retryLater states again what has failed, after a pause that doubles with each retry
// until a beat is answered. While beats fail, the next that is answered retries.
func (s *session) retryLater(sh *shard) {
	if sh.retrying {
		return
	}
	sh.retrying = true
	longest := s.config.retryPause()
	sh.pause = min(max(2*sh.pause, s.config.askPause()), longest)
	time.AfterFunc(sh.pause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sh.retrying = false
		if s.failure == nil && s.running {
			s.retry(sh)
		}
	})
}

// retry states what has failed, and what was not sent because of that.
func (s *session) retry(sh *shard) {
	sh.stalled = false
	failed := sh.failed
	sh.failed = nil
	for _, e := range failed {
		e.failed = false
		s.changed(e)
	}
	s.startFlush(sh)
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
	e.marked = op.Reply.Marked
	e.kept = stated == 0 && (op.Keep || e.marked)
	if op.Waits == WaitsShort && op.Reply.Granted >= op.Want {
		e.waits = 0 // all that waited were granted slots
	}
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
	s.answers.note(e.book.name, e.key, e.others, s.since())
}
