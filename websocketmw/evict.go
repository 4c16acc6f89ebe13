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
func (g *Guard) makeRoom(ctx context.Context, socket *Socket, admission *engine.Admission) bool {
	for i, granted := range admission.Decision.Slots() {
		if granted.Remaining >= 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, searchTimeout)
		defer cancel()
		var oldest candidate
		// Nobody is enough: another server may have an older one. Who does not answer in time is left out.
		// The i-th claim is of the i-th rule, as rules of this guard have no Skip.
		_, _ = g.indexes[i].announce(ctx, admission.Claims[i].Key, order{Do: doOffer}, func(found answer) bool {
			if found.Oldest.Age > oldest.Age {
				oldest = found.Oldest
			}
			return false
		})
		if oldest.Guard == "" {
			g.rules.Refuse(admission, i)
			return false
		}
		// Not yet: the handler may refuse the handshake.
		socket.evicts = &eviction{&g.indexes[i], admission.Claims[i], order{Do: doEvict, Evicts: oldest}}
	}
	return true
}

// oldest returns the oldest socket of a topic that holds its slot, if it may be evicted.
func (x *index) oldest(topic string, announcedAt time.Time) candidate {
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	for socket := range x.all(topic) {
		if !socket.holdsSlot {
			continue
		}
		age := announcedAt.Sub(socket.beganAt)
		if age >= x.guard.evictAge {
			return candidate{x.guard.id, socket.number, age.Microseconds() + 1}
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
	for socket := range x.all(topic) {
		if socket.number == number && socket.holdsSlot {
			socket.holdsSlot = false
			return socket
		}
	}
	return nil
}

// evict is called when the 101 of a newcomer is written. It evicts the candidate if the key still holds more than its
// limit. If no server confirms it, the newcomer is closed.
func (g *Guard) evict(newcomer *Socket) {
	eviction := newcomer.evicts
	ctx, cancel := context.WithTimeout(newcomer.Context(), answerTimeout)
	defer cancel()
	claim := &eviction.claim
	held, err := claim.Slots.Count(ctx, claim.Key)
	if err == nil && held <= claim.Slots.Limit(claim.Key) || newcomer.Context().Err() != nil {
		return // somebody has left
	}
	done := false
	_, _ = eviction.index.announce(ctx, claim.Key, eviction.order, func(reply answer) bool {
		done = reply.Done
		return done
	})
	// Without an answer the other socket may be open, and have its slot: one of the two has to go.
	if !done {
		g.release(newcomer)
		newcomer.close(ErrEvicted, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}

// giveUp closes a newcomer whose client has left before the 101. It evicts nobody.
func (g *Guard) giveUp(socket *Socket) {
	g.release(socket)
	socket.close(nil, frames.CodeTryAgain, "the handshake was given up; try again")
}
