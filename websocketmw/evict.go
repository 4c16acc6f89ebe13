package websocketmw

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// Under EvictOldest (config.go) a newcomer takes the slot of another socket, one for one. No script of Redis knows of
// that. This is the order of what happens, and of this file:
//
//	the newcomer's guard                             all guards with such slots
//	-----------------------------------------------|--------------------------------------------------------
//	Acquire   one slot above the limit, or 429:    |
//	          another newcomer has that            |
//	makeRoom  doOffer                              |  offer    the oldest socket, if it is 10 s old
//	          nobody offers one: 429               |
//	run       the 101 is written: count again      |
//	          doEvict, if it is still above        |  giveWay  Done: its slot is released, and it is closed
//	          nobody has done it: closed with 1013 |
//
// A handler that writes no 101 evicts nobody: end releases the slot. As only one slot of a key is above the limit,
// evictions of a key are one at a time. Each guard computes a socket's age at the notice by its own clock, so clocks
// need not agree; ages are true to a round trip.
const (
	minEvictAge       = 10 * time.Second  // of a socket that may be evicted
	searchTimeout     = time.Second       // for the oldest sockets of all servers
	evictOrderTimeout = answerTimeout / 2 // for which an order to evict holds; then the newcomer waits as long again
)

// A candidate is a socket that may be evicted: the oldest of a guard. The zero candidate is none.
type candidate struct {
	Guard  string `json:"guard"`
	Number int64  `json:"number"`
	Age    int64  `json:"age"` // in microseconds, when the notice was announced
}

// An eviction is what a newcomer has to do for its slot: its key holds one more than its limit.
type eviction struct {
	index  *index
	claim  backend.Claim
	oldest candidate
}

// makeRoom finds the socket to evict for a slot that was granted above a limit. If there is none, the upgrade is
// refused.
func (g *Guard) makeRoom(ctx context.Context, newcomer *Socket, admission *engine.Admission) bool {
	if admission.Slot == nil || admission.Slot.Above() < 0 {
		return true
	}
	i := admission.Slot.Above()
	index := &g.indexes[i]
	claim := admission.Claims[i]
	var oldest candidate
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	// Nobody is enough: another server may have an older one. Who does not answer in time is left out.
	_, _ = index.announce(ctx, claim.Key, order{Do: doOffer}, func(answer guardAnswer) (enough bool) {
		if oldest.Guard == "" || answer.Oldest.Age > oldest.Age {
			oldest = answer.Oldest
		}
		return false
	})
	if oldest.Guard == "" {
		g.rules.Refuse(admission, i)
		return false
	}
	newcomer.eviction = &eviction{index, claim, oldest} // later: the handler may refuse the handshake
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
			return candidate{x.guard.id, socket.number, age.Microseconds()}
		}
		break // the others are younger, but for the time that a handshake takes
	}
	return candidate{}
}

// run is called when the 101 of a newcomer is written. It evicts the candidate if the key still holds more than its
// limit. If no server confirms it, the newcomer is closed.
func (e *eviction) run(newcomer *Socket) {
	ctx, cancel := context.WithTimeout(newcomer.Context(), answerTimeout)
	defer cancel()
	held, err := e.claim.Slots.Count(ctx, e.claim.Key)
	if newcomer.Context().Err() != nil {
		return // it has ended
	}
	if err == nil && held <= e.claim.Slots.Limit(e.claim.Key) {
		return // somebody has left
	}
	done := false
	order := order{Do: doEvict, Evicts: e.oldest}
	_, _ = e.index.announce(ctx, e.claim.Key, order, func(answer guardAnswer) (enough bool) {
		done = answer.Done
		return done
	})
	// Without an answer the other socket may be open, and have its slot: one of the two has to go.
	if !done {
		newcomer.releaseAndClose(ErrEvicted, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}

// giveWay obeys an order to evict a socket, if that is of this guard. From here on the socket counts as one that holds
// no slot. It gives its slot up in then, which is called once the newcomer can know why the slot is free.
func (x *index) giveWay(heard slots.Heard, evicted candidate) (done bool, then func()) {
	// A late order evicts nobody: the newcomer may wait for the answer no longer, and close itself.
	if evicted.Guard != x.guard.id || heard.Age >= evictOrderTimeout {
		return false, nil
	}
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	for socket := range x.all(heard.Topic) {
		if socket.number == evicted.Number && socket.holdsSlot {
			socket.holdsSlot = false
			return true, func() {
				socket.releaseAndClose(ErrEvicted, frames.CodePolicy, "another socket has taken the place of this one")
			}
		}
	}
	return true, nil // it has left meanwhile
}

// releaseAndClose releases the slots of a socket at once, and begins to close it. It stays in the index until end,
// which releases again, and that does nothing.
func (s *Socket) releaseAndClose(cause error, code int, reason string) {
	s.guard.release(s)
	s.close(cause, code, reason)
}
