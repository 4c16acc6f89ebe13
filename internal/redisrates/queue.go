package redisrates

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

const (
	// maxInFlight is how many calls may be in flight to a server at once. With two, it computes one while the next is
	// on the wire.
	maxInFlight = 2

	// minShare is how many questions a call carries if as many wait, even if it is more than its share. A call itself
	// takes as long as four to eight questions.
	minShare = 8

	// maxWeight bounds the questions of a call, unless it has only one: the server answers nobody else meanwhile, for
	// about a millisecond. A bucket weighs 1.
	maxWeight = 256

	// maxPauses is how often a call waits for other goroutines, while more questions come.
	maxPauses = 4

	// maxWaiting bounds the questions that wait for a call.
	maxWaiting = 1 << 16
)

var (
	errAway = errors.New("it failed or was silent, and is not asked for a moment")
	errLate = errors.New("it did not answer in time")
	errBusy = errors.New("too many decisions wait for it")
)

// A question is what a server is asked about cells of one hash slot. It is the store's own, as it may outlive whoever
// asked.
type question struct {
	mode    step.Mode
	cells   []step.Cell
	hash    int // slot, or noSlot
	weight  int
	allowed bool
	err     error

	start, deadline time.Time
	callerDeadline  time.Time  // of the caller's context; zero: none
	done            chan error // err, or errLate: then it must not be read. It has room for both, each sent at most once
	alone           [1]*question
	room            [2]step.Cell

	// The lock of the server guards the rest.
	dropped       bool      // nobody waits for the answer
	extended      bool      // by the time for which this process was stopped
	before, after *question // in the list of the server; nil: it is not watched
}

// newQuestion returns a question about a copy of the cells.
func (s *Decider) newQuestion(mode step.Mode, cells []step.Cell) *question {
	q, ok := s.questions.Get().(*question)
	if !ok {
		q = &question{done: make(chan error, 2)}
	}
	q.mode, q.cells = mode, append(q.room[:0], cells...)
	for i := range cells {
		q.weight += cells[i].Policy.Attachment.(*policy).weight
	}
	return q
}

// free takes back a question that is no longer used.
func (s *Decider) free(q *question) {
	*q = question{done: q.done}
	s.questions.Put(q)
}

// A server is one of the servers that have the state: what waits for it, and whether it answers. One that is slow or
// away delays only its own keys. The zero value is ready to use.
type server struct {
	breaker   breaker
	elsewhere elsewhere

	mu       sync.Mutex
	inFlight int // calls
	asked    int // questions of these calls
	waiting  []*question

	// The questions that wait or are in flight, in the order of their deadlines, and the alarm for the first. A timer for
	// each would take 8 % of a client's processor time. The list is a ring, in which this question is none.
	watched question
	alarm   *time.Timer
}

// submit asks a server, and waits for the answer until the Timeout, or until the context ends. After an error the
// question must not be used again, as it may still be in flight. Somebody who is alone makes the call, which does not
// end with the context.
func (s *Decider) submit(ctx context.Context, to *server, q *question) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.start = time.Now()
	s.pauses.watch(q.start)
	timeout := s.timeout
	if d, ok := ctx.Deadline(); ok {
		q.callerDeadline = d
		timeout = min(timeout, d.Sub(q.start))
	}
	if d, ok := ctxmark.DecisionEnd(ctx); ok {
		timeout = min(timeout, d.Sub(q.start))
	}
	if timeout <= 0 {
		return errLate
	}
	q.deadline = q.start.Add(timeout)
	probe, ok := to.breaker.admit(q.start)
	if !ok {
		return errAway
	}
	q.alone[0] = q
	if probe {
		go s.probe(to, q.alone[:])
		return s.await(ctx, to, q, false)
	}
	to.mu.Lock()
	if to.inFlight == maxInFlight || len(to.waiting) > 0 {
		if len(to.waiting) >= maxWaiting {
			to.mu.Unlock()
			return errBusy
		}
		to.waiting = append(to.waiting, q)
		watched := s.watch(to, q)
		to.mu.Unlock()
		return s.await(ctx, to, q, watched)
	}
	to.inFlight++
	to.asked++
	to.mu.Unlock()
	// A call must not end with a caller that cannot wait for it, or the server would seem not to answer. A tenth of the
	// Timeout is what a decision may have spent before its call.
	if timeout < s.timeout*9/10 {
		go s.drain(to, q.alone[:])
		return s.await(ctx, to, q, false)
	}
	defer s.sendWaiting(to) // also if an observer panics
	s.call(to, q.alone[:], q.start, q.deadline)
	return <-q.done
}

// await waits for a question that another goroutine sends.
func (s *Decider) await(ctx context.Context, to *server, q *question, watched bool) error {
	done := ctx.Done()
	if watched && done == nil { // a select takes longer
		return <-q.done
	}
	var timer *time.Timer
	var alarm <-chan time.Time
	if !watched {
		to.mu.Lock() // the call that it is in may extend it
		timer = time.NewTimer(time.Until(q.deadline))
		to.mu.Unlock()
		defer timer.Stop()
		alarm = timer.C
	}
	for {
		err := errLate
		select {
		case err := <-q.done:
			return err
		case <-alarm:
		case <-done:
			err = ctx.Err()
		}
		to.mu.Lock()
		if errors.Is(err, errLate) && s.extend(to, q, time.Now()) {
			timer.Reset(time.Until(q.deadline))
			to.mu.Unlock()
			continue
		}
		q.unwatch()
		q.dropped = true
		to.mu.Unlock()
		return err
	}
}

// sendWaiting sends the questions that wait by now, in a goroutine, so that the caller has its answer before it works for
// others.
func (s *Decider) sendWaiting(to *server) {
	if batch := to.next(1); len(batch) > 0 {
		go s.drain(to, batch)
	}
}

// drain sends batches for as long as questions wait.
func (s *Decider) drain(to *server, batch []*question) {
	for len(batch) > 0 {
		now := time.Now()
		s.call(to, batch, now, now.Add(s.timeout)) // the questions keep their own deadlines
		to.gather(len(batch))
		batch = to.next(len(batch))
	}
}

// probe asks a server that was away. If it answers, it is used again as soon as it runs all commands of the scripts:
// the question may be one that a server refuses which cannot write.
func (s *Decider) probe(to *server, batch []*question) {
	defer to.breaker.release()
	name := string(s.names.AppendTag(nil, batch[0].cells[0].Key.Reveal())) + ":probe" // of the same master
	now := time.Now()
	if !s.call(to, batch, now, now.Add(s.timeout)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	fault := serverFailure(tryCommands(ctx, s.client, name)) // the hash slot may be elsewhere
	if to.breaker.tried(fault) {
		s.changed(nil)
	}
}

// call asks questions, and gives each its answer or error, by the deadline. If there was no answer while this process
// itself was stopped, it charges once more: that may charge twice, and less is admitted. What gives units back, or
// reports them, is never sent again, as it would make room that is not there. It reports whether the server works.
func (s *Decider) call(to *server, batch []*question, start, deadline time.Time) (works bool) {
	sent := start
	answered := to.breaker.answers.Load()
	err, failure := s.send(deadline, batch)
	silent := outOfTime(failure) && s.pauses.since(start) > 0
	if silent {
		now := time.Now()
		if again, deadline := s.sentAgain(to, batch, now); len(again) > 0 {
			s.pauses.watch(now)
			silent = false
			sent = now
			answered = to.breaker.answers.Load()
			err, failure = s.send(deadline, again)
		}
	}
	switch {
	case silent: // which says nothing of the server
	case failure == nil:
		works = true
		to.breaker.answered()
	case to.breaker.failed(sent, answered, failure, maxSilence*s.timeout):
		s.changed(failure)
	}
	if err != nil || to.elsewhere.noted.Load() {
		s.noteSlots(to, batch)
	}
	s.called(store.Call{Questions: len(batch), Took: time.Since(start), Err: err})
	to.mu.Lock()
	for _, q := range batch {
		q.unwatch()
	}
	to.mu.Unlock()
	for _, q := range batch {
		q.done <- q.err
	}
	return works
}

// noteSlots notes which hash slots a server serves, as far as it has said.
func (s *Decider) noteSlots(to *server, batch []*question) {
	now := time.Now()
	for _, q := range batch {
		is, passing := aboutSlot(q.err)
		switch {
		case is:
			passing = passing || s.servers.cluster != nil // whose client has followed it
			if q.hash != noSlot && to.elsewhere.failed(q.hash, q.err, passing, now) {
				s.changed(q.err)
			}
			q.err = slotError{q.err, q.deadline}
		case q.err == nil && to.elsewhere.answered(q.hash, now):
			s.changed(nil)
		}
	}
}

// sentAgain returns the questions of a call that are to be sent again after this process was stopped, and until when
// the last of them waits.
func (s *Decider) sentAgain(to *server, batch []*question, now time.Time) (again []*question, deadline time.Time) {
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, q := range batch {
		if q.mode == step.Settle || q.dropped {
			continue
		}
		if q.extended && q.deadline.After(now) || s.extend(to, q, now) {
			again = append(again, q)
			if q.deadline.After(deadline) {
				deadline = q.deadline
			}
		}
	}
	return again, deadline
}

// extend gives a question the time for which this process was stopped since it was asked, once, and no more than its
// caller has. It reports whether that is left. The server is locked.
func (s *Decider) extend(to *server, q *question, now time.Time) bool {
	deadline := q.deadline.Add(s.pauses.since(q.start))
	if !q.callerDeadline.IsZero() && q.callerDeadline.Before(deadline) {
		deadline = q.callerDeadline
	}
	if q.extended || !deadline.After(now) || !deadline.After(q.deadline) {
		return false
	}
	watched := q.after != nil
	q.unwatch()
	q.extended = true
	q.deadline = deadline
	if watched {
		to.insert(q)
	}
	return true
}

// gather lets callers that were just answered ask again, so that the next call carries more, of which the server has
// less to do. It goes on while they come, and fewer wait than the other call in flight keeps the server at work with.
func (to *server) gather(done int) {
	most := 0
	for range maxPauses {
		runtime.Gosched()
		to.mu.Lock()
		n, asked := len(to.waiting), to.asked-done
		to.mu.Unlock()
		if n <= most || n >= asked {
			return
		}
		most = n
	}
}

// next takes the questions of the next call out of the queue, after a call of so many. If there are none, the caller's
// call is no longer in flight. It leaves half of all to another call that is in flight: a call that takes all that wait is
// followed by small ones until it is answered, and they by a large one again.
func (to *server) next(done int) (batch []*question) {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.asked -= done
	share, weight := maxWaiting, 0
	if to.inFlight > 1 {
		share = max((to.asked+len(to.waiting)+1)/2, minShare)
	}
	for len(to.waiting) > 0 && len(batch) < share {
		q := to.waiting[0]
		if weight += q.weight; len(batch) > 0 && weight > maxWeight {
			break
		}
		if !q.dropped {
			batch = append(batch, q)
		}
		to.waiting[0] = nil
		to.waiting = to.waiting[1:]
	}
	if len(to.waiting) == 0 {
		to.waiting = nil
	}
	if len(batch) == 0 {
		to.inFlight--
	}
	to.asked += len(batch)
	return batch
}

// watch has the caller of a question woken when it is late, unless it is so much earlier than the others that the
// caller has to do that.
func (s *Decider) watch(to *server, q *question) bool {
	ring := &to.watched
	if ring.after == nil {
		ring.before = ring
		ring.after = ring
	}
	if ring.before != ring && ring.before.deadline.Sub(q.deadline) > s.timeout/100 {
		return false
	}
	to.insert(q)
	if ring.after != q {
		return true
	}
	if to.alarm == nil {
		to.alarm = time.AfterFunc(time.Until(q.deadline), func() { s.ring(to) })
	} else {
		to.alarm.Reset(time.Until(q.deadline))
	}
	return true
}

// insert puts a question into the list, behind those that are due before: nearly always, that is all.
func (to *server) insert(q *question) {
	before := to.watched.before
	for before != &to.watched && before.deadline.After(q.deadline) {
		before = before.before
	}
	q.before = before
	q.after = before.after
	q.before.after = q
	q.after.before = q
}

// unwatch takes a question out of the list, if it is there. The alarm stays: it rings once for nobody.
func (q *question) unwatch() {
	if q.after != nil {
		q.before.after = q.after
		q.after.before = q.before
		q.before = nil
		q.after = nil
	}
}

// ring wakes those that are late.
func (s *Decider) ring(to *server) {
	to.mu.Lock()
	defer to.mu.Unlock()
	now := time.Now()
	first := to.watched.after
	for first != &to.watched && !first.deadline.After(now) {
		if !s.extend(to, first, now) {
			first.unwatch()
			first.dropped = true
			first.done <- errLate
		}
		first = to.watched.after
	}
	if first != &to.watched {
		to.alarm.Reset(time.Until(first.deadline))
	}
}
