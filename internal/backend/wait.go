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
// order, under all plans of the limiter. After an error the decision is the last refusal, if there was one. Only the
// first of a line asks the store: a thousand that wait for a key are one question at a time.
func (l *Limiter) Wait(ctx context.Context, key string, n int64, decision *Decision) error {
	if ctx == nil || n <= 0 {
		return malformed(ctx, n, 1)
	}
	n = min(n, step.MaxInt)
	policies, err := l.Of(key)
	if err != nil {
		return err
	}
	// Of what is always decided in the same way, a wait would change nothing.
	if policies.Constant || n > policies.Max {
		err = l.Decide(ctx, step.Allow, key, n, decision)
		if err == nil && !decision.Allowed {
			err = store.ErrNever
		}
		return err
	}
	err = ctx.Err()
	if err == nil {
		err = l.lines.enter(ctx, key)
	}
	if err != nil {
		l.tellGone(ctx, n, err)
		return err
	}
	// Also if an observer panics: whoever stands behind would wait for ever.
	defer l.lines.leave(key)
	// Who waits elsewhere may be quicker, so it may take more than one try.
	for {
		*decision = Decision{}
		err = l.Decide(ctx, step.Allow, key, n, decision)
		if err != nil || decision.Allowed {
			return err
		}
		err = sleep(ctx, decision.RetryAfter())
		if err != nil {
			return err
		}
	}
}

// tellGone tells the observer of who has gone before it was asked.
func (l *Limiter) tellGone(ctx context.Context, n int64, err error) {
	observer := l.stores.Observer
	if observer != nil && observer.Decided != nil {
		observer.Decided(ctx, store.DecisionEvent{Limiter: l.name, Units: n, Err: err})
	}
}

// sleep waits, unless it is known before that this is in vain.
func sleep(ctx context.Context, wait time.Duration) error {
	if wait == never {
		return store.ErrNever
	}
	end, ok := ctx.Deadline()
	if ok && time.Until(end) < wait {
		return fmt.Errorf("headgate: a wait of %v is too long: %w", wait, context.DeadlineExceeded)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() // it may have ended when the timer did
}

// lines has a line of callers for each key that somebody waits for. The first of a line has the turn. A key for which
// nobody waits has no line, so they take no more memory than their callers.
type lines struct {
	mu    sync.Mutex
	byKey map[string]*list.List // of chan struct{}, which are closed when their turn comes
}

// enter waits for the turn. If the context ends before, the caller has left the line.
func (ls *lines) enter(ctx context.Context, key string) error {
	ls.mu.Lock()
	line := ls.byKey[key]
	if line == nil {
		line = list.New()
		if ls.byKey == nil {
			ls.byKey = make(map[string]*list.List)
		}
		ls.byKey[key] = line
	}
	turn := make(chan struct{})
	place := line.PushBack(turn)
	if line.Len() == 1 {
		close(turn)
	}
	ls.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
	}
	err := ctx.Err() // it may have ended when the turn came
	if err != nil {
		ls.remove(key, place)
	}
	return err
}

// leave ends the turn of the first.
func (ls *lines) leave(key string) { ls.remove(key, nil) }

// remove takes a place, or the first, out of the line. If it was the first, the next has the turn. The caller stands in
// the line, so there is one.
func (ls *lines) remove(key string, place *list.Element) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	line := ls.byKey[key]
	first := line.Front()
	if place == nil {
		place = first
	}
	line.Remove(place)
	switch {
	case line.Len() == 0:
		delete(ls.byKey, key)
	case place == first:
		close(line.Front().Value.(chan struct{}))
	}
}
