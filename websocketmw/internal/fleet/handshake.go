// Handshakes that are being checked: which notices mean them. They may not hold a slot.

package fleet

import (
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/hidden"
)

// Begin records a handshake until [Fleet.End]. It listens from the first handshake on: notices from
// now on may be about its socket.
func (f *Fleet) Begin() (h Handshake) {
	if len(f.boards) == 0 {
		return h
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.listening && !f.draining {
		f.listening = true
		for _, b := range f.boards {
			f.stops = append(f.stops, b.store.Listen(b.name, func(h store.Heard) store.Answer { return f.hear(b, h) }))
		}
	}
	h.element = f.handshakes.PushBack(time.Now())
	return h
}

// Claim records where the socket of a handshake would be. The claims come from the rules.
func (f *Fleet) Claim(h *Handshake, claims []core.Claim) {
	if h.element == nil {
		return
	}
	h.place = &place{began: beginning(h.element), topics: make([]hidden.Text, len(claims))}
	for i, c := range claims {
		h.place.topics[i] = hidden.Of(noticer(c.Slots).Topic(c.Slots.Name(), c.Key))
	}
}

// End ends a handshake whose socket was added, if it has one, and forgets the bans that are older
// than all other handshakes.
func (f *Fleet) End(h *Handshake) {
	if h.element == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.handshakes.Front() == h.element
	if f.handshakes.Remove(h.element); !first {
		return
	}
	for _, b := range f.boards {
		b.forget(f.mayMean)
	}
	f.idle()
}
