package slots

import (
	"context"
	"slices"
	"sync"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
)

// A Memory is a [Registry] in this process, which knows everything. The zero value is ready. It takes memory for keys
// that hold slots only.
type Memory struct {
	mu        sync.Mutex
	pools     map[poolKey]*pool
	listeners Listeners
}

type poolKey struct{ name, key string }

// A pool is what is held of a key, and who waits in line, in order.
type pool struct {
	store  *Memory
	name   string
	key    hidden.Text // as a Slot may be printed
	held   int64
	line   []*waiter
	closed bool // Close has given all back
}

type waiter struct {
	most int64      // of its Acquisition
	done chan error // nil: it has a slot
}

// pool returns the pool of a key, which may be new.
func (s *Memory) pool(key poolKey) *pool {
	p := s.pools[key]
	if p == nil {
		p = &pool{store: s, name: key.name, key: hidden.Of(key.key)}
		if s.pools == nil {
			s.pools = make(map[poolKey]*pool)
		}
		s.pools[key] = p
	}
	return p
}

// Acquire implements [Registry].
func (s *Memory) Acquire(ctx context.Context, acquisition Acquisition) (Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pool := s.pool(poolKey{acquisition.Name, acquisition.Key})
	most := acquisition.Most()
	// Who would wait does not pass those in line for whom there is room whenever there is room for it. Who does not
	// wait passes them all, as between processes.
	behind := acquisition.Queue > 0 && slices.ContainsFunc(pool.line, func(w *waiter) bool { return w.most >= most })
	switch {
	case pool.held < most && !behind:
		pool.held++
	case len(pool.line) >= acquisition.Queue || most <= 0:
		pool.tidy()
		return Grant{}, &FullError{acquisition.Name, acquisition.Limit, step.SourceStore, nil}
	default:
		if err := pool.wait(ctx, &waiter{most, make(chan error, 1)}, acquisition.Limit); err != nil {
			return Grant{}, err
		}
	}
	return Grant{pool, pool.held, acquisition.Limit, step.SourceStore}, nil
}

// wait waits in line. The store's mu is held, but not meanwhile.
func (p *pool) wait(ctx context.Context, w *waiter, limit int64) error {
	p.line = append(p.line, w)
	p.store.mu.Unlock()
	select {
	case err := <-w.done:
		p.store.mu.Lock()
		return err
	case <-ctx.Done():
	}
	p.store.mu.Lock()
	i := slices.Index(p.line, w)
	if i >= 0 {
		p.line = slices.Delete(p.line, i, i+1)
		return &FullError{p.name, limit, step.SourceStore, context.Cause(ctx)}
	}
	return <-w.done // it got a slot, or the slots were closed, when the context ended
}

// Release implements [Hold]. The slot goes to the first in line whom it suits.
func (p *pool) Release() {
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	if p.closed {
		return
	}
	p.held--
	i := slices.IndexFunc(p.line, func(w *waiter) bool { return p.held < w.most })
	if i >= 0 {
		p.held++
		p.line[i].done <- nil
		p.line = slices.Delete(p.line, i, i+1)
	}
	p.tidy()
}

// tidy forgets a key of which nothing is held.
func (p *pool) tidy() {
	if p.held == 0 && len(p.line) == 0 && !p.closed {
		delete(p.store.pools, poolKey{p.name, p.key.Reveal()})
	}
}

// Lost implements [Hold].
func (*pool) Lost() <-chan struct{} { return nil }

// Count implements [Registry].
func (s *Memory) Count(_ context.Context, name, key string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pool := s.pools[poolKey{name, key}]
	if pool != nil {
		return pool.held, nil
	}
	return 0, nil
}

// Close implements [Registry].
func (s *Memory) Close(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, pool := range s.pools {
		if name != "" && name != key.name {
			continue
		}
		pool.closed = true
		for _, w := range pool.line {
			w.done <- ErrClosed
		}
		pool.line = nil
		delete(s.pools, key)
	}
	return nil
}

// Topic implements [Noticer].
func (*Memory) Topic(_, key string) string { return key }

// Listen implements [Noticer].
func (s *Memory) Listen(name string, listen func(Heard) NoticeAnswer) (stop func()) {
	return s.listeners.Add(name, listen)
}

// Announce implements [Noticer]. All listeners are in this process, and have answered when Tell returns.
func (s *Memory) Announce(_ context.Context, n Notice, answered func(string) bool) ([]int64, error) {
	answers, then := s.listeners.Tell(n.Name, Heard{Topic: n.Key, Text: n.Text})
	_ = slices.ContainsFunc(answers, answered)
	then()
	return nil, nil
}
