package backend

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// Wait charges n units as soon as they are admitted. Callers in this process that wait for one key are served in their
// order, under all plans of the limiter. After an error the decision is the last refusal, if there was one.
func (l *Limiter) Wait(ctx context.Context, key string, n int64, d *Decision) error {
	if ctx == nil || n <= 0 {
		return malformed(ctx, n, 1)
	}
	n = min(n, step.MaxInt)
	ps, err := l.Of(key)
	if err != nil {
		return err
	}
	if ps.Constant || n > ps.Max { // a wait would change nothing
		if err = l.Decide(ctx, step.Allow, key, n, d); err == nil && !d.Allowed {
			err = store.ErrNever
		}
		return err
	}
	if err = ctx.Err(); err == nil {
		err = l.lines.enter(ctx, key)
	}
	if err != nil {
		if o := l.store.Observer; o != nil && o.Decided != nil {
			o.Decided(ctx, store.DecisionEvent{Limiter: l.name, Units: n, Err: err})
		}
		return err
	}
	defer l.lines.leave(key)
	for {
		*d = Decision{}
		if err := l.Decide(ctx, step.Allow, key, n, d); err != nil || d.Allowed {
			return err
		}
		wait := d.RetryAfter()
		if wait == never {
			return store.ErrNever
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < wait {
			return fmt.Errorf("headgate: a wait of %v is too long: %w", wait, context.DeadlineExceeded)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if err := ctx.Err(); err != nil { // it may have ended when the timer did
			return err
		}
	}
}

// lines has a line of callers for each key that somebody waits for. The first of a line has the turn.
type lines struct {
	mu   sync.Mutex
	keys map[string]*list.List // of chan struct{}, which are closed when their turn comes
}

// enter waits for the turn. If the context ends before, the caller has left the line.
func (t *lines) enter(ctx context.Context, key string) error {
	t.mu.Lock()
	line := t.keys[key]
	if line == nil {
		line = list.New()
		if t.keys == nil {
			t.keys = make(map[string]*list.List)
		}
		t.keys[key] = line
	}
	turn := make(chan struct{})
	place := line.PushBack(turn)
	if line.Len() == 1 {
		close(turn)
	}
	t.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
	}
	err := ctx.Err() // it may have ended when the turn came
	if err != nil {
		t.remove(key, place)
	}
	return err
}

// leave ends the turn of the first.
func (t *lines) leave(key string) { t.remove(key, nil) }

// remove takes a place, or the first, out of the line. If it was the first, the next has the turn.
func (t *lines) remove(key string, place *list.Element) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.keys[key]
	first := line.Front()
	if place == nil {
		place = first
	}
	line.Remove(place)
	switch {
	case line.Len() == 0:
		delete(t.keys, key)
	case place == first:
		close(line.Front().Value.(chan struct{}))
	}
}
