package redisstore

import (
	"errors"
	"fmt"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A reply is the part of a script's reply that was not read yet.
type reply struct {
	rest string
	at   int64
	work int // after remote.ErrPutOff: words that the question lays out anew
}

var errReply = errors.New("headgate: the reply of the script is too short")

func newReply(s string) (reply, error) {
	if len(s) < step.WordBytes {
		return reply{}, errReply
	}
	return reply{rest: s[step.WordBytes:], at: step.Word(s)}, nil
}

func (r *reply) take(n int) (string, error) {
	if n > len(r.rest) {
		return "", errReply
	}
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s, nil
}

func (r *reply) word() (int64, error) {
	s, err := r.take(step.WordBytes)
	if err != nil {
		return 0, err
	}
	return step.Word(s), nil
}

// The bits of the byte before the answer of each part, as in the script.
const (
	partAdmitted = 1 << iota // the policy admits the charge
	partAllowed              // the question is allowed
	_
	partFailed // alone: the question failed, and the error follows
	partPutOff // alone: the question was put off, and its words follow
)

// part reads that byte. The error may be that of the question alone, or errReply.
func (r *reply) part() (byte, error) {
	s, err := r.take(1)
	if err != nil {
		return 0, err
	}
	switch s[0] {
	case partPutOff:
		if s, err = r.take(step.WordBytes); err != nil {
			return 0, err
		}
		r.work = int(step.Word(s))
		return 0, remote.ErrPutOff
	case partFailed:
	default:
		return s[0], nil
	}
	if s, err = r.take(2); err == nil {
		s, err = r.take(int(s[0])<<8 | int(s[1]))
	}
	if err != nil {
		return 0, err
	}
	if s == "" {
		s = "the key holds a value of another type"
	}
	return 0, fmt.Errorf("headgate: Redis could not decide: %s", s)
}

// result reads the answer to a question.
func (r *reply) result(b *backend, q *question) error {
	result := &q.Result
	result.Start(r.at, store.SourceStore)
	first := true
	for i := range q.Charges {
		c := &q.Charges[i]
		c.Uncovered = 0
		l := b.prepared(c.Limiter)
		var admitted [maxPolicies]bool
		var readings [maxPolicies]step.Reading
		for j := range l.policies {
			p := &l.policies[j]
			policy := l.spec.Policies[p.index].Step
			part, err := r.part()
			if err != nil {
				return err
			}
			result.Allowed = part&partAllowed != 0
			if first && result.Allowed && extra(q) > 0 {
				if result.Extra, err = r.word(); err != nil {
					return err
				}
			}
			first = false
			reading, err := r.reading(policy, q, c, p.denied == 1)
			if err != nil {
				return err
			}
			if l.inOrder {
				result.Add(part&partAdmitted != 0, reading)
				continue
			}
			admitted[p.index], readings[p.index] = part&partAdmitted != 0, reading
		}
		if !l.inOrder {
			for j := range l.policies {
				result.Add(admitted[j], readings[j])
			}
		}
	}
	return nil
}

// reading reads what the script says of one policy, of a charge of the question.
func (r *reply) reading(p step.Step, q *question, c *store.Charge, denied bool) (x step.Reading, err error) {
	allowed := q.Result.Allowed
	var need, charged, refused int64
	switch {
	case c.N == 0:
		need, allowed = step.Asked(p, 0), false
	case c.Anyway:
		without, err := r.word()
		if err != nil {
			return x, err
		}
		c.Uncovered = max(c.Uncovered, without)
		if need, allowed = 1, false; q.Mode != store.Peek {
			charged = c.N
		}
	case !allowed:
		need = c.N
		if denied {
			refused = c.N
		}
	case q.Mode == store.Allow:
		charged = c.N + q.Result.Extra
	}
	state, err := r.take(step.ReplyBytes(p, allowed))
	if err != nil {
		return x, err
	}
	return step.ReadTwin(p, state, r.at, need, charged, refused)
}

// uncovered reads the answer to a settlement of that many parts.
func (r *reply) uncovered(parts int) (units int64, err error) {
	for range parts {
		if _, err := r.part(); err != nil {
			return 0, err
		}
		word, err := r.word()
		if err != nil {
			return 0, err
		}
		units = max(units, word)
	}
	return units, nil
}
