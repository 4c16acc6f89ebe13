package redisrates

import (
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
// the probe. If that is answered, the line tries each command of the scripts before it closes the breaker: a server
// that is full or read-only, or permits too little, answers some questions.
//
// An error that the server replied opens it, and so do failed calls in a row. One that ran out of time counts only if
// the server has answered nothing since it was sent, and opens it only when that has lasted for maxSilence: slow
// questions of some callers must not end the answers to others.
//
//	closed ── it replies an error, or 3 calls fail in a row; by silence, for 2 Timeouts ──▶ open
//	open ──── after a pause, one question ──▶ probing
//	probing ─ it is answered, and all commands of the scripts work ──▶ closed
//	probing ─ else ──▶ open, with twice the pause, up to half a second
type breaker struct {
	open        atomic.Bool
	failures    atomic.Int32  // in a row
	answerCount atomic.Uint64 // of the server

	mu           sync.Mutex
	reason       error // why it is open
	retired      bool  // it opens no more
	probing      bool
	probeFailed  bool
	pause        time.Duration
	nextProbe    time.Time
	lastRecovery time.Time

	// Of the calls in a row that ran out of time: when the first was sent, and how many answers the server had given.
	silenceStart   time.Time
	silenceAnswers uint64
}

// admit reports whether a question may be sent, and whether it is the probe: then release must follow. Without a fault
// it takes one load, and no lock: each decision passes here.
func (b *breaker) admit(now time.Time) (probe, ok bool) {
	if !b.open.Load() {
		return false, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() {
		return false, true
	}

	// Who is not the probe has its answer from the failure policy at once.
	if b.probing || now.Before(b.nextProbe) {
		return false, false
	}
	b.probing = true
	b.probeFailed = false
	return true, true
}

// release notes the end of a probe. If it failed, the next comes after a longer pause.
func (b *breaker) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if b.probeFailed {
		b.pause = min(2*b.pause, maxPause)
		b.wait()
	}
}

// wait sets when the next probe is: give or take a quarter, so that the processes of a service do not all come back at
// once.
func (b *breaker) wait() {
	b.nextProbe = time.Now().Add(b.pause + rand.N(b.pause/2) - b.pause/4)
}

// answered notes an answer.
func (b *breaker) answered() {
	b.answerCount.Add(1)
	if b.failures.Load() != 0 { // nearly never: else each answer would write what other processors read
		b.failures.Store(0)
	}
}

// tried notes whether a server that has answered the probe does all that is asked of it, and reports whether it is
// back.
func (b *breaker) tried(err error) (back bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired { // it was closed then
		return false
	}
	if err != nil {
		b.reason = err
		b.probeFailed = true
		return false
	}
	b.reason = nil
	b.silenceStart = time.Time{}
	b.lastRecovery = time.Now()
	return b.open.Swap(false)
}

// failed notes that a call has failed, until the sending of which the server had given so many answers. It reports
// whether the server is away since then, which a silence makes it that is so long.
func (b *breaker) failed(sent time.Time, answersBefore uint64, err error, silence time.Duration) (away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.retired {
		return false
	}
	silent := outOfTime(err)
	if silent {
		answers := b.answerCount.Load()
		switch {
		case answers != answersBefore: // it was only slow, or only for this call
			return false
		case answers != b.silenceAnswers, b.silenceStart.IsZero(): // a silence begins
			b.silenceAnswers = answers
			b.silenceStart = sent
			b.failures.Store(0)
		case sent.Before(b.silenceStart): // calls fail in another order than they were sent
			b.silenceStart = sent
		}
	}
	// It was the probe, or was in flight when the breaker opened: away it is already.
	if b.open.Load() {
		b.reason = err
		b.probeFailed = true
		return false
	}

	// An error that the server replied is certain, so one is enough. A connection that breaks may be one of many.
	few := b.failures.Add(1) < maxFailures && !replied(err)
	tooShort := silent && time.Since(b.silenceStart) < silence
	if few || tooShort {
		return false
	}

	b.reason = err
	// The first pause is short, as most faults are over at once. One that comes back soon after the last gets no short
	// one.
	if time.Since(b.lastRecovery) > maxPause {
		b.pause = minPause
	} else { // a fault that comes and goes, such as too little memory
		b.pause = min(2*b.pause, maxPause)
	}
	b.wait()
	b.open.Store(true)
	return true
}

// retire closes the breaker of a server that is no longer asked, for good, and reports whether it was open.
func (b *breaker) retire() (wasOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = true
	b.reason = nil
	return b.open.Swap(false)
}

// away returns why the server is not asked, or nil. It is that of the latest probe: what was told first may have become
// another fault.
func (b *breaker) away() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reason
}
