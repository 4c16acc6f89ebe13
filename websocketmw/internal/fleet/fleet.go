// The Fleet: it owns the roll, the boards, the losses and the surplus, and adds and removes a member in
// one step under the roll's lock. It may not call a Socket under it.

package fleet

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
)

const (
	askTimeout    = 2 * time.Second  // for the answers of all servers: they look for notices 4 times a second
	settledAge    = 10 * time.Second // of a socket that may be evicted
	searchTimeout = time.Second      // for the offers of all servers
)

// Config configures a [Fleet].
type Config struct {
	Server      string        // names this guard in answers
	Boards      []*core.Slots // of the rules, whose stores are [store.Noticer]; none: nobody asks for sockets
	EvictCode   int
	EvictReason string
	ObserveOnly bool // an evicted socket stays open
	Shed        bool // sockets that are too many are shed
	TellsLost   bool // sockets are told that their slots are lost
}

// A Fleet has the sockets of a guard, and finds the sockets of others. It is safe for concurrent
// use.
type Fleet struct {
	roll // with the lock of all that follows

	config  Config
	losses  losses
	surplus surplus

	boards     []*board  // one for each rule
	number     int64     // of the last socket
	handshakes list.List // when those began that are being checked, in that order
	listening  bool
	stops      []func()

	id string // in the answers

	// How old a socket must be to be evicted, and how long all servers have to offer one, and to
	// give other answers. A test may change them before there is a socket.
	Settled, Search, Ask time.Duration
}

// New returns a Fleet without sockets.
func New(c Config) *Fleet {
	f := &Fleet{
		roll:    roll{members: make(map[*Member]struct{}), drained: make(chan struct{}), empty: make(chan struct{})},
		config:  c,
		losses:  make(losses),
		id:      rand.Text(),
		Settled: settledAge, Search: searchTimeout, Ask: askTimeout,
	}
	f.surplus.roll = &f.roll
	for _, slots := range c.Boards {
		f.boards = append(f.boards, &board{
			name: slots.Name(), store: noticer(slots), all: make(map[string]*list.List), closings: make(map[string]closingAll),
		})
	}
	return f
}

// noticer returns the store of slots that have a board.
func noticer(slots *core.Slots) store.Noticer {
	return slots.Store().(store.Noticer)
}

// mayMean reports whether a handshake that is being checked began before that. The lock is held.
func (f *Fleet) mayMean(announced time.Time) bool {
	first := f.handshakes.Front()
	return first != nil && !beginning(first).After(announced)
}

func beginning(handshake *list.Element) time.Time {
	return handshake.Value.(time.Time)
}

// Add adds a member whose handshake has not ended, and closes it if a CloseAll meant it. It reports
// whether the member was added: not while draining.
func (f *Fleet) Add(m *Member) bool {
	added := f.enter(m)
	if added && m.place != nil && m.place.closes != nil {
		m.socket.Close(m.place.closes.Code, m.place.closes.Reason)
	}
	return added
}

// enter is the one step in which a member is admitted, banned, awaited and suspected.
func (f *Fleet) enter(m *Member) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return false
	}
	f.members[m] = struct{}{}
	if m.place != nil {
		f.number++
		m.place.admitted, m.place.number = time.Now(), f.number
		for i := range m.place.topics {
			if closes := f.boards[i].pin(m, i); closes != nil {
				m.place.closes = closes
			}
		}
	}
	if f.config.TellsLost {
		f.losses.await(&f.roll, m)
	}
	if f.config.Shed && !m.slotless {
		f.surplus.enter(m)
	}
	return true
}

// Release releases the slot of a member, who is offered to no newcomer any more.
func (f *Fleet) Release(m *Member) {
	f.disown(m) // first: a newcomer may have the slot at once, and ask for offers
	m.slot.Release()
}

// Remove removes a member that was added, and has released its slot.
func (f *Fleet) Remove(m *Member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave(m)
	f.unpin(m)
	f.losses.forget(m)
	f.surplus.leave(m)
	if len(f.members) == 0 {
		f.surplus.stop()
	}
	f.idle()
}

// unpin takes a member off the boards. The lock is held.
func (f *Fleet) unpin(m *Member) {
	if m.place == nil {
		return
	}
	for i := range m.place.elements {
		f.boards[i].unpin(m, i)
	}
}

// Rest ends the listening until the next handshake, which hears the notices of that time.
func (f *Fleet) Rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest()
}

// idle rests if there is no socket, and none can come of a handshake. The lock is held.
func (f *Fleet) idle() {
	if len(f.members) == 0 && f.handshakes.Len() == 0 {
		f.rest()
	}
}

func (f *Fleet) rest() {
	for _, stop := range f.stops {
		stop()
	}
	f.stops, f.listening = nil, false
}

// Listens reports whether the fleet hears notices. Bans returns how many CloseAll are kept for
// handshakes that are being checked.
func (f *Fleet) Listens() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listening
}

// Bans is described with Listens.
func (f *Fleet) Bans() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boards {
		n += len(b.closings)
	}
	return n
}

// List asks all guards for the sockets of a key on the board of that name.
func (f *Fleet) List(ctx context.Context, name, key string) (Presence, error) {
	return f.ask(ctx, name, key, order{Do: doList})
}

// CloseAll is List, and has the sockets closed, also the sockets of handshakes that are being
// checked.
func (f *Fleet) CloseAll(ctx context.Context, name, key string, code int, reason string) (Presence, error) {
	return f.ask(ctx, name, key, order{Do: doClose, Code: code, Reason: reason})
}

// HasBoard reports whether there is a board of that name.
func (f *Fleet) HasBoard(name string) bool { return f.board(name) != nil }

func (f *Fleet) board(name string) *board {
	if i := slices.IndexFunc(f.boards, func(b *board) bool { return b.name == name }); i >= 0 {
		return f.boards[i]
	}
	return nil
}

// ask asks all guards.
func (f *Fleet) ask(ctx context.Context, name, key string, o order) (p Presence, err error) {
	b := f.board(name)
	ctx, cancel := context.WithTimeout(ctx, f.Ask)
	defer cancel()
	held, countFault := b.store.CountSlots(ctx, name, key)
	p.Held = held
	announced := time.Now()
	p.Silent, err = b.announce(ctx, key, o, func(a answer) bool {
		p.heard(a, announced)
		return false
	})
	slices.SortFunc(p.Peers, func(a, b Peer) int { return a.Since.Compare(b.Since) })
	return p, errors.Join(countFault, err)
}
