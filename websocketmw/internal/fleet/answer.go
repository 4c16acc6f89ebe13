// What this guard answers to notices. It may not announce any.

package fleet

import (
	"encoding/json"
	"time"

	"github.com/headgate/headgate/core/store"
)

// hear answers a notice of a board, and does what it says.
func (f *Fleet) hear(b *board, h store.Heard) (said store.Answer) {
	var o order
	if json.Unmarshal([]byte(h.Text), &o) != nil {
		return said
	}
	var a answer
	switch o.Do {
	case doOffer:
		a.Oldest = f.offer(b, h)
	case doEvict:
		if o.Evicts.Guard == f.id && h.Age < f.Search {
			// The slot is free only when the newcomer can know why.
			a.Done, said.Then = true, f.evict(b, h.Topic, o)
		}
	default:
		a = f.find(b, h, o)
	}
	if a.Open == 0 && a.Oldest.Guard == "" && !a.Done {
		return said
	}
	text, err := json.Marshal(a)
	if err == nil { // there is nothing in it that could fail
		said.Text = string(text)
	}
	return said
}

// find answers with the sockets whose handshakes had begun when an order was announced. If it is to
// close them, those that are being checked will be closed, too.
func (f *Fleet) find(b *board, h store.Heard, o order) (a answer) {
	announced := time.Now().Add(-h.Age)
	found, peers := f.banned(b, h.Topic, o, announced)
	if o.Do == doClose {
		for _, m := range found {
			m.socket.Close(o.Code, o.Reason)
		}
	}
	return answer{Server: f.config.Server, Open: len(found), Peers: peers}
}

// banned is the one step in which the members of a topic are found, and those are banned that will be
// added.
func (f *Fleet) banned(b *board, topic string, o order, announced time.Time) ([]*Member, []listed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.Do == doClose && f.mayMean(announced) {
		b.ban(topic, closingAll{o, announced})
	}
	return b.find(topic, announced)
}
