package redisrates

import (
	"sync"
	"sync/atomic"
	"time"
)

// looksInTimeout is how often in a Timeout the clock is looked at.
const looksInTimeout = 8

// A pauses notices that this process itself was stopped: by a debugger, a virtual machine that moves, or a machine
// that is overloaded. It looks at the clock at short intervals. If one took twice as long as it should, an answer that
// did not come may be the fault of this process, and the time of the stop is no part of a Timeout. It looks for two
// Timeouts after a call was sent.
type pauses struct {
	interval  time.Duration
	looksLeft atomic.Int32 // before it rests

	mu        sync.Mutex
	lastLook  time.Time
	pauseEnd  time.Time // of the latest
	lastPause time.Duration
	timer     *time.Timer
}

// watch is called before anything whose time is bounded. Its timer is one for all calls of a store, and rests while
// there are none: an idle process is never woken.
func (p *pauses) watch(now time.Time) {
	if p.looksLeft.Load() == 2*looksInTimeout { // nearly always, on a busy server: no lock
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looksLeft.Swap(2*looksInTimeout) > 0 {
		return
	}
	// It has rested: how long ago the last look was says nothing.
	p.lastLook = now
	if p.timer == nil {
		p.timer = time.AfterFunc(p.interval, p.tick)
	} else {
		p.timer.Reset(p.interval)
	}
}

// tick looks at the clock, and goes on until nothing was watched for two Timeouts.
func (p *pauses) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.look()
	if p.looksLeft.Add(-1) > 0 {
		p.timer.Reset(p.interval)
	}
}

// look notes a stop, if the last look is longer ago than it should be. The lock is held.
func (p *pauses) look() {
	now := time.Now()
	passed := now.Sub(p.lastLook)
	if passed >= 2*p.interval {
		p.pauseEnd = now
		p.lastPause = passed - p.interval
	}
	p.lastLook = now
}

// since returns for how long this process was stopped after a time at which it was watched. One interval of that is not
// counted, as nobody knows when in it the stop began.
func (p *pauses) since(start time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looksLeft.Load() > 0 { // the timer may be as late as everything else
		p.look()
	}
	return max(min(p.lastPause, p.pauseEnd.Sub(start)), 0)
}
