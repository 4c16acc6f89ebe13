package remote

import "time"

// A watchdog tells callers that their answers are late, which others fetch for them. Timers, one
// for each, would take 8 % of a client's processor time, and nearly all would be stopped before
// they ring. Here is one alarm, for the first of a list that is in the order of deadlines. As most
// callers have the same Timeout, that is nearly the order in which they come.
//
// The lock of the server guards it.
type watchdog struct {
	first, last *Question
	alarm       *time.Timer
	due         time.Time // when the alarm rings; zero: never
}

const (
	// maxBack is how many places before the end a question may get into the list. One whose
	// deadline comes before those of more is for its caller to watch.
	maxBack = 16

	// maxTold is how many callers are told before others get the lock.
	maxTold = 1024
)

// watch has the caller of a question told when it is late, or returns false. The others wait
// for the lock, so it does not look far for its place.
func (s *Server) watch(q *Question) bool {
	d := &s.watchdog
	before := d.last
	for back := 0; before != nil && before.deadline.After(q.deadline); back++ {
		if back == maxBack {
			return false
		}
		before = before.before
	}
	after := d.first
	if before != nil {
		after = before.after
	}
	q.watched, q.before, q.after = true, before, after
	d.link(before, q)
	d.link(q, after)
	s.wind()
	return true
}

// unwatch forgets a question, if it is watched.
func (d *watchdog) unwatch(q *Question) {
	if q.watched {
		d.link(q.before, q.after)
		q.watched, q.before, q.after = false, nil, nil
	}
}

// link makes two questions neighbours. One that is nil stands for an end of the list.
func (d *watchdog) link(before, after *Question) {
	if before != nil {
		before.after = after
	} else {
		d.first = after
	}
	if after != nil {
		after.before = before
	} else {
		d.last = before
	}
}

// wind sees that the alarm rings for the first question, if there is one.
func (s *Server) wind() {
	d := &s.watchdog
	switch {
	case d.first == nil || !d.due.IsZero() && !d.first.deadline.Before(d.due):
		return
	case d.alarm == nil:
		d.alarm = time.AfterFunc(time.Until(d.first.deadline), s.ring)
	default:
		d.alarm.Reset(time.Until(d.first.deadline))
	}
	d.due = d.first.deadline
}

// ring tells those that are late.
func (s *Server) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, now := &s.watchdog, time.Now()
	d.due = time.Time{}
	for range maxTold {
		q := d.first
		if q == nil || q.deadline.After(now) {
			break
		}
		d.unwatch(q)
		if q.progress.Swap(dropped) != dropped {
			q.done <- late
		}
	}
	s.wind()
}
