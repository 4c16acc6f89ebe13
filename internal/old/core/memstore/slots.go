package memstore

import (
	"context"
	"sync"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/store"
)

// slots counts the slots that are held. Its memory is bounded by their number: a key that
// holds none takes none.
type slots struct {
	mu    sync.Mutex
	pools map[string]*pool // by the name of the slots

	listeners store.Listeners
}

// A pool has the counts of one name. Closing the slots drops the pool. Holds release to
// the pool that they were acquired from.
type pool struct{ held map[string]int64 }

func (s *slots) pool(name string) *pool {
	p := s.pools[name]
	if p == nil {
		p = &pool{make(map[string]int64)}
		if s.pools == nil {
			s.pools = make(map[string]*pool)
		}
		s.pools[name] = p
	}
	return p
}

// A hold is one claim that was granted; a holds is several.
type hold struct {
	slots *slots
	pool  *pool
	key   hidden.Text
}

type holds []hold

// AcquireSlots implements [store.SlotStore]. It ignores the context, since it does not
// block.
func (s *Store) AcquireSlots(_ context.Context, claims []store.Claim) (store.Grant, error) {
	occupancies := make([]store.Occupancy, len(claims))
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	for i, c := range claims {
		o := &occupancies[i]
		o.Limit = c.Limit
		if p := s.slots.pools[c.Name]; p != nil {
			o.Held = p.held[c.Key]
		}
		if o.Held >= c.Most() {
			return store.Grant{}, &store.FullError{Claim: i, Occupancy: *o, Source: store.SourceStore}
		}
	}
	taken := make(holds, len(claims))
	for i, c := range claims {
		p := s.slots.pool(c.Name)
		p.held[c.Key]++
		occupancies[i].Held++
		taken[i] = hold{&s.slots, p, hidden.Of(c.Key)}
	}
	g := store.Grant{Source: store.SourceStore, Occupancies: occupancies}
	if len(taken) == 1 {
		g.Hold = &taken[0]
	} else {
		several := taken // only these are on the heap
		g.Hold = &several
	}
	return g, nil
}

// Release implements [store.Hold].
func (h *hold) Release() {
	h.slots.mu.Lock()
	defer h.slots.mu.Unlock()
	key := h.key.Reveal()
	if h.pool.held[key]--; h.pool.held[key] == 0 {
		delete(h.pool.held, key)
	}
}

// Lost implements [store.Hold]. It returns nil: no slot is ever lost.
func (*hold) Lost() <-chan struct{} { return nil }

// Release implements [store.Hold].
func (hs holds) Release() {
	for i := range hs {
		hs[i].Release()
	}
}

// Lost implements [store.Hold].
func (holds) Lost() <-chan struct{} { return nil }

// Shared implements [store.SlotStore]: this process alone knows the held slots.
func (*Store) Shared() bool { return false }

// Listen implements [store.Noticer].
func (s *Store) Listen(name string, listen func(store.Heard) store.Answer) (stop func()) {
	return s.slots.listeners.Add(name, listen)
}

// Topic implements [store.Noticer].
func (*Store) Topic(_, key string) string { return key }

// Announce implements [store.Noticer]. It returns when all have heard of the notice.
func (s *Store) Announce(_ context.Context, n store.Notice, heard func(string) bool) (silent []int64, err error) {
	enough := false
	for _, answer := range s.slots.listeners.Tell(n.Name, store.Heard{Topic: n.Key, Text: n.Text}) {
		enough = enough || answer.Text != "" && heard(answer.Text)
		if answer.Then != nil {
			answer.Then()
		}
	}
	return nil, nil
}

// CountSlots implements [store.SlotStore].
func (s *Store) CountSlots(_ context.Context, name, key string) (int64, error) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if p := s.slots.pools[name]; p != nil {
		return p.held[key], nil
	}
	return 0, nil
}

// CloseSlots implements [store.SlotStore].
func (s *Store) CloseSlots(_ context.Context, name string) error {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	delete(s.slots.pools, name)
	return nil
}
