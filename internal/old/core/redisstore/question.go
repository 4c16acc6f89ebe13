package redisstore

import (
	"errors"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
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
func (b *backend) Weight(q *question) int { return max(b.words(q), cellWeight*parts(q)) }

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
func (b *backend) words(q *question) int {
	words := q.Work
	for i := range q.Charges {
		n, units := b.prepared(q.Charges[i].Limiter), min(q.Charges[i].N, maxLog)+min(extra(q), maxLog)
		logs := n.logs
		switch {
		case q.Mode == store.Settle && q.Charges[i].Actual > q.Charges[i].N:
			units = maxLog // and perhaps another ring
		case q.Mode == store.Settle:
			logs = 0
		case q.Mode == store.Peek: // which shows what a refusal would leave
			logs = n.denied
		}
		words += n.words + logs*int(units)
	}
	return words
}

// extra returns how many units beyond N to ask for. More than can ever be granted are
// not, so that the script counts exactly.
func extra(q *question) int64 {
	if q.Extra <= 0 {
		return 0
	}
	c := &q.Charges[0]
	return min(q.Extra, c.Limiter.Spec().Most()-c.N)
}

// The modes of questions in the script.
const (
	modeAllow = iota
	modePeek
	modeRefuse
	modeSettle
	modeExtra // is before the question that has an Extra

	// These are added to that of a cell whose units count anyway, or that only checks.
	modeAnyway = 8
	modeCheck  = 16
)

// modeOf returns the mode of a question in the script.
func modeOf(m store.Mode) byte {
	switch m {
	case store.Peek:
		return modePeek
	case store.Settle:
		return modeSettle
	case store.Refuse:
		return modeRefuse
	default:
		return modeAllow
	}
}

// add writes the question into a call of the script.
func (b *backend) add(c *call, q *question) {
	if more := extra(q); more > 0 {
		c.questions = append(c.questions, modeExtra)
		c.number(more)
	}
	one := cell{
		more:   parts(q),
		single: len(q.Charges) == 1 && len(b.prepared(q.Charges[0].Limiter).suffixes) == 1,
	}
	for i := range q.Charges {
		charge := &q.Charges[i]
		var room [maxPolicies]string
		names := b.values(room[:0], charge)
		l := b.prepared(charge.Limiter)
		one.place, one.n = c.add(l), charge.N
		switch one.mode = modeOf(q.Mode); {
		case q.Mode == store.Settle:
		case charge.Anyway:
			one.mode += modeAnyway
		case charge.N == 0:
			one.mode += modeCheck
		}
		for j := range l.policies {
			one.more--
			one.value = names[l.policies[j].value]
			one.place = c.cell(&l.policies[j], &one)
			if q.Mode == store.Settle {
				c.number(charge.At)
				c.number(charge.Actual)
			}
		}
	}
}

// read takes the question's answer from the reply.
func (b *backend) read(q *question, r *reply) {
	if q.Mode == store.Settle {
		q.Charges[0].Uncovered, q.Err = r.uncovered(parts(q))
		return
	}
	if q.Err = r.result(b, q); errors.Is(q.Err, remote.ErrPutOff) {
		q.Work = r.work
	}
}
