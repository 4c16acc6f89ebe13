package redisstore

import (
	"errors"
	"slices"

	"github.com/headgate/headgate/core/internal/remote"
	"github.com/headgate/headgate/core/store"
)

// maxWords, which is also in the script, bounds the time for which a call
// keeps Redis from all others: to about 1 ms. A question of more is sent alone. A cell weighs
// as much as so many words at least.
const (
	maxWords   = 8192
	cellWeight = maxWords / 128
)

type question = remote.Question

// Weight implements [remote.Backend].
func (b *backend) Weight(q *question) int { return max(words(q), cellWeight*parts(q)) }

// parts is the number of cells of the question.
func parts(q *question) int {
	n := 0
	for i := range q.Charges {
		n += len(q.Charges[i].Limiter.Spec().Policies)
	}
	return n
}

// words is about how many words of state Redis reads and writes for the question: of a
// long log, as many as there are units. Whether a log has to be laid out anew is not known
// before the question is sent.
func words(q *question) int {
	words := q.Work
	for i := range q.Charges {
		n, units := prepared(q.Charges[i].Limiter), q.Charges[i].N+extra(q)
		switch {
		case q.Mode == remote.Settle && q.Actual > units:
			units = maxLog // and perhaps another ring
		case q.Mode == remote.Settle, q.Mode == remote.Peek:
			units = 0
		}
		words += n.words + n.logs*int(units)
	}
	return words
}

// extra returns how many units beyond N to ask for. More than can ever be granted are
// not, so that the script counts exactly.
func extra(q *question) int64 {
	c := &q.Charges[0]
	if c.Extra <= 0 {
		return 0
	}
	return min(c.Extra, c.Limiter.Spec().Most()-c.N)
}

// modeExtra is added to the mode of a question with an Extra, as in the script.
const modeExtra = 4

// add writes the question into a call of the script.
func (b *backend) add(c *call, q *question) {
	mode, bytes, more := q.Mode, partBytes, extra(q)
	if q.Mode == remote.Settle {
		bytes = settlementBytes
	} else if slices.ContainsFunc(q.Charges, func(c store.Charge) bool { return c.N != 1 }) {
		bytes = unitsBytes
	}
	if more > 0 {
		mode += modeExtra
	}
	several := len(q.Charges) > 1 || len(prepared(q.Charges[0].Limiter).suffixes) > 1
	c.begin(mode, parts(q), bytes, several)
	for i := range q.Charges {
		charge := &q.Charges[i]
		var room [maxPolicies]string
		names := b.values(room[:0], charge)
		l := prepared(charge.Limiter)
		place := c.add(l)
		for j := range l.policies {
			p := &l.policies[j]
			place = c.part(p, names[p.value], place)
			if bytes >= unitsBytes {
				c.number(charge.N)
			}
			if q.Mode == remote.Settle {
				c.number(q.At)
				c.number(q.Actual)
			}
		}
	}
	if more > 0 {
		c.number(more)
	}
}

// read takes the question's answer from the reply.
func read(q *question, r *reply) {
	if q.Mode == remote.Settle {
		q.Uncovered, q.Err = r.uncovered(parts(q))
		return
	}
	if q.Err = r.result(q); errors.Is(q.Err, remote.ErrPutOff) {
		q.Work = r.work
	}
}
