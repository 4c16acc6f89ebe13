// The boards: who holds slots of a key, and who is banned. A board has no lock: its caller holds the
// roll's. It may not call a Socket.

package fleet

import (
	"container/list"
	"maps"
	"time"

	"github.com/headgate/headgate/core/store"
)

const maxPeers = 100 // sockets that a guard lists

// A board has the members that hold slots of a rule, by the topic of their key, in the order of their
// admission. The roll's lock guards it.
type board struct {
	name  string
	store store.Noticer
	all   map[string]*list.List

	// closings has the last of a topic that was announced after the first of the fleet's
	// handshakes began.
	closings map[string]closingAll
}

// A closingAll is an order to close all sockets of a topic whose handshakes began before.
type closingAll struct {
	order     order
	announced time.Time
}

// pin adds a member as the i-th board has it, and returns an order to close it, or nil.
func (b *board) pin(m *Member, i int) (closes *order) {
	topic := m.place.topics[i].Reveal()
	if b.all[topic] == nil {
		b.all[topic] = list.New()
	}
	m.place.elements = append(m.place.elements, b.all[topic].PushBack(m))
	if c, ok := b.closings[topic]; ok && !m.place.began.After(c.announced) {
		return &c.order
	}
	return nil
}

// unpin removes a member that was pinned.
func (b *board) unpin(m *Member, i int) {
	topic := m.place.topics[i].Reveal()
	if b.all[topic].Remove(m.place.elements[i]); b.all[topic].Len() == 0 {
		delete(b.all, topic)
	}
}

// ban keeps an order to close the sockets of a topic.
func (b *board) ban(topic string, c closingAll) {
	if b.closings[topic].announced.Before(c.announced) {
		b.closings[topic] = c
	}
}

// forget forgets the bans that mean no handshake.
func (b *board) forget(means func(announced time.Time) bool) {
	maps.DeleteFunc(b.closings, func(_ string, c closingAll) bool { return !means(c.announced) })
}

// each calls f with the members of a topic, the oldest first, until it returns false.
func (b *board) each(topic string, f func(*Member) bool) {
	all := b.all[topic]
	if all == nil {
		return
	}
	for e := all.Front(); e != nil; e = e.Next() {
		if !f(e.Value.(*Member)) {
			return
		}
	}
}

// find returns the members of a topic whose handshakes began before that, and lists the oldest.
func (b *board) find(topic string, announced time.Time) (found []*Member, peers []listed) {
	b.each(topic, func(m *Member) bool {
		if m.place.began.After(announced) {
			return true
		}
		if len(found) < maxPeers {
			peers = append(peers, listed{Age: max(0, announced.Sub(m.place.admitted)).Milliseconds()})
		}
		found = append(found, m)
		return true
	})
	return found, peers
}

// oldest returns the oldest member of a topic that holds a slot, or nil.
func (b *board) oldest(topic string) (oldest *Member) {
	b.each(topic, func(m *Member) bool {
		if !m.slotless {
			oldest = m
		}
		return oldest == nil
	})
	return oldest
}

// numbered returns the member of a topic with a number if it holds a slot, or nil.
func (b *board) numbered(topic string, number int64) (found *Member) {
	b.each(topic, func(m *Member) bool {
		if m.place.number == number && !m.slotless {
			found = m
		}
		return m.place.number < number
	})
	return found
}
