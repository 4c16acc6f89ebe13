package core

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/backend"
)

const (
	// mostMade is the most plans that are remembered: requests may name any.
	mostMade = 1024

	// mostEarlier is the most values of a plan that are remembered for Reset, beside the one that applies.
	mostEarlier = 15

	// askAgain is how long an answer of a function of plans applies before the function is asked again, and how long
	// nobody is told again of its errors.
	askAgain = time.Minute
)

// made are the plans that a function has made: limiters, or slots. When one half is full, it takes the place of the
// other, whose plans are forgotten.
type made[T any] struct {
	owner string // of the plans, for errors

	// ask makes a plan, or returns one of the known, which are those that it has made before, if that is the same.
	ask func(plan string, known []*T) (*T, error)

	mu            sync.Mutex
	recent, older map[string]*answer[T]
	nextTold      time.Time // of errors
}

// An answer is what a function has made of a plan.
type answer[T any] struct {
	value   *T
	earlier []*T        // what keys may have used, the latest last
	due     atomic.Bool // the function is to be asked again
	timer   *time.Timer
}

// plan returns a plan. If its answer is due, this caller asks for it, while others get the old one.
func (m *made[T]) plan(plan string) (*T, error) {
	m.mu.Lock()
	a := m.find(plan)
	if a != nil && !a.due.Load() {
		defer m.mu.Unlock()
		return a.value, nil
	}
	var known []*T
	if a != nil {
		known = append(slices.Clone(a.earlier), a.value)
		m.begin(a) // before the function is asked, which may panic
	}
	m.mu.Unlock()

	value, err := m.ask(plan, known)
	if err != nil {
		m.tell(err)
		if a == nil {
			return nil, fmt.Errorf("headgate: %s: its plan: %w", m.owner, err)
		}
		return known[len(known)-1], nil
	}
	m.remember(plan, value)
	return value, nil
}

// begin begins the time for which an answer applies. A timer ends it, so that who uses the answer need not look at a
// clock.
func (m *made[T]) begin(a *answer[T]) {
	a.due.Store(false)
	a.timer = time.AfterFunc(askAgain, func() { a.due.Store(true) })
}

// find returns the answer for a plan, or nil. One of the older half moves to the recent one.
func (m *made[T]) find(plan string) *answer[T] {
	if a := m.recent[plan]; a != nil {
		return a
	}
	a := m.older[plan]
	if a != nil {
		delete(m.older, plan)
		m.put(plan, a)
	}
	return a
}

// put adds an answer to the recent half. If that is full, the older half is forgotten.
func (m *made[T]) put(plan string, a *answer[T]) {
	if len(m.recent) >= mostMade/2 || m.recent == nil {
		for _, forgotten := range m.older {
			forgotten.timer.Stop()
		}
		m.older = m.recent
		m.recent = make(map[string]*answer[T])
	}
	m.recent[plan] = a
}

// remember notes what the function has made of a plan.
func (m *made[T]) remember(plan string, value *T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.find(plan)
	if a == nil {
		a = &answer[T]{value: value}
		m.begin(a)
		m.put(plan, a)
	}
	if a.value == value {
		return
	}
	a.earlier = slices.DeleteFunc(append(a.earlier, a.value), func(v *T) bool { return v == value })
	a.earlier = a.earlier[max(len(a.earlier)-mostEarlier, 0):]
	a.value = value
}

// tell tells the operator of an error of the function.
func (m *made[T]) tell(err error) {
	m.mu.Lock()
	now := time.Now()
	told := now.Before(m.nextTold)
	if !told {
		m.nextTold = now.Add(askAgain)
	}
	m.mu.Unlock()
	if !told {
		slog.Default().Warn("headgate: "+m.owner+": the function of its plans fails: plans that it has made stay as they are",
			slog.Any("error", err))
	}
}

// all returns what keys may have used.
func (m *made[T]) all() []*T {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*T
	for _, half := range []map[string]*answer[T]{m.recent, m.older} {
		for _, a := range half {
			all = append(append(all, a.earlier...), a.value)
		}
	}
	return all
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
	l := &Limiter{root: r, backend: r.shared.Documented(d.book, d.limit, plan)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if all := *d.plans.Load(); len(all) < mostMade {
		all = maps.Clone(all)
		all[plan] = l
		d.plans.Store(&all)
	}
	return l
}
