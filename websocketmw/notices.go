package websocketmw

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	minEvictAge       = 10 * time.Second // of a socket that may be evicted
	searchTimeout     = time.Second      // for the oldest sockets of all servers
	answerTimeout     = 2 * time.Second  // for their other answers: they look for notices 4 times a second
	closeOrderTimeout = time.Minute      // for which an order to close holds for handshakes that began before
)

// A link is where a socket is in the list of those with one key of a rule.
type link struct {
	topic          string // stands for the key
	previous, next *Socket
}

// A list has the sockets of a topic, the oldest first.
type list struct{ first, last *Socket }

// An index has the sockets of a rule by their topics. The guard's mu guards it.
type index struct {
	slots       *core.Slots
	lists       map[string]*list
	closeOrders map[string]closeOrder // the last of each topic
}

// A closeOrder is an order to close the sockets of a topic whose handshakes began before.
type closeOrder struct {
	order       order
	announcedAt time.Time
}

// add adds a socket to the i-th index of the guard.
func (x *index) add(s *Socket, i int) {
	l := &s.links[i]
	sockets := x.lists[l.topic]
	if sockets == nil {
		x.lists[l.topic] = &list{s, s}
		return
	}
	l.previous, sockets.last.links[i].next, sockets.last = sockets.last, s, s
}

// remove removes it.
func (x *index) remove(s *Socket, i int) {
	l := &s.links[i]
	sockets := x.lists[l.topic]
	if l.previous != nil {
		l.previous.links[i].next = l.next
	} else {
		sockets.first = l.next
	}
	if l.next != nil {
		l.next.links[i].previous = l.previous
	} else {
		sockets.last = l.previous
	}
	if sockets.first == nil {
		delete(x.lists, l.topic)
	}
}

// holders returns the sockets of a topic that hold slots, the oldest first.
func (x *index) holders(topic string, i int) func(func(*Socket) bool) {
	return func(yield func(*Socket) bool) {
		if sockets := x.lists[topic]; sockets != nil {
			for s := sockets.first; s != nil; s = s.links[i].next {
				if s.holdsSlot && !yield(s) {
					return
				}
			}
		}
	}
}

// What guards say to each other, as JSON. All versions that run at a time must read it.
type (
	// An order is the text of a notice.
	order struct {
		Do     string    `json:"do"`
		Code   int       `json:"code,omitempty"`
		Reason string    `json:"reason,omitempty"`
		Evicts candidate `json:"socket,omitzero"`
	}

	// An answer is what a guard says to it.
	answer struct {
		Open   int       `json:"open"`
		Oldest candidate `json:"oldest,omitzero"`
		Done   bool      `json:"done,omitempty"` // the socket that was to be evicted holds no slot any more
	}

	// A candidate is a socket that may be evicted: the oldest of a guard. The zero candidate is none.
	candidate struct {
		Guard  string `json:"guard"`
		Number int64  `json:"number"`
		Age    int64  `json:"age"` // in microseconds, when the notice was announced: the clocks of servers differ
	}
)

const (
	doClose      = "close"
	doFindOldest = "offer" // the oldest socket, if it may be evicted
	doEvict      = "evict" // the candidate that was found
)

// listen hears the notices from the first socket on. g.mu is held.
func (g *Guard) listen() {
	if len(g.stopListening) > 0 {
		return
	}
	for i := range g.indexes {
		x := &g.indexes[i]
		g.stopListening = append(g.stopListening, x.slots.Backend().Notices().Listen(x.slots.Name(), func(h backend.Heard) backend.NoticeAnswer { return g.hear(x, i, h) }))
	}
}

// announce makes an order known to all guards with such slots, and passes on the answers until there are enough. It
// returns who has not answered.
func (x *index) announce(ctx context.Context, key string, o order, heard func(answer) (enough bool)) (silent []int64, err error) {
	text, err := json.Marshal(o) // at most backend.MaxNotice, since the reason is short
	if err != nil {
		return nil, err
	}
	n := backend.Notice{Name: x.slots.Name(), Key: key, Text: string(text), All: o.Do == doClose}
	return x.slots.Backend().Notices().Announce(ctx, n, func(text string) bool {
		var a answer
		return json.Unmarshal([]byte(text), &a) == nil && heard(a)
	})
}

// hear does what a notice says, and answers it.
func (g *Guard) hear(x *index, i int, h backend.Heard) (reply backend.NoticeAnswer) {
	var o order
	if json.Unmarshal([]byte(h.Text), &o) != nil {
		return reply
	}
	var a answer
	announcedAt := time.Now().Add(-h.Age)
	switch o.Do {
	case doFindOldest:
		a.Oldest = g.oldest(x, i, h.Topic, announcedAt)
	case doEvict:
		if o.Evicts.Guard == g.id && h.Age < searchTimeout {
			s := g.takeSlot(x, i, h.Topic, o.Evicts.Number)
			a.Done = true
			if s != nil { // the slot is free only when the newcomer can know why
				reply.Then = func() {
					s.slot.Release()
					s.close(ErrEvicted, frames.CodePolicy, "another socket has taken the place of this one")
				}
			}
		}
	case doClose:
		for _, s := range g.keepCloseOrder(x, i, h.Topic, closeOrder{o, announcedAt}) {
			if s.close(nil, o.Code, o.Reason) {
				a.Open++
			}
		}
	}
	if a != (answer{}) {
		text, _ := json.Marshal(a) // there is nothing in it that could fail
		reply.Text = string(text)
	}
	return reply
}

// CloseAll closes the sockets of a key, as [Socket.Close] does, on all servers whose guards have a rule with slots of
// that store and name. It also closes those of handshakes that have begun at the guard before CloseAll was called, and no
// later ones: so first make sure that the user cannot connect again, then call CloseAll. The key is what the rule's Key
// returns. OnClosed gets nil.
//
// CloseAll takes 2 seconds at most, and mostly a quarter of a second over Redis. It returns how many sockets it has
// begun to close, without those whose handshakes are still being checked. If a server has not answered, the error wraps core.ErrUnavailable: call CloseAll again. If no rule of
// this guard has the slots, it wraps core.ErrInvalid.
func (g *Guard) CloseAll(ctx context.Context, slots *core.Slots, key string, code int, reason string) (n int, err error) {
	if slots == nil {
		return 0, fmt.Errorf("%w: the slots are nil", core.ErrInvalid)
	}
	for i := range g.indexes {
		if g.indexes[i].slots.Name() != slots.Name() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		silent, err := g.indexes[i].announce(ctx, key, order{Do: doClose, Code: code, Reason: frames.Reason(reason)}, func(a answer) bool {
			n += a.Open
			return false
		})
		if err == nil && len(silent) > 0 {
			err = fmt.Errorf("%w: %d servers have not answered", core.ErrUnavailable, len(silent))
		}
		return n, err
	}
	return 0, fmt.Errorf("%w: no rule has the slots %q", core.ErrInvalid, slots.Name())
}

// keepCloseOrder returns the sockets of a topic that an order means, and keeps it for those that are added later but
// whose handshakes began before. Both are one step.
// Sockets that are being evicted are among them: they may still be open.
func (g *Guard) keepCloseOrder(x *index, i int, topic string, o closeOrder) (open []*Socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for topic, old := range x.closeOrders {
		if o.announcedAt.Sub(old.announcedAt) > closeOrderTimeout {
			delete(x.closeOrders, topic)
		}
	}
	if g.handshakes > 0 && x.closeOrders[topic].announcedAt.Before(o.announcedAt) {
		x.closeOrders[topic] = o
	}
	if sockets := x.lists[topic]; sockets != nil {
		for s := sockets.first; s != nil; s = s.links[i].next {
			if !s.beganAt.After(o.announcedAt) {
				open = append(open, s)
			}
		}
	}
	return open
}

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
			a.RetryAfter = pause()
			return false
		}
		s.evicts = &eviction{&g.indexes[i], a.Claims[i], order{Do: doEvict, Evicts: oldest}}
	}
	return true
}

// oldest returns the oldest socket of a topic, if it may be evicted.
func (g *Guard) oldest(x *index, i int, topic string, announcedAt time.Time) candidate {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range x.holders(topic, i) {
		if age := announcedAt.Sub(s.beganAt); age >= g.evictAge {
			return candidate{g.id, s.number, age.Microseconds() + 1}
		}
		break // the others are younger
	}
	return candidate{}
}

// takeSlot takes the slot of a candidate, and returns its socket, or nil if it holds none. Until the socket ends, it
// stays in the index.
func (g *Guard) takeSlot(x *index, i int, topic string, number int64) *Socket {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range x.holders(topic, i) {
		if s.number == number {
			s.holdsSlot = false
			return s
		}
	}
	return nil
}

// evict is called when the 101 of a newcomer is written. It evicts the candidate if the key still holds more than its
// limit, and the newcomer has not left before the 101. If no server confirms it, the newcomer is closed.
func (g *Guard) evict(s *Socket, left bool) {
	if left {
		g.release(s)
		s.close(nil, frames.CodeTryAgain, "the handshake was given up; try again")
		return
	}
	e := s.evicts
	ctx, cancel := context.WithTimeout(s.Context(), answerTimeout)
	defer cancel()
	if held, err := e.claim.Slots.Count(ctx, e.claim.Key); err == nil && held <= e.claim.Slots.Limit(e.claim.Key) || ctx.Err() != nil {
		return // somebody has left
	}
	done := false
	_, _ = e.index.announce(ctx, e.claim.Key, e.order, func(a answer) bool {
		done = a.Done
		return done
	})
	if !done {
		g.release(s)
		s.close(ErrEvicted, frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}
