package remote

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// A Question is a decision or a settlement that a server is asked for. It is the Sender's own,
// with an answer of its own, as it may outlive whoever asked. A settlement has one charge.
type Question struct {
	store.Question

	Part int // of the first charge's key, from Route

	// Work is for the Backend: why it put the question off. 0 if it has not.
	Work int

	Err error

	one      [1]store.Charge // room for Charges
	self     [1]*Question    // room for a batch of this question alone
	deadline time.Time
	progress atomic.Int32
	done     chan signal // with room for both: each is sent at most once

	// In the list of the watchdog.
	watched       bool
	before, after *Question
}

// A signal wakes the caller of a question.
type signal bool

const (
	answered signal = false // the answer is there
	late     signal = true  // it is not in time, and the question must not be read: see watchdog
)

// The progress of a question. The sender changes it from waiting to sent, and back if it
// is put off, unless it was dropped: the caller has given up, or was told that it is late.
const (
	waiting = iota
	sent
	dropped
)

// A pool reuses questions. Each sender has its own: in a bubble of package synctest, channels
// must not come from outside.
type pool struct{ sync.Pool }

// question returns a question about charges. Several are those of the caller: see detach.
func (p *pool) question(mode store.Mode, cs []store.Charge, extra int64) *Question {
	q, ok := p.Get().(*Question)
	if !ok {
		q = &Question{done: make(chan signal, 2)}
	}
	q.Mode, q.Charges, q.Extra = mode, cs, extra
	if len(cs) == 1 {
		q.one[0] = cs[0]
		q.Charges = q.one[:]
	}
	return q
}

// free takes back a question that is no longer used.
func (p *pool) free(q *Question) {
	done := q.done
	*q = Question{done: done}
	p.Put(q)
}

// err returns the error of a question whose caller got the signal.
func (q *Question) err(s signal) error {
	if s == late {
		return errLate
	}
	return q.Err
}

// detach makes the charges the question's own: it may outlive the call that asked it,
// and then the slice belongs to the caller again.
func (q *Question) detach() {
	if len(q.Charges) > 1 {
		q.Charges = slices.Clone(q.Charges)
	}
}
