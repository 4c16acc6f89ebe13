package core

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/core/store"
)

// Wait waits until one unit is admitted. It is short for WaitN with 1.
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN waits until n units are admitted, and charges them. It fails early with an
// error that wraps context.DeadlineExceeded if the context's deadline would pass first,
// with the context's error if it ends meanwhile, and with [ErrNever] if waiting cannot
// help. Then nothing was charged, and the decision is the last refusal, if there was one.
//
// Within a process, calls that wait for the same key are served in the order in which
// they were made, one of them calling the store at a time. That holds for a limiter and
// the plans that [Limiter.With] made of it, together: a call may wait behind one of a
// slower plan. There is no order among limiters that were made separately, among
// processes, or between calls that wait and those that do not, such as Allow.
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
	leave, err := l.turns.enter(ctx, key)
	if err != nil {
		return Decision{}, l.gaveUp(ctx, start, n, err)
	}
	defer leave()
	for {
		d, err := l.AllowN(ctx, key, n)
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

// gaveUp reports that a call ended before its first attempt.
func (l *Limiter) gaveUp(ctx context.Context, start time.Time, n int64, err error) error {
	if l.observer != nil {
		decided(ctx, l.observer, start, new(store.Result), err, Charge{Limiter: l, N: n})
	}
	return err
}

// turns admits one waiter per key at a time. The runtime queues the others on the
// channel in the order of their arrival.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

type turn struct {
	token chan struct{} // holds one element while a call has the turn
	users int           // calls that have the turn or wait for it
}

func (t *turns) enter(ctx context.Context, key string) (leave func(), err error) {
	t.mu.Lock()
	k := t.keys[key]
	if k == nil {
		if t.keys == nil {
			t.keys = make(map[string]*turn)
		}
		k = &turn{token: make(chan struct{}, 1)}
		t.keys[key] = k
	}
	k.users++
	t.mu.Unlock()

	done := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(t.keys, key)
		}
	}
	select {
	case k.token <- struct{}{}:
		leave = func() { <-k.token; done() }
	case <-ctx.Done():
		leave = done
	}
	if err := ctx.Err(); err != nil { // it may have ended when the turn came
		leave()
		return nil, err
	}
	return leave, nil
}
