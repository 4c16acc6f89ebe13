package websocketmw

import (
	"context"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	settledAge    = 10 * time.Second // of a socket that may be evicted
	searchTimeout = time.Second      // for the offers of all servers

	evictReason = "another socket has taken the place of this one"
)

// An offer is a socket that may be evicted: the oldest of a guard. The zero offer is none.
type offer struct {
	Guard  string `json:"guard"`
	Number int64  `json:"number"`
	Age    int64  `json:"age"` // in microseconds, when the notice was announced: the clocks of servers differ
}

// An eviction is what a socket has to do for its slot: the key holds one more than its limit.
type eviction struct {
	board *board
	claim core.Claim
	order order
}

// makeRoom returns what is to be done for a slot that was granted above the limit of a rule
// with EvictOldest, or nil if there is room. The error is the refusal if no socket may be
// evicted.
func (f *fleet) makeRoom(ctx context.Context, claims []core.Claim, slot *core.Slot) (*eviction, error) {
	for i, c := range claims {
		if !c.OneMore {
			continue
		}
		o := slot.Occupancies()[i]
		if o.Held <= o.Limit {
			return nil, nil //nolint:nilnil // nothing is to be done
		}
		oldest := f.boards[i].search(ctx, c.Key)
		if oldest.Guard == "" {
			o.Held--
			return nil, &core.FullError{Occupancy: o, Claim: i, Source: slot.Source()}
		}
		config := &f.guard.config
		e := &eviction{f.boards[i], c, order{Do: doEvict, Code: config.EvictCode, Reason: config.EvictReason, Socket: oldest}}
		if e.order.Code == 0 {
			e.order.Code = frames.CodePolicy
		}
		if e.order.Reason == "" {
			e.order.Reason = evictReason
		}
		return e, nil
	}
	return nil, nil //nolint:nilnil // nothing is to be done
}

// search returns the oldest socket of a key that may be evicted, of those guards that answer.
func (b *board) search(ctx context.Context, key string) (oldest offer) {
	ctx, cancel := context.WithTimeout(ctx, b.guard.fleet.search)
	defer cancel()
	_, _ = b.announce(ctx, key, order{Do: doOffer}, func(a answer) bool {
		if a.Oldest.Age > oldest.Age {
			oldest = a.Oldest
		}
		return false
	})
	return oldest
}

// offer returns the oldest socket of a key, if it may be evicted.
func (b *board) offer(h store.Heard) (o offer) {
	announced := time.Now().Add(-h.Age) // before the lock, which many may wait for
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	all := b.all[h.Topic]
	if all == nil {
		return o
	}
	e := all.Front()
	for e != nil && e.Value.(*Socket).place.slotless { //nolint:forcetypeassert // there is nothing else
		e = e.Next()
	}
	if e == nil {
		return o
	}
	p := e.Value.(*Socket).place //nolint:forcetypeassert // there is nothing else
	age := announced.Sub(p.admitted)
	if age < 0 || age < b.guard.fleet.settled {
		return o
	}
	return offer{b.guard.fleet.id, p.number, age.Microseconds() + 1}
}

// takePlace is called when the 101 is written. If the key still holds more than its limit, it
// evicts the socket that was offered, or else closes this one.
func (s *Socket) takePlace() {
	e := s.place.evicts
	ctx, cancel := context.WithTimeout(s.Context(), s.guard.fleet.timeout)
	defer cancel()
	if held, err := e.claim.Slots.Count(ctx, e.claim.Key); err == nil && held <= e.claim.Slots.Limit(e.claim.Key) || s.life.Ended() {
		return // somebody has left
	}
	done := false
	_, _ = e.board.announce(ctx, e.claim.Key, e.order, func(a answer) bool {
		done = a.Done
		return done
	})
	if !done && !s.life.Ended() {
		s.slot.Release()
		s.endFor(EventShed, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}

// evict takes back the socket that was offered, which may have ended before. It returns what
// closes it and frees its slots, or nil.
func (b *board) evict(topic string, o order) func() {
	s := b.withdraw(topic, o.Socket.Number)
	if s == nil {
		return nil
	}
	return func() {
		s.slot.Release()
		s.endFor(EventEvicted, o.Code, o.Reason)
	}
}

// withdraw returns a socket that holds a slot, or nil, and takes its slot away. In shadow
// mode the socket stays open without it.
func (b *board) withdraw(topic string, number int64) *Socket {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	all := b.all[topic]
	if all == nil {
		return nil
	}
	for e := all.Front(); e != nil; e = e.Next() {
		s := e.Value.(*Socket) //nolint:forcetypeassert // there is nothing else
		switch {
		case s.place.number < number:
			continue
		case s.place.number > number || s.place.slotless:
			return nil
		}
		s.place.slotless = true
		if !b.guard.config.ObserveOnly {
			b.guard.fleet.remove(s)
		}
		return s
	}
	return nil
}
