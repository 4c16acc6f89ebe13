package core

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Wait waits until one unit is admitted. It is short for WaitN with 1.
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN waits until n units are admitted, and charges them. It returns early with
// an error that wraps context.DeadlineExceeded if the context's deadline would
// pass first, with the context's error if it ends meanwhile, and with [ErrNever]
// if no waiting helps; then nothing was charged, and the decision is the last
// refusal.
//
// Those who wait for a key in this process are served in the order of their calls,
// one of them asking the store at a time. Between processes there is no order.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Decision, error) {
	if n <= 0 || n > l.max { // those in line need not be awaited for that
		d, err := l.AllowN(ctx, key, n)
		if err == nil {
			err = ErrNever
		}
		return d, err
	}
	leave, err := l.turns.enter(ctx, key)
	if err != nil {
		return Decision{}, err
	}
	defer leave()
	for {
		if err := ctx.Err(); err != nil {
			return Decision{}, err
		}
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
			return d, ctx.Err()
		}
	}
}

// turns lets one waiter for each key through at a time. The runtime queues the
// others on the channel in the order of their arrival.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

type turn struct {
	token chan struct{} // holds one element while somebody has the turn
	users int           // who has or awaits it
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
		return func() { <-k.token; done() }, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}
