package websocketmw

import (
	"container/list"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/hidden"
)

const (
	maxServer    = 64              // bytes of Config.Server
	maxPeers     = 100             // sockets that a guard lists
	fleetTimeout = 2 * time.Second // for the answers of all servers: they look for notices 4 times a second
)

// A Presence is what the servers have of a key.
type Presence struct {
	// Held is the number of slots that the key holds in all processes, before anything is
	// closed. They may be more than the sockets that are found: other processes may hold
	// slots of the same name.
	Held int64

	// Open is how many sockets the servers have that answered: those that are listed, or
	// that are being closed.
	Open int

	// Peers are the sockets, the oldest first; of each guard at most the 100 oldest.
	Peers []Peer

	// Silent has, for each process that holds slots of the key and has not answered in time,
	// how many: it is dead for less than a TTL, cut off, or paused, or its guard has no
	// [Config].Server. What was to be closed there is closed if it reaches the store within a
	// minute.
	Silent []int64
}

// A Peer is a socket on any server.
type Peer struct {
	Server string    // its Config.Server
	Since  time.Time // when it was admitted, by this server's clock
}

var errServer = errors.New("headgate: websocketmw: Config.Server is empty: set it in all servers")

// Presence returns the sockets of the key on all servers whose guards have a
// [Config].Server, under the rule whose slots have that name. It waits until all processes have
// answered that hold slots of the key, which over Redis takes some 0.3 seconds, and at most 2
// seconds.
//
// After an error, which is [core.ErrUnavailable] or that of ctx, the Presence has what is known
// of this process. The key is the one that the rule counts, as [nethttp.Rule].Plan gets it.
func (g *Guard) Presence(ctx context.Context, slots, key string) (Presence, error) {
	return g.ask(ctx, slots, key, order{Do: doList})
}

// CloseAll closes all sockets of the key on all servers, as [Socket.Close] does: when a user
// logs out, or is banned. Other servers hear of it within a quarter of a second and the
// time that the store takes. CloseAll waits as Presence does. The Peers are the sockets that
// are being closed.
//
// First forbid new sockets, then call CloseAll. It closes the sockets of all handshakes that
// their guards began to check before the call, also of those that are admitted later. Sockets
// of later handshakes stay open. If something in front of the guard authenticates, let the handler
// ask once more whether the user is welcome: CloseAll finds every socket whose handler runs.
//
// If the store loses the notice while CloseAll waits, it is announced again. A server that
// cannot reach the store closes its sockets when it can again, if that is within a minute. After
// a minute the notice is forgotten, and so is its reason. If there are Silent, call CloseAll again.
func (g *Guard) CloseAll(ctx context.Context, slots, key string, code int, reason string) (Presence, error) {
	return g.ask(ctx, slots, key, order{Do: doClose, Code: code, Reason: reason})
}

// What guards are asked for.
const (
	doList  = "list"
	doClose = "close"
	doOffer = "offer" // the oldest socket, if it may be evicted
	doEvict = "evict" // the one that was offered
)

// An order is the text of a notice.
type order struct {
	Do     string `json:"do"`
	Code   int    `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	Socket offer  `json:"socket,omitzero"` // to evict
}

// An answer is that of a guard.
type answer struct {
	Server string   `json:"server"`
	Open   int      `json:"open"`
	Peers  []member `json:"peers,omitempty"`
	Oldest offer    `json:"oldest,omitzero"`
	Done   bool     `json:"done,omitempty"` // the socket that was to be evicted has given up its slot, or has ended
}

// A member is a socket in an answer.
type member struct {
	Age int64 `json:"age"` // in milliseconds, when the notice was announced
}

// A fleet is what a guard has to be found by those of other servers.
type fleet struct {
	guard     *Guard
	id        string        // in the answers
	settled   time.Duration // the age from which a socket may be evicted
	search    time.Duration // for the offers of all servers
	timeout   time.Duration // for other answers of all servers
	number    int64         // of the last socket
	boards    []*board      // one for each rule
	listening bool
	stops     []func()

	handshakes list.List // when those began that are being checked, in that order
}

// A board has the sockets of a rule, by the topic of their key, in the order of their
// admission. The guard's lock guards it.
type board struct {
	guard *Guard
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

// A place is where a socket is on the boards.
type place struct {
	began    time.Time // its handshake
	admitted time.Time
	number   int64 // in this guard
	topics   []hidden.Text
	elements []*list.Element // nil when the socket is on no board any more

	evicts *eviction // to be done when the 101 is written; nil: nothing
	closes *order    // that was heard during the handshake; nil: none

	slotless bool // in shadow mode, or being evicted; the guard's lock guards it
}

func newPlace(began time.Time, claims []core.Claim) *place {
	p := &place{began: began, topics: make([]hidden.Text, len(claims))}
	for i, c := range claims {
		p.topics[i] = hidden.Of(noticer(c.Slots).Topic(c.Slots.Name(), c.Key))
	}
	return p
}

// hasFleet reports whether sockets are to be found on all servers.
func (c *Config) hasFleet() bool {
	return c.Server != "" || c.evicts()
}

// validateFleet finds stores through which no server can be told to close sockets.
func (c *Config) validateFleet(f *faults) {
	if !c.hasFleet() {
		return
	}
	for i := range c.Rules {
		slots, field := slotsOf(&c.Rules[i]), "Slots"
		if slots == nil {
			continue
		}
		if c.Rules[i].LimitSlots != nil {
			field = "LimitSlots"
		}
		if _, ok := slots.Store().(store.Noticer); !ok {
			f.add(fmt.Errorf("a %T sends no notices, which Server and EvictOldest need: let it implement store.Noticer", slots.Store()), "Rules[%d].%s", i, field)
		}
	}
}

// noticer returns the store of slots of a guard with a fleet.
func noticer(slots *core.Slots) store.Noticer {
	return slots.Store().(store.Noticer) //nolint:forcetypeassert // validateFleet has seen it
}

func newFleet(g *Guard) *fleet {
	f := &fleet{guard: g, id: rand.Text(), settled: settledAge, search: searchTimeout, timeout: fleetTimeout}
	for i := range g.slotRules {
		slots := slotsOf(&g.slotRules[i])
		f.boards = append(f.boards, &board{
			guard: g, name: slots.Name(), store: noticer(slots),
			all: make(map[string]*list.List), closings: make(map[string]closingAll),
		})
	}
	return f
}

// begin records a handshake until it ends, and listens from the first on: what is announced
// from now on may be about its socket.
func (f *fleet) begin() (handshake *list.Element) {
	f.guard.mu.Lock()
	defer f.guard.mu.Unlock()
	if !f.listening && !f.guard.draining {
		f.listening = true
		for _, b := range f.boards {
			f.stops = append(f.stops, b.store.Listen(b.name, b.hear))
		}
	}
	return f.handshakes.PushBack(time.Now())
}

// end ends a handshake whose socket was added, if it has one, and forgets the closings that are
// older than all other handshakes.
func (f *fleet) end(handshake *list.Element) {
	f.guard.mu.Lock()
	defer f.guard.mu.Unlock()
	first := f.handshakes.Front() == handshake
	if f.handshakes.Remove(handshake); !first {
		return
	}
	for _, b := range f.boards {
		maps.DeleteFunc(b.closings, func(_ string, c closingAll) bool { return !f.mayMean(c.announced) })
	}
}

// mayMean reports whether a handshake that is being checked began before that. The guard's lock
// is held.
func (f *fleet) mayMean(announced time.Time) bool {
	first := f.handshakes.Front()
	return first != nil && !began(first).After(announced)
}

func began(handshake *list.Element) time.Time {
	return handshake.Value.(time.Time) //nolint:forcetypeassert // there is nothing else
}

// add adds a socket with a place. The guard's lock is held.
func (f *fleet) add(s *Socket) {
	p := s.place
	f.number++
	p.admitted, p.number = time.Now(), f.number
	for i := range p.topics {
		b, topic := f.boards[i], p.topics[i].Reveal()
		if b.all[topic] == nil {
			b.all[topic] = list.New()
		}
		p.elements = append(p.elements, b.all[topic].PushBack(s))
		if c, ok := b.closings[topic]; ok && !p.began.After(c.announced) {
			p.closes = &c.order
		}
	}
}

// remove removes a socket that was added. The guard's lock is held.
func (f *fleet) remove(s *Socket) {
	for i, e := range s.place.elements {
		all, topic := f.boards[i].all, s.place.topics[i].Reveal()
		if all[topic].Remove(e); all[topic].Len() == 0 {
			delete(all, topic)
		}
	}
	s.place.elements = nil
}

// rest ends the listening until the next handshake, which hears of what was announced meanwhile.
// The guard's lock is held.
func (f *fleet) rest() {
	for _, stop := range f.stops {
		stop()
	}
	f.stops, f.listening = nil, false
}

// hear answers a notice, and does what it says.
func (b *board) hear(h store.Heard) (said store.Answer) {
	var o order
	if json.Unmarshal([]byte(h.Text), &o) != nil {
		return said
	}
	var a answer
	switch o.Do {
	case doOffer:
		a.Oldest = b.offer(h)
	case doEvict:
		if o.Socket.Guard == b.guard.fleet.id && h.Age < b.guard.fleet.search {
			// The slot is free only when the newcomer can know why.
			a.Done, said.Then = true, b.evict(h.Topic, o)
		}
	default:
		var sockets []*Socket
		if sockets, a = b.find(h, o); o.Do == doClose {
			for _, s := range sockets {
				s.Close(o.Code, o.Reason)
			}
		}
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

// find returns the sockets of a topic whose handshakes had begun when an order was announced. If
// it is to close them, those that are being checked will be closed, too.
func (b *board) find(h store.Heard, o order) (sockets []*Socket, a answer) {
	announced := time.Now().Add(-h.Age)
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	if o.Do == doClose && b.guard.fleet.mayMean(announced) && b.closings[h.Topic].announced.Before(announced) {
		b.closings[h.Topic] = closingAll{o, announced}
	}
	a.Server = b.guard.config.Server
	all := b.all[h.Topic]
	if all == nil {
		return nil, a
	}
	for e := all.Front(); e != nil; e = e.Next() {
		s := e.Value.(*Socket) //nolint:forcetypeassert // there is nothing else
		if s.place.began.After(announced) {
			continue
		}
		if len(sockets) < maxPeers {
			a.Peers = append(a.Peers, member{Age: max(0, announced.Sub(s.place.admitted)).Milliseconds()})
		}
		sockets = append(sockets, s)
	}
	a.Open = len(sockets)
	return sockets, a
}

// ask asks all guards.
func (g *Guard) ask(ctx context.Context, slots, key string, o order) (p Presence, err error) {
	b, err := g.board(slots)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, g.fleet.timeout)
	defer cancel()
	held, countFault := b.store.CountSlots(ctx, slots, key)
	p.Held = held
	announced := time.Now()
	p.Silent, err = b.announce(ctx, key, o, func(a answer) bool {
		p.heard(a, announced)
		return false
	})
	slices.SortFunc(p.Peers, func(a, b Peer) int { return a.Since.Compare(b.Since) })
	return p, errors.Join(countFault, err)
}

// announce makes an order known, and passes on the answers.
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

// heard adds an answer.
func (p *Presence) heard(a answer, announced time.Time) {
	p.Open += a.Open
	for _, m := range a.Peers {
		p.Peers = append(p.Peers, Peer{a.Server, announced.Add(-time.Duration(m.Age) * time.Millisecond)})
	}
}

// board returns that of the slots with a name.
func (g *Guard) board(slots string) (*board, error) {
	if g.config.Server == "" {
		return nil, errServer
	}
	for _, b := range g.fleet.boards {
		if b.name == slots {
			return b, nil
		}
	}
	return nil, fmt.Errorf("headgate: websocketmw: no rule has slots of the name %q", slots)
}
