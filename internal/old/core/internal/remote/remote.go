// Package remote is what a store needs whose state is on servers that many processes share,
// whatever these servers are. A [Backend] asks them. Above it is a stack of layers, each of
// which is a store over the store below:
//
//	[Failover]  decides without the servers while they do not answer
//	[InTurn]    makes charges of several servers, which no one of them can make at once
//	[Refusals]  answers what was just refused, without a call
//	[Sender]    merges questions into calls, and stops asking a server that does not answer
//
// A package of a store has its Backend, and the function that stacks what it needs.
package remote

import (
	"context"
	"errors"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/within"
)

// A Backend asks the servers. It is safe for concurrent use.
type Backend interface {
	// Prepare prepares a limiter, as a store does.
	Prepare(l *store.Limiter) error

	// Route returns the server that has the state of a key. It also returns the part of its state,
	// where a server has several parts and may fail to serve one. It makes no call.
	Route(key string) (server *Server, part int)

	// Servers returns all servers that are known.
	Servers() []*Server

	// Weight returns how much of [Config].MaxWeight the question takes of a call.
	Weight(q *Question) int

	// Ask makes one call to a server, and sets in each question the answer or Err:
	// [ErrPutOff] if it is to be asked again. It returns when the context ends.
	//
	// The first error, if any, is the error of the call as a whole. The second tells the state of
	// the server. It is nil if the server works for rates, and [ErrUnsent] if the call has shown
	// nothing.
	Ask(ctx context.Context, qs []*Question) (err, failure error)

	// Reset deletes a limiter's state for a key.
	Reset(ctx context.Context, l *store.Limiter, key string) error

	// Probe makes the calls of Ask without a question. So it finds out whether the server of a part
	// works again. It bounds each call that it makes. If the error is [ErrGone], the server is not
	// probed again.
	Probe(ctx context.Context, part int) error
}

var (
	// ErrPutOff is the answer to a question that is too much work for its call, as has
	// become known. Nothing was written for it, and its Weight is larger now. The only question of a
	// call is not put off.
	ErrPutOff = errors.New("the question has to be sent again")

	// ErrUnsent means that a call never reached a server.
	ErrUnsent = errors.New("not sent")

	// ErrGone means that there will be no more calls.
	ErrGone = errors.New("the client is closed")

	errAway = errors.New("it failed or was silent, and is probed in the background")
	errLate = errors.New("it did not answer in time")
	errBusy = errors.New("too many decisions wait for it")
)

// Config configures a [Sender].
type Config struct {
	// Timeout bounds every decision, and every call.
	Timeout time.Duration

	// MaxWeight bounds the questions of a call, unless it has only one.
	MaxWeight int

	// NoMerging makes every question a call of its own, [MaxUnmerged] to a server at once.
	NoMerging bool

	// Observer is told of calls to servers, and that they become unavailable or available.
	// It may be nil.
	Observer *store.Observer
}

// called reports a call, of so many questions or ops.
func (c *Config) called(a attempt, questions int, err error) {
	if o := c.Observer; o != nil && o.Called != nil {
		o.Called(store.CallEvent{Questions: questions, Took: time.Since(a.start), Err: err})
	}
}

// until is a context with an earlier deadline, which does not end it: who waits is to look
// at the clock.
type until struct {
	context.Context

	deadline time.Time
}

// Deadline implements [context.Context].
func (u until) Deadline() (time.Time, bool) { return u.deadline, true }

// deadline returns when a decision must be made: after the timeout, or earlier if the
// caller's context ends before, or its decisions are bounded. It counts on the monotonic clock.
func deadline(ctx context.Context, timeout time.Duration) time.Time {
	now := time.Now()
	if own, ok := ctx.Deadline(); ok {
		timeout = min(timeout, own.Sub(now))
	}
	if all, ok := within.When(ctx); ok {
		timeout = min(timeout, all.Sub(now))
	}
	return now.Add(timeout)
}

// ended returns the error of a context that has ended, or whose deadline has come: its
// own timer may be late.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}
