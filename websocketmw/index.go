package websocketmw

import (
	"iter"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/slots"
)

// A link is where a socket is in the list of those with one key of a rule.
type link struct {
	topic          string // stands for the key
	previous, next *Socket
}

// A list has the sockets of a topic in the order in which they were added: the oldest first, but for the time that a
// handshake takes.
type list struct{ first, last *Socket }

// An index has the sockets of a rule by their topics. The guard's mu guards what changes.
type index struct {
	guard       *Guard
	rule        int // which link of a socket is the index's
	slots       *core.Slots
	notices     slots.Noticer                        // of the store of the slots
	listener    func(slots.Heard) slots.NoticeAnswer // hear; made once, as a guard may begin to listen often
	lists       map[string]list
	closeOrders map[string]closeOrder // the last of each topic, while there are handshakes
	sweptAt     time.Time             // when the old ones were deleted
}

// A closeOrder is an order to close the sockets of a topic whose handshakes began before.
type closeOrder struct {
	order       order
	announcedAt time.Time
}

// add adds the youngest socket.
func (x *index) add(socket *Socket) {
	link := x.link(socket)
	sockets, others := x.lists[link.topic]
	if others {
		link.previous = sockets.last
		x.link(sockets.last).next = socket
	} else {
		sockets.first = socket
	}
	sockets.last = socket
	x.lists[link.topic] = sockets
}

func (x *index) link(socket *Socket) *link { return &socket.links[x.rule] }

// remove removes a socket.
func (x *index) remove(socket *Socket) {
	link := x.link(socket)
	sockets := x.lists[link.topic]
	if link.previous != nil {
		x.link(link.previous).next = link.next
	} else {
		sockets.first = link.next
	}
	if link.next != nil {
		x.link(link.next).previous = link.previous
	} else {
		sockets.last = link.previous
	}
	if sockets.first == nil {
		delete(x.lists, link.topic)
	} else {
		x.lists[link.topic] = sockets
	}
}

// all returns the sockets of a topic, the oldest first.
func (x *index) all(topic string) iter.Seq[*Socket] {
	return func(yield func(*Socket) bool) {
		for socket := x.lists[topic].first; socket != nil; socket = x.link(socket).next {
			if !yield(socket) {
				return
			}
		}
	}
}
