package websocketmw

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	answerTimeout     = 2 * time.Second // for what servers have done: they look for notices 4 times a second
	closeOrderTimeout = time.Minute     // for which an order to close holds for handshakes that began before
)

// What guards say to each other, as JSON. All versions that run at a time must read it. A candidate is in evict.go.
type (
	// An order is the text of a notice.
	order struct {
		Do     string    `json:"do"`
		Code   int       `json:"code,omitempty"`
		Reason string    `json:"reason,omitempty"`
		Evicts candidate `json:"socket,omitzero"`
	}

	// A guardAnswer is what a guard says to it.
	guardAnswer struct {
		Open   int       `json:"open"`
		Oldest candidate `json:"oldest,omitzero"`
		Done   bool      `json:"done,omitempty"` // the socket that was to be evicted holds no slot any more
	}
)

const (
	doClose = "close"
	doOffer = "offer" // the oldest socket, if it may be evicted
	doEvict = "evict" // the candidate that was found
)

// listen hears the notices from the first socket on. g.mu is held.
func (g *Guard) listen() {
	if len(g.stopListening) > 0 {
		return
	}
	for i := range g.indexes {
		index := &g.indexes[i]
		stop := index.notices.Listen(index.slots.Name(), index.listener)
		g.stopListening = append(g.stopListening, stop)
	}
}

// announce makes an order known to all guards with such slots, and passes on the answers until there are enough. It
// returns who has not answered.
func (x *index) announce(
	ctx context.Context, key string, order order, answered func(guardAnswer) (enough bool),
) (silent []int64, err error) {
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	// An order to close is also for handshakes, which hold no slots yet.
	notice := slots.Notice{Name: x.slots.Name(), Key: key, Text: string(text), All: order.Do == doClose}
	return x.notices.Announce(ctx, notice, func(text string) (enough bool) {
		var answer guardAnswer
		return json.Unmarshal([]byte(text), &answer) == nil && answered(answer)
	})
}

// hear does what the notice of a guard says, perhaps of this one, and answers it.
func (x *index) hear(heard slots.Heard) (result slots.NoticeAnswer) {
	var order order
	if json.Unmarshal([]byte(heard.Text), &order) != nil {
		return result
	}
	var answer guardAnswer
	announcedAt := time.Now().Add(-heard.Age)
	switch order.Do {
	case doOffer:
		answer.Oldest = x.offer(heard.Topic, announcedAt)
	case doEvict:
		answer.Done, result.Then = x.giveWay(heard, order.Evicts)
	case doClose:
		for _, socket := range x.keepCloseOrder(heard.Topic, closeOrder{order, announcedAt}) {
			if socket.close(nil, order.Code, order.Reason) {
				answer.Open++
			}
		}
	}
	if answer != (guardAnswer{}) {
		text, _ := json.Marshal(answer) // there is nothing in it that could fail
		result.Text = string(text)
	}
	return result
}

// CloseAll closes the sockets of a key, as [Socket.Close] does, on all servers whose guards have a rule with slots of
// that store and name. It also closes those of handshakes that have begun at a guard in the minute before the call, and
// no later ones: so first make sure that the user cannot connect again, then call CloseAll. The key is what the rule's
// Key returns. OnClosed gets nil.
//
// CloseAll takes 2 seconds at most, and mostly a quarter of a second over Redis. It returns how many sockets it has
// begun to close, without those whose handshakes are still being checked. If a server has not answered, the error wraps
// core.ErrUnavailable: call CloseAll again. If no rule of this guard has the slots, it wraps core.ErrInvalid.
func (g *Guard) CloseAll(
	ctx context.Context, slots *core.Slots, key string, code int, reason string,
) (n int, err error) {
	index := g.indexOf(slots)
	if index == nil {
		return 0, fmt.Errorf("%w: no rule of the guard has the slots", core.ErrInvalid)
	}
	if ctx == nil {
		return 0, backend.ErrNoContext
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	order := order{Do: doClose, Code: code, Reason: frames.Reason(reason)}
	silent, err := index.announce(ctx, key, order, func(answer guardAnswer) (enough bool) {
		n += answer.Open
		return false
	})
	if err == nil && len(silent) > 0 {
		err = fmt.Errorf("%w: %d servers have not answered", core.ErrUnavailable, len(silent))
	}
	return n, err
}

// indexOf returns the index of the rule with the slots, of any plan, or nil. Other stores may have slots of that name.
func (g *Guard) indexOf(slots *core.Slots) *index {
	for i := range g.indexes {
		index := &g.indexes[i]
		isNamed := slots != nil && index.slots.Name() == slots.Name()
		if isNamed && index.notices == slots.Backend().Notices() {
			return index
		}
	}
	return nil
}

// keepCloseOrder returns the sockets of a topic that an order means, and keeps it for those that are added later but
// whose handshakes began before: in two steps, one could slip between them. Sockets that are being evicted are among
// those it returns: they may still be open.
func (x *index) keepCloseOrder(topic string, order closeOrder) (open []*Socket) {
	x.guard.mu.Lock()
	defer x.guard.mu.Unlock()
	if order.announcedAt.Sub(x.sweptAt) > closeOrderTimeout {
		x.sweptAt = order.announcedAt
		maps.DeleteFunc(x.closeOrders, func(_ string, old closeOrder) bool {
			return order.announcedAt.Sub(old.announcedAt) > closeOrderTimeout
		})
	}
	if x.guard.handshakes > 0 && x.closeOrders[topic].announcedAt.Before(order.announcedAt) {
		x.closeOrders[topic] = order
	}
	for socket := range x.all(topic) {
		if !socket.beganAt.After(order.announcedAt) {
			open = append(open, socket)
		}
	}
	return open
}
