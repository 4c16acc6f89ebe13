package redisstore

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

// A question is a decision or settlement to be made by Redis.
type question struct {
	mode     byte
	charges  []core.Charge  // the caller's until the question is queued; see detach
	one      [1]core.Charge // room for charges
	deadline time.Time
	hashSlot int // in a Cluster; 0 otherwise
	work     int // words that Redis lays out anew for it; 0 if not known

	// Of a settlement:
	at, actual int64
	uncovered  int64 // the answer

	self     [1]*question // room for a batch of this question alone
	progress atomic.Int32
	done     chan struct{} // gets a value when result and err are there
	result   core.Result
	err      error
}

// The progress of a question. The sender changes it from waiting to sent, and back if it
// is put off, unless the caller has given up and dropped it.
const (
	waiting = iota
	sent
	dropped
)

// pools reuse questions and timers. Each store has its own: in a bubble of package
// synctest, channels and timers must not come from outside.
type pools struct{ questions, timers sync.Pool }

func (p *pools) question() *question {
	if q, ok := p.questions.Get().(*question); ok {
		return q
	}
	return &question{done: make(chan struct{}, 1)}
}

// free takes back a question that is no longer used.
func (p *pools) free(q *question) {
	done := q.done
	*q = question{done: done}
	p.questions.Put(q)
}

func (p *pools) timer(d time.Duration) *time.Timer {
	if t, ok := p.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (p *pools) freeTimer(t *time.Timer) {
	t.Stop()
	p.timers.Put(t)
}

// detach makes the charges the question's own: it may outlive the call that asked it,
// and then the slice belongs to the caller again.
func (q *question) detach() {
	if len(q.charges) > 1 {
		q.charges = slices.Clone(q.charges)
	} else {
		q.one[0] = q.charges[0]
		q.charges = q.one[:]
	}
}

// parts is the number of cells of the question.
func (q *question) parts() int {
	n := 0
	for i := range q.charges {
		n += len(q.charges[i].Limiter.Cells())
	}
	return n
}

// words is about how many words of state Redis reads and writes for the question: of a
// long log, as many as there are units. Whether a log has to be laid out anew is not known
// before the question is sent.
func (q *question) words() int {
	words := q.work
	for i := range q.charges {
		n, units := noteOf(q.charges[i].Limiter), q.charges[i].N
		switch {
		case q.mode == modeSettle && q.actual > units:
			units = step.MaxLog // and perhaps another ring
		case q.mode == modeSettle, q.mode == modePeek:
			units = 0
		}
		words += n.words + n.logs*int(units)
	}
	return words
}

// addTo writes the question into a call of the script.
func (q *question) addTo(c *call, s *Store) {
	c.begin(q.mode, q.parts())
	for i := range q.charges {
		charge := &q.charges[i]
		c.keys = s.cells(c.keys, charge)
		constants := noteOf(charge.Limiter).constants
		cells := charge.Limiter.Cells()
		for j := range cells {
			c.add(&cells[j], constants[j], charge.N)
			if q.mode == modeSettle {
				c.number(q.at)
				c.number(q.actual)
			}
		}
	}
}

// read takes the question's answer from the reply.
func (q *question) read(r *reply) {
	if q.mode == modeSettle {
		q.uncovered, q.err = r.uncovered(q.parts())
		return
	}
	if q.result, q.err = r.result(q.charges); errors.Is(q.err, errPutOff) {
		q.work = r.work
	}
}
