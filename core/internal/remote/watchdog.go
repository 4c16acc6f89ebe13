package remote

import (
	"slices"
	"time"
)

// A flight is a call that others wait for than the goroutine that makes it.
type flight struct {
	questions []*Question
	told      int // so many of the first were told that it is late, or have given up
}

// A watchdog tells callers that their answers are late: those that wait in the queue of a server,
// and those of its flights. A timer for each of them would take a tenth of the time of a decision,
// and nearly all would be stopped before they ring. As all have the same Timeout, the first that
// came is the first to be late: there is one alarm, for the oldest that still waits. A deadline
// that comes sooner than the Timeout is for the caller to watch.
type watchdog struct {
	flights []*flight
	alarm   *time.Timer
	due     time.Time // when the alarm rings; zero: never
}

// watch sees that the alarm rings at a deadline, or before. The server is locked.
func (s *Server) watch(deadline time.Time) {
	d := &s.watchdog
	if !d.due.IsZero() && !deadline.Before(d.due) {
		return
	}
	d.due = deadline
	if d.alarm == nil {
		d.alarm = time.AfterFunc(time.Until(deadline), s.ring)
	} else {
		d.alarm.Reset(time.Until(deadline))
	}
}

// ring tells all that are late, and sets the alarm for the next.
func (s *Server) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.watchdog.due = time.Time{}
	for _, f := range s.watchdog.flights {
		f.told += s.tellLate(f.questions[f.told:], now)
	}
	for _, queue := range []*[]*Question{&s.waiting, &s.late} {
		n := s.tellLate(*queue, now)
		clear((*queue)[:n])
		*queue = (*queue)[n:]
	}
}

// tellLate tells the first questions, those that are late, and returns how many it has, with
// those whose callers had given up. The next is watched.
func (s *Server) tellLate(qs []*Question, now time.Time) int {
	for i, q := range qs {
		switch {
		case q.progress.Load() == dropped:
		case q.deadline.After(now):
			s.watch(q.deadline)
			return i
		case q.progress.Swap(dropped) != dropped:
			q.done <- late
		}
	}
	return len(qs)
}

// takeOff begins a flight, whose questions are watched. The server is locked.
func (s *Server) takeOff(qs []*Question) *flight {
	f := &flight{questions: qs}
	s.watchdog.flights = append(s.watchdog.flights, f)
	s.watch(qs[0].deadline)
	return f
}

// land ends a flight, before its questions get their answers.
func (s *Server) land(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.watchdog.flights, f)
	s.watchdog.flights = slices.Delete(s.watchdog.flights, i, i+1)
}
