package remote

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/within"
)

// A Sender is a store over a [Backend]. Questions that arrive while calls to their server
// are in flight wait, and are sent together in the next call. It does not ask a server
// that does not answer: see [Server].
type Sender struct {
	backend Backend
	config  Config
	watch   watch
	pool    pool
}

// NewSender returns a Sender.
func NewSender(b Backend, c Config) *Sender {
	return &Sender{backend: b, config: c, watch: newWatch(b.Probe, c)}
}

// Ask implements [store.Store], of several charges for keys of one server and part. If the deadline
// of the context comes before the answer, the error says so. A cancelled context ends the wait for
// a call that decisions share. A decision that was sent alone, without an earlier deadline, waits
// for its answer until the Timeout. In both cases, a sent charge may be made.
func (s *Sender) Ask(ctx context.Context, asked *store.Question) error {
	if err := asked.Valid(); err != nil {
		return err
	}
	switch asked.Mode {
	case store.Settle:
		return s.settleAll(within.By(context.WithoutCancel(ctx), time.Time{}), asked.Charges)
	case store.Reset:
		return s.resetAll(ctx, asked.Charges)
	}
	q := s.pool.question(asked.Mode, asked.Charges, asked.Extra)
	if err := s.submit(ctx, q); err != nil {
		return err // it may be in flight: that is why it has a Result of its own
	}
	asked.Result = q.Result
	for i := range asked.Charges {
		asked.Charges[i].Uncovered = q.Charges[i].Uncovered
	}
	s.pool.free(q)
	return nil
}

// settleAll settles charges. Each is sent once: one that is not answered may have been made. It
// is sent even if the context has ended, and takes the Timeout at most.
func (s *Sender) settleAll(ctx context.Context, cs []store.Charge) error {
	if len(cs) == 1 {
		return s.settle(ctx, cs)
	}
	faults := make([]error, len(cs))
	var all sync.WaitGroup
	for i := range cs {
		all.Go(func() { faults[i] = s.settle(ctx, cs[i:i+1]) })
	}
	all.Wait()
	return errors.Join(faults...)
}

// settle settles one charge.
func (s *Sender) settle(ctx context.Context, one []store.Charge) error {
	q := s.pool.question(store.Settle, one, 0)
	if err := s.submit(ctx, q); err != nil {
		return err
	}
	one[0].Uncovered = q.Charges[0].Uncovered
	s.pool.free(q)
	return nil
}

// resetAll resets keys. Each is sent once, and not at all to a server that is unavailable.
func (s *Sender) resetAll(ctx context.Context, cs []store.Charge) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	for i := range cs {
		c := &cs[i]
		if server, _ := s.backend.Route(c.Key); !server.limits.allows() {
			return errAway
		}
		if err := s.backend.Reset(ctx, c.Limiter, c.Key); err != nil {
			return err
		}
	}
	return nil
}

// Prepare implements [store.Store].
func (s *Sender) Prepare(l *store.Limiter) error { return s.backend.Prepare(l) }

// Observer implements [store.Store].
func (s *Sender) Observer() *store.Observer { return s.config.Observer }

// submit sends the question and waits for the answer, at most until its deadline or
// the end of the context. After an error the question must not be used again, as it may
// still be in flight.
func (s *Sender) submit(ctx context.Context, q *Question) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.deadline = deadline(ctx, s.config.Timeout)
	server, part := s.backend.Route(q.Charges[0].Key)
	q.Part = part
	if !server.limits.allows() {
		return errAway
	}
	if !time.Now().Before(q.deadline) {
		return errLate
	}
	server.mu.Lock()
	switch alone := server.inFlight < s.config.maxInFlight() && len(server.waiting) == 0; {
	case server.inFlight+len(server.waiting)+len(server.late) >= maxWaiting:
		server.mu.Unlock()
		return errBusy
	case !alone:
		q.detach()
		server.waiting = append(server.waiting, q)
		watched := server.watch(q)
		server.mu.Unlock()
		return s.await(ctx, server, q, watched)
	}
	server.inFlight++
	server.asked++
	server.mu.Unlock()
	q.progress.Store(sent)
	q.self[0] = q
	// A call must not end with a caller that cannot wait for it, or the server would seem
	// not to answer. A tenth of the Timeout is what a decision may have spent before its
	// call.
	if time.Until(q.deadline) < s.config.Timeout*9/10 {
		q.detach()
		go s.drain(server, q.self[:])
		return s.await(ctx, server, q, false)
	}
	defer s.callEnded(server) // also if an observer panics
	s.call(context.WithoutCancel(ctx), server, q.self[:], q.deadline)
	return q.err(<-q.done)
}

// await waits for a question that another goroutine sends.
func (s *Sender) await(ctx context.Context, server *Server, q *Question, watched bool) error {
	ended := ctx.Done()
	if watched && ended == nil { // a select takes longer
		return q.err(<-q.done)
	}
	var alarm <-chan time.Time
	if !watched {
		timer := time.NewTimer(time.Until(q.deadline))
		defer timer.Stop()
		alarm = timer.C
	}
	var err error
	select {
	case signal := <-q.done:
		return q.err(signal)
	case <-alarm:
		err = errLate
	case <-ended:
		err = ctx.Err()
	}
	server.giveUp(q)
	return err
}

// callEnded sends the questions that wait by now, in a goroutine, so that the caller
// has its answer before it works for others.
func (s *Sender) callEnded(server *Server) {
	server.ended(1)
	if batch := server.nextBatch(s); len(batch) > 0 {
		go s.drain(server, batch)
	}
}

// drain sends batches for as long as questions wait.
func (s *Sender) drain(server *Server, batch []*Question) {
	for ; len(batch) > 0; batch = server.nextBatch(s) {
		// The questions keep their own deadlines.
		s.call(context.Background(), server, batch, time.Now().Add(s.config.Timeout))
		server.ended(len(batch))
		if !s.config.NoMerging {
			server.gather()
		}
	}
}

// call asks questions, and gives each its answer or error, by the deadline.
func (s *Sender) call(ctx context.Context, server *Server, batch []*Question, deadline time.Time) {
	a := server.attempt(&server.limits, batch[0].Part)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err, failure := s.backend.Ask(ctx, batch)
	s.watch.report(a, failure)
	if failure == nil && s.config.NoMerging {
		server.answeredIn(time.Since(a.start))
	}
	s.config.called(a, len(batch), err)
	server.land(batch)
	var again []*Question
	for _, q := range batch {
		if errors.Is(q.Err, ErrPutOff) {
			again = append(again, q)
		} else {
			q.done <- answered
		}
	}
	if len(again) > 0 {
		server.putOff(again)
	}
}
