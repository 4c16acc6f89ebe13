package websocketmw

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// An eviction is what a socket has to do for its slot: its key holds one more than its limit.
type eviction struct {
	index *index
	claim backend.Claim
	order order
}

// makeRoom finds the socket to evict for a slot that was granted above a limit. If there is none, the upgrade is
// refused.
func (g *Guard) makeRoom(ctx context.Context, s *Socket, a *engine.Admission) bool {
	for i, granted := range a.Decision.Slots() {
		if granted.Remaining >= 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, searchTimeout)
		defer cancel()
		var oldest candidate
		_, _ = g.indexes[i].announce(ctx, a.Claims[i].Key, order{Do: doFindOldest}, func(a answer) bool {
			if a.Oldest.Age > oldest.Age {
				oldest = a.Oldest
			}
			return false
		})
		if oldest.Guard == "" {
			g.rules.Refuse(a, i)
			return false
		}
		s.evicts = &eviction{&g.indexes[i], a.Claims[i], order{Do: doEvict, Evicts: oldest}}
	}
	return true
}

// oldest returns the oldest socket of a topic that holds its slot, if it may be evicted.
func (x *index) oldest(topic string, announcedAt time.Time) candidate {
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	for s := range x.all(topic) {
		if !s.holdsSlot {
			continue
		}
		if age := announcedAt.Sub(s.beganAt); age >= x.guard.evictAge {
			return candidate{x.guard.id, s.number, age.Microseconds() + 1}
		}
		break // the others are younger
	}
	return candidate{}
}

// takeSlot takes the slot of a candidate, and returns its socket, or nil if it holds none. Until the socket ends, it
// stays in the index.
func (x *index) takeSlot(topic string, number int64) *Socket {
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	for s := range x.all(topic) {
		if s.number == number && s.holdsSlot {
			s.holdsSlot = false
			return s
		}
	}
	return nil
}

// evict is called when the 101 of a newcomer is written. It evicts the candidate if the key still holds more than its
// limit. If no server confirms it, the newcomer is closed.
func (g *Guard) evict(newcomer *Socket) {
	e := newcomer.evicts
	ctx, cancel := context.WithTimeout(newcomer.Context(), answerTimeout)
	defer cancel()
	if held, err := e.claim.Slots.Count(ctx, e.claim.Key); err == nil && held <= e.claim.Slots.Limit(e.claim.Key) || newcomer.Context().Err() != nil {
		return // somebody has left
	}
	done := false
	_, _ = e.index.announce(ctx, e.claim.Key, e.order, func(a answer) bool {
		done = a.Done
		return done
	})
	if !done {
		g.release(newcomer)
		newcomer.close(ErrEvicted, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}

// giveUp closes a newcomer whose client has left before the 101. It evicts nobody.
func (g *Guard) giveUp(s *Socket) {
	g.release(s)
	s.close(nil, frames.CodeTryAgain, "the handshake was given up; try again")
}
