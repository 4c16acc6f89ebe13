package core

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
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
	answer := m.find(plan)
	if answer != nil && !answer.due.Load() {
		defer m.mu.Unlock()
		return answer.value, nil
	}
	var known []*T
	if answer != nil {
		known = append(slices.Clone(answer.earlier), answer.value)
		m.begin(answer) // before the function is asked, which may panic
	}
	m.mu.Unlock()

	value, err := m.ask(plan, known)
	if err != nil {
		m.tell(err)
		if answer == nil {
			return nil, fmt.Errorf("headgate: %s: its plan: %w", m.owner, err)
		}
		return known[len(known)-1], nil
	}
	m.remember(plan, value)
	return value, nil
}

// begin begins the time for which an answer applies. A timer ends it, so that who uses the answer need not look at a
// clock.
func (m *made[T]) begin(known *answer[T]) {
	known.due.Store(false)
	known.timer = time.AfterFunc(askAgain, func() { known.due.Store(true) })
}

// find returns the answer for a plan, or nil. One of the older half moves to the recent one.
func (m *made[T]) find(plan string) *answer[T] {
	known := m.recent[plan]
	if known != nil {
		return known
	}
	a := m.older[plan]
	if a != nil {
		delete(m.older, plan)
		m.put(plan, a)
	}
	return a
}

// put adds an answer to the recent half. If that is full, the older half is forgotten.
func (m *made[T]) put(plan string, known *answer[T]) {
	if len(m.recent) >= mostMade/2 || m.recent == nil {
		for _, forgotten := range m.older {
			forgotten.timer.Stop()
		}
		m.older = m.recent
		m.recent = make(map[string]*answer[T])
	}
	m.recent[plan] = known
}

// remember notes what the function has made of a plan.
func (m *made[T]) remember(plan string, value *T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.find(plan)
	if known == nil {
		known = &answer[T]{value: value}
		m.begin(known)
		m.put(plan, known)
	}
	if known.value == value {
		return
	}
	known.earlier = slices.DeleteFunc(append(known.earlier, known.value), func(v *T) bool { return v == value })
	known.earlier = known.earlier[max(len(known.earlier)-mostEarlier, 0):]
	known.value = value
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
		slog.Default().Warn("headgate: "+m.owner+": the function of its plans fails: "+
			"plans that it has made stay as they are", slog.Any("error", err))
	}
}

// all returns what keys may have used.
func (m *made[T]) all() []*T {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*T
	for _, half := range []map[string]*answer[T]{m.recent, m.older} {
		for _, known := range half {
			all = append(append(all, known.earlier...), known.value)
		}
	}
	return all
}
