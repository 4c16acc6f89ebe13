package websocketmw

import (
	"iter"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
)

// A link is where a socket is in the list of those with one key of a rule.
type link struct {
	topic          string // stands for the key
	previous, next *Socket
}

// A list has the sockets of a topic, the oldest first.
type list struct{ first, last *Socket }

// An index has the sockets of a rule by their topics. The guard's mu guards what changes.
type index struct {
	guard       *Guard
	rule        int // which link of a socket is the index's
	slots       *core.Slots
	listener    func(backend.Heard) backend.NoticeAnswer // hear; made once, as a guard may begin to listen often
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
func (x *index) add(s *Socket) {
	l := x.link(s)
	sockets, others := x.lists[l.topic]
	if others {
		l.previous, x.link(sockets.last).next = sockets.last, s
	} else {
		sockets.first = s
	}
	sockets.last = s
	x.lists[l.topic] = sockets
}

func (x *index) link(s *Socket) *link { return &s.links[x.rule] }

// remove removes a socket.
func (x *index) remove(s *Socket) {
	l := x.link(s)
	sockets := x.lists[l.topic]
	if l.previous != nil {
		x.link(l.previous).next = l.next
	} else {
		sockets.first = l.next
	}
	if l.next != nil {
		x.link(l.next).previous = l.previous
	} else {
		sockets.last = l.previous
	}
	if sockets.first == nil {
		delete(x.lists, l.topic)
	} else {
		x.lists[l.topic] = sockets
	}
}

// all returns the sockets of a topic, the oldest first.
func (x *index) all(topic string) iter.Seq[*Socket] {
	return func(yield func(*Socket) bool) {
		for s := x.lists[topic].first; s != nil; s = x.link(s).next {
			if !yield(s) {
				return
			}
		}
	}
}
