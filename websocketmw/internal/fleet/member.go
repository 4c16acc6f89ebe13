// A Member, and what a fleet asks of its socket. It may not decide anything.

package fleet

import (
	"container/list"
	"context"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
)

// A Socket is what a fleet asks of a socket. Its methods are called without a lock.
type Socket interface {
	Since() time.Time // when its handler was called
	Context() context.Context
	Ended() bool

	Close(code int, reason string)   // CloseAll means it
	Evicted(code int, reason string) // a newer socket has got its slot
	Surplus()                        // there are too many
	Lost()                           // its slot is lost
}

// A Member is the place of a socket in its fleet. The zero Member is in none.
type Member struct {
	socket Socket
	slot   *core.Slot
	place  *place // nil: it is on no board

	slotless bool          // in shadow mode, or the slot was given up; the roll's lock guards it
	suspect  *list.Element // nil: it is not to be looked at; the roll's lock guards it
}

// Begin makes a Member of a socket whose handshake is being checked. In shadow mode it may be
// slotless, and is never too many then.
func (m *Member) Begin(s Socket, slot *core.Slot, h *Handshake, slotless bool) {
	m.socket, m.slot, m.place, m.slotless = s, slot, h.place, slotless
}

// Socket returns the socket.
func (m *Member) Socket() Socket { return m.socket }

// Slot returns the slot that the socket holds.
func (m *Member) Slot() *core.Slot { return m.slot }

// A place is where a socket is on the boards.
type place struct {
	began    time.Time // its handshake
	admitted time.Time
	number   int64 // in this fleet
	topics   []hidden.Text
	elements []*list.Element // one for each board

	evicts *eviction // to be done when the 101 is written; nil: nothing
	closes *order    // that was heard during the handshake; nil: none
}

// A Handshake is an upgrade that is being checked. It belongs to one goroutine.
type Handshake struct {
	element *list.Element // nil: the fleet has no boards
	place   *place
}

// An eviction is what a socket has to do for its slot: the key holds one more than its limit.
type eviction struct {
	at    int // the index of the board
	claim core.Claim
	order order
}
