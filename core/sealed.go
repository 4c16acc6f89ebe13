package core

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/store"
)

// The names in this file are sealed: they have internal types, so only packages of headgate can use them.

// Backend returns the stores.
func (m *MemoryStore) Backend() *backend.Stores {
	m.once.Do(func() {
		rates := memory.New(m.MaxBytes)
		m.backend = &backend.Stores{Rates: rates, Memory: rates, Slots: new(slots.Memory)}
		for _, observer := range m.Observers {
			m.backend.Observer = m.backend.Observer.And(observer.Backend(nil))
		}
		o := m.backend.Observer
		if o != nil && o.Memory != nil {
			o.Memory(rates.Use)
		}
	})
	return m.backend
}

// Backend returns what is behind the limiter.
func (l *Limiter) Backend() *backend.Limiter { return l.backend }

// Backend returns what is behind the slots.
func (s *Slots) Backend() *backend.SlotLimit { return s.backend }

// Backend returns what is behind a decision. If from is not nil, d becomes its decision.
func (d *Decision) Backend(from *backend.Decision) *backend.Decision {
	if from != nil {
		d.backend = *from
		d.total(nil)
	}
	return &d.backend
}

// Backend returns what stores call: what package stats has set with from, or else the
// functions above.
func (o *Observer) Backend(from *store.Observer) *store.Observer {
	if o == nil {
		return nil
	}
	if from != nil {
		o.backend = from
	}
	if o.backend != nil {
		return o.backend
	}
	hooks := &store.Observer{Timed: o.Decided != nil || o.Acquired != nil, Released: o.Released, Changed: o.Changed}
	if o.Decided != nil {
		hooks.Decided = func(ctx context.Context, event store.DecisionEvent) {
			source := source(event.Source, event.Err)
			o.Decided(ctx, DecisionEvent{
				event.Limiter, event.Policy, event.Units, event.Allowed, event.ObserveOnly, source,
				event.Took, event.Err, event.Key,
			})
		}
	}
	if o.Settled != nil {
		hooks.Settled = func(ctx context.Context, e store.SettleEvent) { o.Settled(ctx, SettleEvent(e)) }
	}
	if o.Acquired != nil {
		hooks.Acquired = func(ctx context.Context, e store.SlotEvent) {
			o.Acquired(ctx, SlotEvent{e.Slots, e.Granted, e.ObserveOnly, source(e.Source, e.Err), e.Took, e.Err, e.Key})
		}
	}
	return hooks
}

// Documented returns a limiter whose policies are those of a limit of a document. It is for package limits.
func Documented(counts Store, b backend.Book, limit int, name string) *Limiter {
	r := &root{shared: backend.NewShared(counts.Backend(), name), document: &documented{book: b, limit: limit}}
	r.document.plans.Store(&map[string]*Limiter{})
	r.standard = &Limiter{root: r, backend: r.shared.Documented(b, limit, "")}
	return r.standard
}

// documented are the plans of a document, of which the first that are asked for are remembered.
type documented struct {
	book  backend.Book
	limit int // of the book

	mu    sync.Mutex
	plans atomic.Pointer[map[string]*Limiter]
}

func (d *documented) plan(r *root, plan string) *Limiter {
	limiter := (*d.plans.Load())[plan]
	if limiter != nil {
		return limiter
	}
	l := &Limiter{root: r, backend: r.shared.Documented(d.book, d.limit, plan)}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := *d.plans.Load()
	if len(all) < mostMade {
		all = maps.Clone(all)
		all[plan] = l
		d.plans.Store(&all)
	}
	return l
}

// DocumentedSlots returns the slots of that name in a document. It is for package limits.
func DocumentedSlots(counts Store, b backend.Book, inBook int, name string) *Slots {
	r := &slotsRoot{}
	r.standard = &Slots{r, backend.NewDocumentedSlotLimit(counts.Backend(), b, inBook, name)}
	return r.standard
}
