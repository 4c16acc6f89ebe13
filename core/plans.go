package core

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/headgate/headgate/internal/backend"
	old "github.com/headgate/headgate/internal/old/core"
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
	l, err := r.with(policies)
	if err != nil {
		return &Limiter{r, backend.Faulty(r.standard.Name(), &invalid{fmt.Errorf("headgate: a plan of WithPlanFunc: %w", err)})}
	}
	return &Limiter{r, backend.Constant(l)}
}

func (m *made) all() []*Limiter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(slices.Collect(maps.Values(m.recent)), slices.Collect(maps.Values(m.older))...)
}

// documented are the plans that a document gives to a limiter.
type documented struct {
	book backend.Book
	name string
}

// Documented returns the limiter of that name in a document. It is for package limits.
func Documented(b backend.Book, name string) *Limiter {
	r := &root{book: &documented{b, name}}
	r.standard = &Limiter{r, backend.Documented(b, name, "")}
	return r.standard
}

func (d *documented) plan(r *root, plan string) *Limiter {
	return &Limiter{r, backend.Documented(d.book, d.name, plan)}
}

func (d *documented) all(key string) []*old.Limiter {
	v := d.book.View()
	return append(v.Limiters(d.name), v.Limiter(d.name, "", key))
}
