// Notices that this guard announces. It may not touch a member of its own.

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/headgate/headgate/core/store"
)

// A Presence is what the servers have of a key.
type Presence struct {
	Held   int64 // slots that the key holds in all processes
	Open   int   // sockets of the servers that answered
	Peers  []Peer
	Silent []int64 // for each process that has not answered, how many slots it holds
}

// A Peer is a socket on any server.
type Peer struct {
	Server string
	Since  time.Time // when it was admitted, by this server's clock
}

// heard adds an answer.
func (p *Presence) heard(a answer, announced time.Time) {
	p.Open += a.Open
	for _, one := range a.Peers {
		p.Peers = append(p.Peers, Peer{a.Server, announced.Add(-time.Duration(one.Age) * time.Millisecond)})
	}
}

// announce makes an order known to all guards with such a board, and passes on the answers.
func (b *board) announce(ctx context.Context, key string, o order, heard func(answer) (enough bool)) (silent []int64, err error) {
	text, err := json.Marshal(o)
	if err == nil && len(text) > store.MaxNotice {
		err = fmt.Errorf("headgate: websocketmw: a reason of %d bytes is too long", len(o.Reason))
	}
	if err != nil {
		return nil, err
	}
	n := store.Notice{Name: b.name, Key: key, Text: string(text), All: o.Do == doClose}
	return b.store.Announce(ctx, n, func(text string) bool {
		var a answer
		return json.Unmarshal([]byte(text), &a) == nil && heard(a)
	})
}

// search returns the oldest socket of a key that may be evicted, of those guards that answer.
func (b *board) search(ctx context.Context, key string) (oldest offer) {
	_, _ = b.announce(ctx, key, order{Do: doOffer}, func(a answer) bool {
		if a.Oldest.Age > oldest.Age {
			oldest = a.Oldest
		}
		return false
	})
	return oldest
}
