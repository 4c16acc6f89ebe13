package core

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/backend"
)

// mostMade is the most plans of a function that are remembered: requests may name any.
const mostMade = 1024

// made are the limiters that a function of plans has given policies. When one half is full, it takes the place of the
// other, whose limiters are forgotten.
type made struct {
	find func(plan string) []Policy

	mu            sync.Mutex
	recent, older map[string]*Limiter
}

func (m *made) plan(r *root, plan string) *Limiter {
	m.mu.Lock()
	l := m.recent[plan]
	if l == nil {
		l = m.older[plan]
	}
	m.mu.Unlock()
	if l != nil {
		return l
	}
	l = m.make(r, plan)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.recent) >= mostMade/2 || m.recent == nil {
		m.recent, m.older = make(map[string]*Limiter), m.recent
	}
	m.recent[plan] = l
	return l
}

func (m *made) make(r *root, plan string) *Limiter {
	policies := m.find(plan)
	if policies == nil {
		return r.standard
	}
	l, err := r.limiter(policies)
	if err != nil {
		return &Limiter{r, r.shared.Faulty(&invalid{fmt.Errorf("headgate: a plan of WithPlanFunc: %w", err)})}
	}
	return l
}

func (m *made) all() []*Limiter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(slices.Collect(maps.Values(m.recent)), slices.Collect(maps.Values(m.older))...)
}

// documented are the plans of a document, of which the first that are asked for are remembered.
type documented struct {
	book  backend.Book
	limit int // of the book

	mu    sync.Mutex
	plans atomic.Pointer[map[string]*Limiter]
}

func (d *documented) plan(r *root, plan string) *Limiter {
	if l := (*d.plans.Load())[plan]; l != nil {
		return l
	}
	l := &Limiter{r, r.shared.Documented(d.book, d.limit, plan)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if all := *d.plans.Load(); len(all) < mostMade {
		all = maps.Clone(all)
		all[plan] = l
		d.plans.Store(&all)
	}
	return l
}

// Documented returns a limiter whose policies are those of a limit of a document. It is for package limits.
func Documented(s Store, b backend.Book, limit int, name string) *Limiter {
	r := &root{shared: backend.NewShared(s.Backend(), name), document: &documented{book: b, limit: limit}}
	r.document.plans.Store(&map[string]*Limiter{})
	r.standard = &Limiter{r, r.shared.Documented(b, limit, "")}
	return r.standard
}
