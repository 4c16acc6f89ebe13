package remote

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxInFlight is how many calls for rates may be in flight to a server at once. With two, it
	// computes one while the next is on the wire.
	MaxInFlight = 2

	// MaxUnmerged is the same without merging. As many keep a server busy, and it answers them in a
	// small part of a Timeout. More would wait at the server, where all could run out of time
	// before any is answered.
	MaxUnmerged = 64

	// minShare is how many questions a call carries if as many wait, even if it is more than
	// its share. A call itself takes as long as four to eight questions.
	minShare = 8

	// maxPauses is how often a call waits for other goroutines, while more questions come.
	maxPauses = 4

	// maxWaiting bounds the questions that wait for a call.
	maxWaiting = 1 << 16
)

func (c *Config) maxInFlight() int {
	if c.NoMerging {
		return MaxUnmerged
	}
	return MaxInFlight
}

// A Server is one of the servers that have the state: what waits for it, and whether it
// answers. One that is slow or unavailable delays only its own keys. The zero value is
// ready to use.
type Server struct {
	limits  breaker
	answers atomic.Uint64

	mu       sync.Mutex
	inFlight int // calls
	asked    int // questions of these calls, with merging
	waiting  []*Question
	late     []*Question   // see takeOne
	took     time.Duration // without merging, by the last call that was answered
	watchdog watchdog
}

// Load returns how many calls are in flight, and how many questions wait for one. A call counts
// until its sender has seen that nothing waits, a moment after the last answer.
func (s *Server) Load() (inFlight, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight, len(s.waiting) + len(s.late)
}

// answeredIn notes how long an answer took.
func (s *Server) answeredIn(d time.Duration) {
	s.mu.Lock()
	s.took = d
	s.mu.Unlock()
}

// land ends the watch of questions that were answered, but not of those that were put off.
func (s *Server) land(batch []*Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range batch {
		if !errors.Is(q.Err, ErrPutOff) {
			s.watchdog.unwatch(q)
		}
	}
}

// giveUp drops a question that nobody waits for any more. If it was sent, it is not put off.
func (s *Server) giveUp(q *Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchdog.unwatch(q)
	q.progress.Store(dropped)
}

// putOff lets questions that were too much work for their call wait again, ahead of all
// others: now it is known how much they are. If that is more than may wait, those that
// came last are turned away.
func (s *Server) putOff(batch []*Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var again []*Question
	for _, q := range batch {
		q.Err = nil
		if q.progress.CompareAndSwap(sent, waiting) {
			again = append(again, q)
		}
	}
	s.waiting = append(again, s.waiting...)
	for last := len(s.waiting) - 1; last >= maxWaiting; last-- {
		q := s.waiting[last]
		s.waiting[last] = nil
		s.waiting = s.waiting[:last]
		if q.progress.CompareAndSwap(waiting, sent) {
			s.watchdog.unwatch(q)
			q.Err = errBusy
			q.done <- answered
		}
	}
}

// ended notes the end of a call of so many questions, after which there is another, or none.
func (s *Server) ended(questions int) {
	s.mu.Lock()
	s.asked -= questions
	s.mu.Unlock()
}

// gather lets callers that were just answered ask again, so that the next call carries more, of
// which the server has less to do. It goes on while they come, and fewer wait than the other call
// in flight keeps the server at work with.
func (s *Server) gather() {
	most := 0
	for range maxPauses {
		runtime.Gosched()
		s.mu.Lock()
		n, asked := len(s.waiting), s.asked
		s.mu.Unlock()
		if n <= most || n >= asked {
			return
		}
		most = n
	}
}

// nextBatch takes the questions of the next call out of the queue. If there are none,
// the caller's call no longer counts as in flight.
func (s *Server) nextBatch(sender *Sender) (batch []*Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sender.config.NoMerging {
		batch = s.takeOne()
	} else {
		batch = s.takeShare(sender)
	}
	if len(batch) == 0 {
		s.inFlight--
	}
	s.asked += len(batch)
	return batch
}

// takeShare takes questions out of the queue, but leaves half of all to another call that is in
// flight. A call that takes all that wait is followed by small ones until it is answered, and they
// by a large one again: then the server and its clients wait for each other.
func (s *Server) takeShare(sender *Sender) (batch []*Question) {
	share := maxWaiting
	if s.inFlight > 1 {
		share = max((s.asked+len(s.waiting)+1)/2, minShare)
	}
	for weight := 0; len(s.waiting) > 0 && len(batch) < share; s.waiting = s.waiting[1:] {
		q := s.waiting[0]
		if q.progress.Load() == dropped {
			continue
		}
		weight += sender.backend.Weight(q)
		if len(batch) > 0 && weight > sender.config.MaxWeight {
			return batch
		}
		if q.progress.CompareAndSwap(waiting, sent) {
			batch = append(batch, q)
		}
	}
	if len(s.waiting) == 0 {
		s.waiting = nil
	}
	return batch
}

// takeOne takes one question out of the queue, without merging. Those whose answers would
// probably come too late are sent only when nobody else waits: otherwise all answers would come
// just too late, one after the other.
func (s *Server) takeOne() []*Question {
	for len(s.late) > 0 && s.late[0].progress.Load() == dropped {
		s.late = s.late[1:]
	}
	for len(s.waiting)+len(s.late) > 0 {
		var q *Question
		if len(s.waiting) > 0 {
			q, s.waiting = s.waiting[0], s.waiting[1:]
			if time.Until(q.deadline) < 2*s.took {
				s.late = append(s.late, q)
				continue
			}
		} else { // the one with the most time left
			last := len(s.late) - 1
			q, s.late = s.late[last], s.late[:last]
		}
		if q.progress.CompareAndSwap(waiting, sent) {
			return []*Question{q}
		}
	}
	s.waiting, s.late = nil, nil
	return nil
}
