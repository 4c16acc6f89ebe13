package websocketmw

import (
	"context"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// An eviction, as EvictOldest in config.go describes it, in the order of what happens and of this file:
//
//	the newcomer's guard                         all guards with such slots
//	-------------------------------------------|---------------------------------------------
//	Acquire   its slot is one above the limit  |
//	makeRoom  doOffer                          |  offer    the answer has the oldest socket
//	evict     the 101 is written: count again  |
//	          doEvict, if it is still above    |  giveWay  the answer is Done; the oldest leaves
//	leave     if no answer is Done             |
const (
	minEvictAge       = 10 * time.Second // of a socket that may be evicted
	searchTimeout     = time.Second      // for the oldest sockets of all servers
	evictOrderTimeout = time.Second      // for which an order to evict holds: well before nobody waits for its answer
)

// A candidate is a socket that may be evicted: the oldest of a guard. The zero candidate is none.
type candidate struct {
	Guard  string `json:"guard"`
	Number int64  `json:"number"`
	Age    int64  `json:"age"` // in microseconds, when the notice was announced: the clocks of servers differ
}

// An eviction is what a newcomer has to do for its slot: its key holds one more than its limit.
type eviction struct {
	index  *index
	claim  backend.Claim
	oldest candidate
}

// makeRoom finds the socket to evict for a slot that was granted above a limit: less than 0 remains then. If there is
// no such socket, the upgrade is refused.
func (g *Guard) makeRoom(ctx context.Context, newcomer *Socket, admission *engine.Admission) bool {
	isAbove := func(granted backend.PolicyAnswer) bool { return granted.Remaining < 0 }
	i := slices.IndexFunc(admission.Decision.Slots(), isAbove) // there is one at most: one rule may have EvictOldest
	if i < 0 {
		return true
	}
	index := &g.indexes[i]
	claim := admission.Claims[i]
	var oldest candidate
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	// Nobody is enough: another server may have an older one. Who does not answer in time is left out.
	_, _ = index.announce(ctx, claim.Key, order{Do: doOffer}, func(reply answer) (enough bool) {
		if reply.Oldest.Age > oldest.Age {
			oldest = reply.Oldest
		}
		return false
	})
	if oldest.Guard == "" {
		g.rules.Refuse(admission, i)
		return false
	}
	newcomer.evicts = &eviction{index, claim, oldest} // later: the handler may refuse the handshake
	return true
}

// offer returns the oldest socket of a topic that holds its slot, if it may be evicted.
func (x *index) offer(topic string, announcedAt time.Time) candidate {
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

// evict is called when the 101 of a newcomer is written. It evicts the candidate if the key still holds more than its
// limit. If no server confirms it, the newcomer is closed.
func (s *Socket) evict() {
	ctx, cancel := context.WithTimeout(s.Context(), answerTimeout)
	defer cancel()
	claim := &s.evicts.claim
	held, err := claim.Slots.Count(ctx, claim.Key)
	if err == nil && held <= claim.Slots.Limit(claim.Key) || s.Context().Err() != nil {
		return // somebody has left
	}
	done := false
	order := order{Do: doEvict, Evicts: s.evicts.oldest}
	_, _ = s.evicts.index.announce(ctx, claim.Key, order, func(reply answer) (enough bool) {
		done = reply.Done
		return done
	})
	// Without an answer the other socket may be open, and have its slot: one of the two has to go.
	if !done {
		s.leave(ErrEvicted, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}

// giveWay obeys an order to evict a socket, if that is of this guard. From here on the socket counts as one that holds
// no slot; it leaves in then, which is called once the newcomer can know why the slot is free.
func (x *index) giveWay(heard slots.Heard, evicted candidate) (done bool, then func()) {
	// The newcomer waits twice as long for the answer, and then leaves. A late order evicts nobody.
	if evicted.Guard != x.guard.id || heard.Age >= evictOrderTimeout {
		return false, nil
	}
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	for socket := range x.all(heard.Topic) {
		if socket.number == evicted.Number && socket.holdsSlot {
			socket.holdsSlot = false
			return true, func() {
				socket.leave(ErrEvicted, frames.CodePolicy, "another socket has taken the place of this one")
			}
		}
	}
	return true, nil // it has left meanwhile
}

// leave releases the slots of a socket at once, and begins to close it. It stays in the index until end, which releases
// again, and that does nothing.
func (s *Socket) leave(cause error, code int, reason string) {
	s.guard.release(s)
	s.close(cause, code, reason)
}
