package redisstore

import (
	"errors"
	"fmt"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

// A reply is the part of a script's reply that was not read yet.
type reply struct {
	rest string
	at   int64
	work int // after errPutOff: words that the question lays out anew
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

// The bits of the byte before the answer of each part, as in main.lua.
const (
	partAdmitted = 1 << iota // the policy admits the charge
	partAllowed              // the question is allowed
	partState                // the state follows
	partFailed               // alone: the question failed, and the error follows
	partPutOff               // alone: the question was put off, and its words follow
)

// errPutOff is the answer to a question that is too much work for its call. Nothing was
// written for it.
var errPutOff = errors.New("headgate: the question has to be sent again")

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
		return 0, errPutOff
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

// result reads the answer to the charges.
func (r *reply) result(charges []core.Charge) (result core.Result, err error) {
	result.At, result.Source = r.at, core.SourceStore
	for i := range charges {
		cells := charges[i].Limiter.Cells()
		for j := range cells {
			part, err := r.part()
			if err != nil {
				return core.Result{}, err
			}
			need := charges[i].N
			if result.Allowed = part&partAllowed != 0; result.Allowed {
				need = 0
			}
			var state string
			if part&partState != 0 {
				if state, err = r.take(step.ReplyBytes(cells[j].Step)); err != nil {
					return core.Result{}, err
				}
			}
			reading, err := step.ReadTwin(cells[j].Step, state, r.at, need)
			if err != nil {
				return core.Result{}, err
			}
			result.Add(part&partAdmitted != 0, reading)
		}
	}
	return result, nil
}

// uncovered reads the answer to a settlement of that many parts.
func (r *reply) uncovered(parts int) (units int64, err error) {
	for range parts {
		if _, err := r.part(); err != nil {
			return 0, err
		}
		word, err := r.take(step.WordBytes)
		if err != nil {
			return 0, err
		}
		units = max(units, step.Word(word))
	}
	return units, nil
}
