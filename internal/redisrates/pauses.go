package redisrates

import (
	"sync"
	"sync/atomic"
	"time"
)

// looks is how often in a Timeout the clock is looked at.
const looks = 8

// A pauses notices that this process itself was stopped: by a debugger, a virtual machine that moves, or a machine
// that is overloaded. It looks at the clock in short steps. If one took twice as long as it should, an answer that did
// not come may be the fault of this process, and the time of the stop is no part of a Timeout. It looks for two
// Timeouts after a call was sent.
type pauses struct {
	step time.Duration
	left atomic.Int32 // looks before it rests

	mu     sync.Mutex
	last   time.Time // of the looks
	ended  time.Time // of the latest stop
	length time.Duration
	timer  *time.Timer
}

// watch is called before anything whose time is bounded.
func (p *pauses) watch(now time.Time) {
	if p.left.Load() == 2*looks {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left.Swap(2*looks) > 0 {
		return
	}
	p.last = now
	if p.timer == nil {
		p.timer = time.AfterFunc(p.step, p.tick)
	} else {
		p.timer.Reset(p.step)
	}
}

func (p *pauses) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.look()
	if p.left.Add(-1) > 0 {
		p.timer.Reset(p.step)
	}
}

func (p *pauses) look() {
	now := time.Now()
	passed := now.Sub(p.last)
	if passed >= 2*p.step {
		p.ended = now
		p.length = passed - p.step
	}
	p.last = now
}

// since returns for how long this process was stopped after a time at which it was watched. A step of that is not
// counted, as nobody knows when in it the stop began.
func (p *pauses) since(start time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left.Load() > 0 {
		p.look()
	}
	return max(min(p.length, p.ended.Sub(start)), 0)
}
