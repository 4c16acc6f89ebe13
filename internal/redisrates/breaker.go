package redisrates

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxFailures is how many calls in a row must fail for a server to be away.
	maxFailures = 3

	// maxSilence is for how many Timeouts a server may answer nothing. It is more than one, so that no single answer
	// that is late makes it away.
	maxSilence = 2

	// minPause is the pause before the first probe. It doubles from one to the next, up to maxPause.
	minPause = 50 * time.Millisecond
	maxPause = time.Second / 2
)

// A breaker keeps decisions from waiting for a server that does not answer. While it is open, one question at a time is
// the probe. If that is answered, the store tries each command of the scripts before it closes the breaker: a server
// that is full or read-only, or permits too little, answers some questions.
//
// An error that the server replied opens it, and so do failed calls in a row. One that ran out of time counts only if
// the server has answered nothing since it was sent, and opens it only when that has lasted for maxSilence: slow
// questions of some callers must not end the answers to others.
type breaker struct {
	open     atomic.Bool
	failures atomic.Int32  // in a row
	answers  atomic.Uint64 // that the server has given

	mu      sync.Mutex
	reason  error
	probing bool
	failing bool // of the probe
	pause   time.Duration
	due     time.Time // the next probe
	closed  time.Time // for the last time

	// Of the calls in a row that ran out of time: when the first was sent, and how many answers the server had given.
	silentSince time.Time
	silentAt    uint64
}

// admit reports whether a question may be sent, and whether it is the probe: then release must follow.
func (b *breaker) admit(now time.Time) (probe, ok bool) {
	if !b.open.Load() {
		return false, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		return false, true
	}
	if b.probing || now.Before(b.due) {
		return false, false
	}
	b.probing, b.failing = true, false
	return true, true
}

// release notes the end of a probe. If it failed, the next comes after a longer pause, give or take a quarter, so that the
// processes of a service do not all come back at once.
func (b *breaker) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probing = false; b.failing {
		b.pause = min(2*b.pause, maxPause)
		b.wait()
	}
}

func (b *breaker) wait() {
	b.due = time.Now().Add(b.pause + rand.N(b.pause/2) - b.pause/4)
}

// answered notes an answer.
func (b *breaker) answered() {
	b.answers.Add(1)
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

// tried notes whether a server that has answered the probe does all that is asked of it, and reports whether it is
// back.
func (b *breaker) tried(err error) (back bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.reason = err
		b.failing = true
		return false
	}
	b.reason = nil
	b.silentSince = time.Time{}
	b.closed = time.Now()
	return b.open.Swap(false)
}

// failed notes that a call has failed, until the sending of which the server had given so many answers. It reports whether
// the server is away since then, which a silence makes it that is so long.
func (b *breaker) failed(sent time.Time, answered uint64, err error, silence time.Duration) (away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	silent := outOfTime(err)
	if silent {
		switch answers := b.answers.Load(); {
		case answers != answered:
			return false
		case answers != b.silentAt, b.silentSince.IsZero():
			b.silentAt, b.silentSince = answers, sent
			b.failures.Store(0)
		case sent.Before(b.silentSince):
			b.silentSince = sent
		}
	}
	if b.open.Load() {
		b.reason, b.failing = err, true
		return false
	}
	if b.failures.Add(1) < maxFailures && !replied(err) || silent && time.Since(b.silentSince) < silence {
		return false
	}
	b.reason = err
	if time.Since(b.closed) > maxPause {
		b.pause = minPause
	} else { // a fault that comes and goes, such as too little memory
		b.pause = min(2*b.pause, maxPause)
	}
	b.wait()
	b.open.Store(true)
	return true
}

// away returns why the server is not asked, or nil.
func (b *breaker) away() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reason
}

// outOfTime reports whether an error says only that there was no answer yet.
func outOfTime(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
