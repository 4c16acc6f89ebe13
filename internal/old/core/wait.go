package core

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Wait waits until one unit is admitted. It is short for WaitN with 1.
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN waits until n units are admitted, and charges them. It fails early if the context's
// deadline would pass first, with an error that wraps context.DeadlineExceeded. It fails with the
// context's error if the context ends meanwhile, and with [ErrNever] if waiting cannot help. Then
// nothing was charged, and the decision is the last refusal, if there was one.
//
// Within a process, calls that wait for the same key are served in the order in which they were
// made. The first in line calls the store, also for the calls behind it that wait for one unit. So
// a line costs few calls. Such a call does not end with the context, but as soon as the store
// answers.
//
// A limiter and the plans that [Limiter.With] made of it have one line: a call may wait behind one
// of a slower plan. There is no order among limiters that were made separately, or among processes.
// Calls that do not wait, such as Allow, may overtake calls that wait.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Decision, error) {
	if ctx == nil {
		return Decision{}, errContext
	}
	if n <= 0 {
		return Decision{}, ErrCost
	}
	start := begin(l.observer)
	if err := ctx.Err(); err != nil {
		return Decision{}, l.gaveUp(ctx, start, n, err)
	}
	if n > l.max || l.constant { // waiting in line would change nothing
		d, err := l.AllowN(ctx, key, n)
		if err == nil && !d.Allowed {
			err = ErrNever
		}
		return d, err
	}
	w := &waiter{limiter: l, n: n, woken: make(chan struct{}, 1)}
	if err := l.turns.enter(ctx, key, w); err != nil {
		return Decision{}, l.gaveUp(ctx, start, n, err)
	}
	if w.served != nil {
		c := Charge{Limiter: l, Key: key, N: n}
		d := decisionOf(w.served, c)
		if l.observer != nil {
			decided(ctx, l.observer, start, w.served, nil, c)
		}
		if err := ctx.Err(); err != nil { // it may have ended at that moment
			_ = d.Refund(context.WithoutCancel(ctx))
			return Decision{}, err
		}
		return d, nil
	}
	defer l.turns.leave(key, w)
	for {
		d, err := l.allowLine(ctx, Charge{Limiter: l, Key: key, N: n})
		if err != nil || d.Allowed {
			return d, err
		}
		if d.RetryAfter == Never {
			return d, ErrNever
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < d.RetryAfter {
			return d, fmt.Errorf("headgate: a wait of %v is too long: %w", d.RetryAfter, context.DeadlineExceeded)
		}
		timer := time.NewTimer(d.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if err := ctx.Err(); err != nil { // it may have ended when the timer did
			return d, err
		}
	}
}

// allowLine is AllowN of the first in line, who asks for those behind as well, unless it
// makes a difference whether units are charged together.
func (l *Limiter) allowLine(ctx context.Context, c Charge) (Decision, error) {
	extra := l.turns.behind(c.Key, l)
	together := func(p Policy) bool { return p.numbers.Algorithm == step.MinInterval }
	if extra == 0 || slices.ContainsFunc(l.policies, together) {
		return l.AllowN(ctx, c.Key, c.N)
	}
	// What was charged for others must not be lost because this caller has gone.
	ctx = context.WithoutCancel(ctx)
	d, extra, err := l.allowExtra(ctx, c, extra, false)
	if err != nil {
		return Decision{}, err
	}
	served := d // of one unit each
	if left := extra - l.turns.serve(c.Key, l, extra, &served.result); left > 0 {
		surplus := decisionOf(&d.result, Charge{Limiter: l, Key: c.Key, N: left})
		_ = surplus.Refund(ctx) // they have gone meanwhile
	}
	return d, nil
}

// gaveUp reports that a call ended before its first attempt.
func (l *Limiter) gaveUp(ctx context.Context, start time.Time, n int64, err error) error {
	if l.observer != nil {
		decided(ctx, l.observer, start, new(store.Result), err, Charge{Limiter: l, N: n})
	}
	return err
}

// turns has a line of callers for each key that somebody waits for.
type turns struct {
	mu   sync.Mutex
	keys map[string]*list.List // of waiters; none is empty, and the first has the turn
}

type waiter struct {
	place   *list.Element // in the line
	limiter *Limiter
	n       int64
	woken   chan struct{} // gets an element when the waiter is served, or has the turn
	served  *store.Result // by the first in line; nil if it has to ask itself
}

// enter waits until the waiter has the turn or is served. If the context ends before, the
// waiter has left the line.
func (t *turns) enter(ctx context.Context, key string, w *waiter) error {
	t.mu.Lock()
	line := t.keys[key]
	if line == nil {
		line = list.New()
		if t.keys == nil {
			t.keys = make(map[string]*list.List)
		}
		t.keys[key] = line
		w.woken <- struct{}{}
	}
	w.place = line.PushBack(w)
	t.mu.Unlock()
	select {
	case <-w.woken:
	case <-ctx.Done():
	}
	err := ctx.Err() // it may have ended when the turn came
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.served != nil {
		return nil
	}
	t.remove(key, w)
	return err
}

// leave ends the turn of the first.
func (t *turns) leave(key string, w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(key, w)
}

// remove takes a waiter out of the line. If it was the first, the next has the turn.
func (t *turns) remove(key string, w *waiter) {
	line := t.keys[key]
	hadTurn := line.Front() == w.place
	line.Remove(w.place)
	switch {
	case line.Len() == 0:
		delete(t.keys, key)
	case hadTurn:
		waiterAt(line.Front()).woken <- struct{}{}
	}
}

func waiterAt(e *list.Element) *waiter {
	return e.Value.(*waiter)
}

// behind returns how many of those right behind the first wait for one unit of the same
// limiter.
func (t *turns) behind(key string, l *Limiter) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return alike(t.keys[key], l)
}

// serve gives one unit each to those that behind counts, as many as there are, and returns
// how many.
func (t *turns) serve(key string, l *Limiter, units int64, r *store.Result) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.keys[key]
	n := min(alike(line, l), units)
	for range n {
		w := waiterAt(line.Front().Next())
		line.Remove(w.place)
		w.served = r
		w.woken <- struct{}{}
	}
	return n
}

// alike returns how many of the line can be served with its first.
func alike(line *list.List, l *Limiter) (n int64) {
	for e := line.Front().Next(); e != nil; e = e.Next() {
		if w := waiterAt(e); w.limiter != l || w.n != 1 {
			break
		}
		n++
	}
	return n
}
