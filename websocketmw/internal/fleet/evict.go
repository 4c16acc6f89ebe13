// One socket for another, step by step. It may not close a connection: it asks the Socket for that.

package fleet

import (
	"context"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
)

// MakeRoom finds the socket to evict for a slot that was granted above the limit of a rule that
// evicts. The error is the refusal if no socket may be evicted.
func (f *Fleet) MakeRoom(ctx context.Context, h *Handshake, claims []core.Claim, slot *core.Slot) error {
	open := slot.Source() == core.SourceOpen // of some claims, everything is admitted
	if open && len(claims) == 1 {
		return nil
	}
	for i, c := range claims {
		if !c.OneMore {
			continue
		}
		o := slot.Occupancies()[i]
		if o.Held <= o.Limit {
			return nil
		}
		searching, cancel := context.WithTimeout(ctx, f.Search)
		defer cancel()
		oldest := f.boards[i].search(searching, c.Key)
		if oldest.Guard == "" {
			if open {
				return nil
			}
			o.Held--
			return &core.FullError{Occupancy: o, Claim: i, Source: slot.Source()}
		}
		h.place.evicts = &eviction{i, c, order{Do: doEvict, Code: f.config.EvictCode, Reason: f.config.EvictReason, Evicts: oldest}}
		return nil
	}
	return nil
}

// Opened is called when the 101 of a member is written. If it is to evict a socket for its slot, it
// does so in the background.
func (f *Fleet) Opened(m *Member) {
	if m.place != nil && m.place.evicts != nil {
		go f.takePlace(m)
	}
}

// takePlace evicts the socket that was offered if the key still holds more than its limit, or else
// has the newcomer shed.
func (f *Fleet) takePlace(m *Member) {
	e := m.place.evicts
	ctx, cancel := context.WithTimeout(m.socket.Context(), f.Ask)
	defer cancel()
	if held, err := e.claim.Slots.Count(ctx, e.claim.Key); err == nil && held <= e.claim.Slots.Limit(e.claim.Key) || m.socket.Ended() {
		return // somebody has left
	}
	done := false
	_, _ = f.boards[e.at].announce(ctx, e.claim.Key, e.order, func(a answer) bool {
		done = a.Done
		return done
	})
	if !done && !m.socket.Ended() {
		f.Release(m)
		m.socket.Surplus()
	}
}

// offer returns the oldest socket of a key on a board, if it may be evicted.
func (f *Fleet) offer(b *board, h store.Heard) offer {
	announced := time.Now().Add(-h.Age) // before the lock, which many may wait for
	f.mu.Lock()
	defer f.mu.Unlock()
	m := b.oldest(h.Topic)
	if m == nil {
		return offer{}
	}
	age := announced.Sub(m.place.admitted)
	if age < 0 || age < f.Settled {
		return offer{}
	}
	return offer{f.id, m.place.number, age.Microseconds() + 1}
}

// evict takes the slot back of the socket that was offered, which may have ended before. It returns
// what closes it and frees its slots, or nil.
func (f *Fleet) evict(b *board, topic string, o order) func() {
	m := f.withdraw(b, topic, o.Evicts.Number)
	if m == nil {
		return nil
	}
	return func() {
		m.slot.Release()
		m.socket.Evicted(o.Code, o.Reason)
	}
}

// withdraw returns a member that holds a slot, or nil, and takes its slot away. Until the socket ends, it
// stays on the boards, where a CloseAll finds it.
func (f *Fleet) withdraw(b *board, topic string, number int64) *Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := b.numbered(topic, number)
	if m != nil {
		m.slotless = true
	}
	return m
}
