package keywatch

import (
	"log/slog"
	"sync"
	"time"
)

// pause is how long nothing is logged of a cause after a record of it.
const pause = time.Minute

// A cause is why requests are refused without a decision.
type cause struct {
	rule, status int
	kind         string
}

// A tally is of a cause.
type tally struct {
	requests int64 // since the last record
	next     time.Time
	last     error
}

// refusals count what is refused without a decision. There are few causes.
type refusals struct {
	mu      sync.Mutex
	tallies map[cause]*tally
}

// add counts a refusal. It returns for how many requests there is to be a record, or 0, and the error
// before.
func (r *refusals) add(c cause, err error) (n int64, before error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tallies[c]
	if t == nil {
		if r.tallies == nil {
			r.tallies = make(map[cause]*tally)
		}
		t = new(tally)
		r.tallies[c] = t
	}
	before, t.last = t.last, err
	t.requests++
	now := time.Now()
	if now.Before(t.next) {
		return 0, nil
	}
	n, t.requests, t.next = t.requests, 0, now.Add(pause)
	return n, before
}

// Unkeyed logs that requests are refused because the Key of a rule returned an error. Each cause gets
// a record a minute at most.
func (w *Watch) Unkeyed(rule, status int, err error) {
	if w.observed {
		return
	}
	c := cause{rule, status, reason(nil, err)}
	if n, before := w.refused.add(c, err); n > 0 {
		w.warn(rule, undecided, slog.Int("status", status), slog.Int64("requests", n), slog.String("reason", reason(before, err)))
	}
}

// Undecided is Unkeyed for other errors, which have no keys. The rule is -1 if it is of no rule alone.
func (w *Watch) Undecided(rule, status int, err error) {
	if w.observed {
		return
	}
	if n, _ := w.refused.add(cause{rule: rule, status: status}, err); n > 0 {
		w.warn(rule, undecided, slog.Int("status", status), slog.Int64("requests", n), slog.String("reason", err.Error()))
	}
}

const undecided = "requests are refused without a decision"
