package memstore

import (
	"context"
	"sync"

	"github.com/headgate/headgate/core"
)

// slots counts the slots that are held. Its memory is bounded by their number: a key that
// holds none takes none.
type slots struct {
	mu    sync.Mutex
	pools map[string]*pool // by the name of the slots
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
	key   string
}

type holds []hold

// AcquireSlots implements [core.SlotStore]. It ignores the context, since it does not
// block.
func (s *Store) AcquireSlots(_ context.Context, claims []core.Claim) (core.Grant, error) {
	occupancies := make([]core.Occupancy, len(claims))
	for i, c := range claims {
		occupancies[i] = core.Occupancy{Slots: c.Slots.Name(), Limit: c.Slots.Limit(c.Key)}
	}
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	for i, c := range claims {
		o := &occupancies[i]
		if p := s.slots.pools[o.Slots]; p != nil {
			o.Held = p.held[c.Key]
		}
		if o.Held >= o.Limit {
			return core.Grant{}, &core.FullError{Occupancy: *o, Claim: i, Source: core.SourceStore}
		}
	}
	taken := make(holds, len(claims))
	for i, c := range claims {
		p := s.slots.pool(occupancies[i].Slots)
		p.held[c.Key]++
		occupancies[i].Held++
		taken[i] = hold{&s.slots, p, c.Key}
	}
	g := core.Grant{Hold: taken, Source: core.SourceStore, Occupancies: occupancies}
	if len(taken) == 1 {
		g.Hold = &taken[0]
	}
	return g, nil
}

// Release implements [core.Hold].
func (h *hold) Release() {
	h.slots.mu.Lock()
	defer h.slots.mu.Unlock()
	if h.pool.held[h.key]--; h.pool.held[h.key] == 0 {
		delete(h.pool.held, h.key)
	}
}

// Lost implements [core.Hold]. It returns nil: no slot is ever lost.
func (*hold) Lost() <-chan struct{} { return nil }

// Release implements [core.Hold].
func (hs holds) Release() {
	for i := range hs {
		hs[i].Release()
	}
}

// Lost implements [core.Hold].
func (holds) Lost() <-chan struct{} { return nil }

// CountSlots implements [core.SlotStore].
func (s *Store) CountSlots(_ context.Context, of *core.Slots, key string) (int64, error) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if p := s.slots.pools[of.Name()]; p != nil {
		return p.held[key], nil
	}
	return 0, nil
}

// CloseSlots implements [core.SlotStore].
func (s *Store) CloseSlots(_ context.Context, of *core.Slots) error {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	delete(s.slots.pools, of.Name())
	return nil
}
