package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queuePoll is after which time at most the first in a line asks again: slots may become free
// without this process.
const queuePoll = 200 * time.Millisecond

// AcquireWait is Acquire that waits until a slot is free, but for no longer than the context,
// and only if fewer than that many callers in this process wait for one of the key. If the key
// is full and that many wait, or when the context ends, the error is [ErrFull], as a
// [FullError]; it also wraps the cause of the context if that ended.
//
// Within a process, callers that wait for the same key are served in the order in which they
// came. They are woken when a slot is released that these Slots, or others that With made of
// them, have acquired. What is released otherwise, by other processes or by slots that were
// made separately, they find within 200 ms, and as long as the store takes to answer. Calls
// that do not wait, such as Acquire, may be faster.
func (s *Slots) AcquireWait(ctx context.Context, key string, waiters int) (*Slot, error) {
	return AcquireAllWait(ctx, waiters, Claim{Slots: s, Key: key})
}

// AcquireAllWait is [AcquireAll] that waits like [Slots.AcquireWait]. A caller waits for the
// claim that is full, and for one after the other if several are; only those count that wait
// for the same. It holds nothing meanwhile.
func AcquireAllWait(ctx context.Context, waiters int, claims ...Claim) (*Slot, error) {
	if ctx == nil {
		return nil, errContext
	}
	if err := checkTogether("claim", claims); err != nil {
		return nil, err
	}
	start := beginAll(claims)
	slot, err := acquireWait(ctx, waiters, claims)
	acquired(ctx, start, claims, slot, err)
	return slot, err
}

func acquireWait(ctx context.Context, most int, claims []Claim) (*Slot, error) {
	w := claimant{since: time.Now(), turn: make(chan struct{}, 1)}
	defer w.leave()
	// Those who wait come first.
	full := waitedFor(claims)
	for {
		if full == nil {
			slot, err := acquireAll(ctx, claims)
			if !errors.As(err, &full) {
				return slot, err
			}
		}
		if !w.stand(claims[full.Claim], most) {
			return nil, full
		}
		if err := w.wait(ctx); err != nil {
			return nil, fmt.Errorf("headgate: no slot while the caller waited: %w: %w", err, full)
		}
		full = nil
	}
}

// waitedFor returns the last refusal of the first of the claims for which somebody waits, or
// nil.
func waitedFor(claims []Claim) *FullError {
	for i, c := range claims {
		q := &c.Slots.state.queue
		if q.waiting.Load() == 0 {
			continue
		}
		q.mu.Lock()
		l := q.lines[c.Key]
		q.mu.Unlock()
		if l != nil {
			limit := c.Slots.Limit(c.Key)
			return &FullError{Occupancy{c.Slots.name, limit, limit}, i, SourceCache}
		}
	}
	return nil
}

// A queue is who waits for slots of one name.
type queue struct {
	waiting atomic.Int64

	mu    sync.Mutex
	lines map[string]*line // by key; none is empty
}

// A line is who waits for slots of a key, in the order in which they came. Only the first
// asks the store.
type line struct {
	key string
	all []*claimant
}

// A claimant stands in one line at a time.
type claimant struct {
	since time.Time
	turn  chan struct{} // has room for one; to ask again
	queue *queue
	line  *line
}

// stand makes the claimant stand in the line of a claim, unless it does already. It reports
// whether there was a place among the most who may wait.
func (w *claimant) stand(c Claim, most int) bool {
	q := &c.Slots.state.queue
	if w.line != nil && w.queue == q && w.line.key == c.Key {
		return true
	}
	w.leave()
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[c.Key]
	if l == nil {
		l = &line{key: c.Key}
	}
	if len(l.all) >= most {
		return false
	}
	if q.lines == nil {
		q.lines = make(map[string]*line)
	}
	q.lines[c.Key] = l
	place := len(l.all)
	for place > 0 && l.all[place-1].since.After(w.since) { // it comes from another line
		place--
	}
	l.all = slices.Insert(l.all, place, w)
	w.queue, w.line = q, l
	q.waiting.Add(1)
	l.wake() // a slot may have become free since the refusal, before anybody stood here
	return true
}

// leave leaves the line. The next is the first then, and asks.
func (w *claimant) leave() {
	if w.line == nil {
		return
	}
	q, l := w.queue, w.line
	w.queue, w.line = nil, nil
	q.mu.Lock()
	defer q.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(v *claimant) bool { return v == w })
	select {
	case <-w.turn: // it was that of this line
	default:
	}
	q.waiting.Add(-1)
	if len(l.all) == 0 {
		delete(q.lines, l.key)
	} else {
		l.wake()
	}
}

// wait waits until the claimant is to ask again, or until the context ends, and returns its
// cause.
func (w *claimant) wait(ctx context.Context) error {
	poll := time.NewTimer(queuePoll - rand.N(queuePoll/5)) //nolint:gosec // no secret
	defer poll.Stop()
	for {
		select {
		case <-w.turn:
		case <-poll.C:
			if !w.isFirst() {
				continue // wake says when it is
			}
		case <-ctx.Done():
		}
		return context.Cause(ctx) // also if it ended when the turn came
	}
}

func (w *claimant) isFirst() bool {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	return w.line.all[0] == w
}

// wake makes the first ask. The queue is locked.
func (l *line) wake() { l.all[0].wake() }

func (w *claimant) wake() {
	select {
	case w.turn <- struct{}{}:
	default: // it is going to ask anyway
	}
}

// freed is called when a slot of the key was given back.
func (q *queue) freed(key string) {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[key]; l != nil {
		l.wake()
	}
}

// closed is called when the slots were closed: everybody asks, and is told.
func (q *queue) closed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lines {
		for _, w := range l.all {
			w.wake()
		}
	}
}
