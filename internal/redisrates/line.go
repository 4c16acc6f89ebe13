package redisrates

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

var (
	errAway  = errors.New("it failed or was silent, and is not asked for a moment")
	errLate  = errors.New("it did not answer in time")
	errCrowd = errors.New("too many decisions wait for it")
)

// A line sends questions to servers, in batches. How that is done, two functions know.
type line struct {
	run func(deadline time.Time, batch []*question) (callErr, serverFault error) // see script.run
	try func(deadline time.Time, key hidden.Text) error                          // see script.runProbe

	servers servers
	timeout time.Duration
	called  func(store.Call)
	changed func(reason error)
	pauses  pauses
	waiters sync.Pool // in a bubble of package synctest, channels must not come from outside
}

// A waiter is a question on its way, and who waits for its answer. It is the line's own, as it may outlive whoever
// asked.
//
//	alone       its caller makes the call, or a goroutine of it, if the caller cannot wait for that
//	queued      stands in the queue of its server, and in the list of those that may be late
//	in flight   is in a call, with others, and still in that list
//	answered    done has what has come of it, also if nobody reads that any more
//	late        done has errLate, or its caller has left by its own timer: it is abandoned, and never used again
type waiter struct {
	question
	weight int

	start, deadline time.Time
	callerDeadline  time.Time  // of the caller's context; zero: none
	done            chan error // err; or errLate: then a call may still write the question. It has room for both

	// Room for the batch, the questions and the cells of somebody who is alone, so that nothing is allocated for them.
	ownBatch     [1]*waiter
	ownQuestions [1]*question
	ownCells     [2]step.Cell

	// The lock of the server guards the rest.
	abandoned      bool    // nobody waits for the answer
	extended       bool    // by the time for which this process was stopped
	earlier, later *waiter // in the list of the server; nil: it is not watched
}

// newWaiter returns one for a question about a copy of the cells.
func (l *line) newWaiter(mode step.Mode, cells []step.Cell) *waiter {
	w, ok := l.waiters.Get().(*waiter)
	if !ok {
		w = &waiter{done: make(chan error, 2)}
	}
	w.mode = mode
	w.cells = append(w.ownCells[:0], cells...)
	for i := range cells {
		w.weight += cells[i].Policy.Attachment.(*scriptPolicy).weight
	}
	return w
}

// free takes back a waiter that is no longer used. Only who has read its answer may: till then a call may write it.
func (l *line) free(w *waiter) {
	*w = waiter{done: w.done}
	l.waiters.Put(w)
}

// questionsOf returns the questions of a batch, as the script knows no waiters.
func questionsOf(batch []*waiter) []*question {
	all := slices.Grow(batch[0].ownQuestions[:0], len(batch))
	for _, w := range batch {
		all = append(all, &w.question)
	}
	return all
}

// send asks the server of cells of one hash slot, and waits for the answer until the deadline that it returns, or until
// the context ends.
func (l *line) send(
	ctx context.Context, mode step.Mode, cells []step.Cell,
) (allowed bool, deadline time.Time, err error) {
	w := l.newWaiter(mode, cells)
	to, hashSlot := l.servers.of(&cells[0])
	w.hashSlot = hashSlot
	err = l.sendOrWait(ctx, to, w)
	// Without an answer it may be in flight, and is not used again. errOtherWindow is an answer, about some of the
	// cells.
	if err != nil && !errors.Is(err, errOtherWindow) {
		return false, deadline, err
	}
	copy(cells, w.cells)
	allowed = w.allowed
	deadline = w.deadline
	l.free(w)
	return allowed, deadline, err
}

// sendOrWait sends a question, or has it sent with others, and waits for the answer until the Timeout, or until the
// context ends. Somebody who is alone makes the call, which does not end with the context.
func (l *line) sendOrWait(ctx context.Context, to *server, w *waiter) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// All bounds of the time count from here, before anything is waited for.
	w.start = time.Now()
	l.pauses.watch(w.start)
	timeout := l.timeout
	if deadline, ok := ctx.Deadline(); ok {
		w.callerDeadline = deadline
		timeout = min(timeout, deadline.Sub(w.start))
	}
	if end, ok := ctxmark.DecisionEnd(ctx); ok {
		timeout = min(timeout, end.Sub(w.start))
	}
	if timeout <= 0 { // what is sent might be charged, though nobody can use the answer
		return errLate
	}
	w.deadline = w.start.Add(timeout)

	// A server that was away is asked one question at a time. Whoever asks it waits no longer for that than for any
	// other: the probe goes on without its caller.
	probe, ok := to.breaker.admit(w.start)
	if !ok {
		return errAway
	}
	w.ownBatch[0] = w
	if probe {
		go l.sendProbe(to, w)
		return l.wait(ctx, to, w, false)
	}

	// While maxInFlight calls are in flight, the question waits for the next, which many share: a call takes Redis and
	// this process as long as four to eight questions.
	to.mu.Lock()
	if to.callsInFlight == maxInFlight || len(to.queue) > 0 {
		if len(to.queue) >= maxWaiting {
			to.mu.Unlock()
			return errCrowd
		}
		to.queue = append(to.queue, w)
		watched := l.watch(to, w)
		to.mu.Unlock()
		return l.wait(ctx, to, w, watched)
	}
	to.callsInFlight++
	to.questionsInFlight++
	to.mu.Unlock()

	// A call must not end with a caller that cannot wait for it, or the server would seem not to answer. A tenth of the
	// Timeout is what a decision may have spent before its call.
	if timeout < l.timeout*9/10 {
		go l.sendBatches(to, w.ownBatch[:])
		return l.wait(ctx, to, w, false)
	}
	defer l.sendQueue(to) // also if an observer panics
	l.sendBatch(to, w.ownBatch[:], w.start, w.deadline)
	return <-w.done
}

// wait waits for the answer to a question that another goroutine sends. Who is watched is woken when it is late.
func (l *line) wait(ctx context.Context, to *server, w *waiter, watched bool) error {
	ended := ctx.Done()
	if watched && ended == nil { // nearly always, where requests have no deadline; a select takes longer
		return <-w.done
	}
	var timer *time.Timer
	var late <-chan time.Time
	if !watched {
		to.mu.Lock() // the call that it is in may extend it
		timer = time.NewTimer(time.Until(w.deadline))
		to.mu.Unlock()
		defer timer.Stop()
		late = timer.C
	}
	// An answer that comes later stays in the channel, for which it has room, and the waiter is left to the collector.
	for {
		err := errLate
		select {
		case err := <-w.done:
			return err
		case <-late:
		case <-ended:
			err = ctx.Err()
		}
		to.mu.Lock()
		if errors.Is(err, errLate) && l.hasMoreTime(to, w, time.Now()) {
			timer.Reset(time.Until(w.deadline))
			to.mu.Unlock()
			continue
		}
		w.unwatch()
		w.abandoned = true
		to.mu.Unlock()
		return err
	}
}

// sendQueue sends the questions that wait by now, in a goroutine, so that the caller has its answer before it works for
// others.
func (l *line) sendQueue(to *server) {
	batch := to.nextBatch(1) // after the caller's own question
	if len(batch) > 0 {
		go l.sendBatches(to, batch)
	}
}

// sendBatches sends a batch, and those after it for as long as questions wait.
func (l *line) sendBatches(to *server, batch []*waiter) {
	for len(batch) > 0 {
		// A call lasts for a Timeout, whatever its waiters have left: the answer to somebody who has gone still says
		// that the server works.
		now := time.Now()
		l.sendBatch(to, batch, now, now.Add(l.timeout))
		to.gather(len(batch))
		batch = to.nextBatch(len(batch))
	}
}

// sendProbe asks a server that was away. If it answers, it is used again as soon as it runs all commands of the
// scripts: the question may be one that a server refuses which cannot write.
func (l *line) sendProbe(to *server, w *waiter) {
	defer to.breaker.release()
	key := w.cells[0].Key // after the call, the waiter may be another's
	now := time.Now()
	if !l.sendBatch(to, w.ownBatch[:], now, now.Add(l.timeout)) {
		return
	}
	fault := l.try(time.Now().Add(l.timeout), key)
	if to.breaker.tried(fault) {
		l.changed(nil)
	}
}

// sendBatch sends questions, and gives each its answer or error, by the deadline. If there was no answer while this
// process itself was stopped, it charges once more: that may charge twice, and less is admitted. What gives units back,
// or reports them, is never sent again, as it would make room that is not there. It reports whether the server works.
func (l *line) sendBatch(to *server, batch []*waiter, start, deadline time.Time) (works bool) {
	// By what the server has answered meanwhile, the breaker tells a server that is silent from one that is slow.
	sent := start
	answersBefore := to.breaker.answerCount.Load()
	callErr, serverFault := l.run(deadline, questionsOf(batch))

	// An answer may have come while this process stood still, and been thrown away as late.
	stopped := outOfTime(serverFault) && l.pauses.since(start) > 0
	if stopped {
		now := time.Now()
		again, lastDeadline := l.toSendAgain(to, batch, now)
		if len(again) > 0 {
			l.pauses.watch(now)
			stopped = false
			sent = now
			answersBefore = to.breaker.answerCount.Load()
			callErr, serverFault = l.run(lastDeadline, questionsOf(again))
		}
	}

	switch {
	case stopped: // that there was no answer says nothing of the server
	case serverFault == nil:
		works = true
		to.breaker.answered()
		l.servers.learn()
	default:
		if to.breaker.failed(sent, answersBefore, serverFault, maxSilence*l.timeout) {
			l.changed(serverFault)
		}
		// Another may have taken over, so it is looked for now, and again after each probe.
		if to.breaker.open.Load() {
			l.servers.reload()
		}
	}
	if callErr != nil || to.unserved.any.Load() {
		l.noteHashSlots(to, batch)
	}
	l.called(store.Call{Questions: len(batch), Took: time.Since(start), Err: callErr})

	// All are taken out of the list before the first is answered, under one lock for the batch. A waiter that has its
	// answer may be another's at once.
	to.mu.Lock()
	for _, w := range batch {
		w.unwatch()
	}
	to.mu.Unlock()
	for _, w := range batch {
		w.done <- w.err
	}
	return works
}

// noteHashSlots notes which hash slots a server serves, as far as it has said. It looks at all questions of a call: on
// a server of a Cluster some may be served, and others not.
func (l *line) noteHashSlots(to *server, batch []*waiter) {
	now := time.Now()
	for _, w := range batch {
		// On a Cluster all of them pass, as its client learns where the hash slot is now. For other clients a MOVED
		// stays until somebody mends it.
		is, passing := aboutHashSlot(w.err)
		switch {
		case is:
			passing = passing || l.servers.cluster != nil
			if w.hashSlot != noHashSlot && to.unserved.failed(w.hashSlot, w.err, passing, now) {
				l.changed(w.err)
			}
			w.err = hashSlotError{w.err, w.deadline}
		case w.err == nil && to.unserved.answered(w.hashSlot, now):
			l.changed(nil)
		}
	}
}

// toSendAgain returns the questions of a call that are to be sent again after this process was stopped, and until when
// the last of them waits.
func (l *line) toSendAgain(to *server, batch []*waiter, now time.Time) (again []*waiter, lastDeadline time.Time) {
	to.mu.Lock()
	defer to.mu.Unlock()
	for _, w := range batch {
		if w.mode == step.Settle || w.abandoned {
			continue
		}
		if l.hasMoreTime(to, w, now) {
			again = append(again, w)
			if w.deadline.After(lastDeadline) {
				lastDeadline = w.deadline
			}
		}
	}
	return again, lastDeadline
}

// hasMoreTime reports whether a question that seems to be late is not: it was extended already, or is now. The server
// is locked.
func (l *line) hasMoreTime(to *server, w *waiter, now time.Time) bool {
	return w.extended && w.deadline.After(now) || l.extend(to, w, now)
}

// extend gives a question the time for which this process was stopped since it was asked, once, and no more than its
// caller has. It reports whether that is left. The server is locked.
func (l *line) extend(to *server, w *waiter, now time.Time) bool {
	deadline := w.deadline.Add(l.pauses.since(w.start))
	if !w.callerDeadline.IsZero() && w.callerDeadline.Before(deadline) {
		deadline = w.callerDeadline
	}
	if w.extended || !deadline.After(now) || !deadline.After(w.deadline) {
		return false
	}
	// Its place in the list is by its deadline.
	watched := w.later != nil
	w.unwatch()
	w.extended = true
	w.deadline = deadline
	if watched {
		to.insert(w)
	}
	return true
}
