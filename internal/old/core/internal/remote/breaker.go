package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxFailures is how many calls in a row must fail for a server to be unavailable.
	MaxFailures = 3

	// MaxSilence is for how many Timeouts a server may answer nothing. It is more than
	// one, so that no single answer that is late makes it unavailable.
	MaxSilence = 2

	// MinProbePause is the pause before the first probe. It doubles from one to the next.
	MinProbePause = 50 * time.Millisecond

	// MaxProbePause is the longest pause before a probe.
	MaxProbePause = time.Second / 2
)

// A breaker keeps decisions from waiting for a server that does not answer. While it is
// open, probes are sent in the background; only the success of one closes it.
//
// Failed calls in a row open it. One that ran out of time counts only if the server has
// answered nothing since it was sent, neither to it nor to another, and opens the breaker
// only when that has lasted for MaxSilence: otherwise slow questions of some callers would
// end the answers to others.
type breaker struct {
	failures atomic.Int32 // in a row
	open     atomic.Bool

	mu     sync.Mutex
	reason error
	since  time.Time

	// Of the calls in a row that ran out of time: when the first was sent, and how many
	// answers the server had given.
	silentSince time.Time
	answers     uint64
}

func (b *breaker) allows() bool { return !b.open.Load() }

// An attempt is a call that was sent.
type attempt struct {
	server  *Server
	breaker *breaker
	part    int
	start   time.Time
	answers uint64 // of the server until then
}

// attempt notes that a call is sent. It must be reported.
func (s *Server) attempt(b *breaker, part int) attempt {
	return attempt{s, b, part, time.Now(), s.answers.Load()}
}

// fail counts a failure and reports whether it opened the breaker, which a silence does
// that is so long.
func (b *breaker) fail(a attempt, err error, silence time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	silent := ranOutOfTime(err)
	if silent {
		switch answers := a.server.answers.Load(); {
		case answers != a.answers:
			return false
		case answers != b.answers, b.silentSince.IsZero():
			b.answers, b.silentSince = answers, a.start
			b.failures.Store(0)
		case a.start.Before(b.silentSince):
			b.silentSince = a.start
		}
	}
	if b.open.Load() {
		b.reason = err
		return false
	}
	if b.failures.Add(1) < MaxFailures || silent && time.Since(b.silentSince) < silence {
		return false
	}
	b.reason, b.since = err, time.Now()
	b.open.Store(true)
	return true
}

// ranOutOfTime reports whether an error says only that there was no answer yet.
func ranOutOfTime(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

func (b *breaker) succeed() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

// note notes the newest failure.
func (b *breaker) note(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reason = err
}

func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures.Store(0)
	b.reason, b.since, b.silentSince = nil, time.Now(), time.Time{}
	b.open.Store(false)
}

// A watch opens and closes the breakers of servers.
type watch struct {
	timeout time.Duration
	probe   func(ctx context.Context, part int) error
	changed func(reason error)
}

func newWatch(probe func(ctx context.Context, part int) error, c Config) watch {
	w := watch{c.Timeout, probe, func(error) {}}
	if o := c.Observer; o != nil && o.Changed != nil {
		w.changed = o.Changed
	}
	return w
}

// report records how a call ended, and starts to probe if that opens the breaker.
func (w *watch) report(a attempt, failure error) {
	switch {
	case failure == nil:
		a.server.answers.Add(1)
		a.breaker.succeed()
	case errors.Is(failure, ErrUnsent):
	case a.breaker.fail(a, failure, MaxSilence*w.timeout):
		w.changed(failure)
		w.probeAfter(a, MinProbePause)
	}
}

// probeAfter probes after the pause, give or take a quarter, so that the processes of
// a service do not all come back at once.
func (w *watch) probeAfter(a attempt, pause time.Duration) {
	jitter := time.Duration(rand.Int64N(int64(pause)/2)) - pause/4
	time.AfterFunc(pause+jitter, func() {
		switch err := w.probe(context.Background(), a.part); {
		case err == nil:
			a.server.answers.Add(1)
			a.breaker.close()
			w.changed(nil)
		case !errors.Is(err, ErrGone):
			a.breaker.note(err)
			w.probeAfter(a, min(2*pause, MaxProbePause))
		}
	})
}

// State is whether the servers of a store are used.
type State struct {
	// Away means that a server is unavailable, so decisions are
	// made without it.
	Away   bool
	Since  time.Time // the time of the last change; zero if there was none
	Reason error     // the newest failure; nil if it is not away
}

// StateOf returns the state of servers. If any is away, it is the state of that one.
func StateOf(servers []*Server) State {
	var all State
	for _, server := range servers {
		if one := server.limits.state(); one.Away && !all.Away || one.Away == all.Away && one.Since.After(all.Since) {
			all = one
		}
	}
	return all
}

func (b *breaker) state() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return State{b.open.Load(), b.since, b.reason}
}
