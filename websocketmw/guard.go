package websocketmw

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/nethttp"
)

// closeTimeout is how long a client and a handler have to close a socket that the guard closes.
const closeTimeout = 5 * time.Second

// A Guard decides which upgrades are admitted, and closes sockets. Make one with [New] or [MaxOpen]. It is safe for
// concurrent use.
type Guard struct {
	config  Config
	rules   engine.Rules
	inbound []inboundLimit
	id      string // of this guard among all servers

	evictAge time.Duration // how old a socket is that may be evicted

	// mu guards what follows, and the links of sockets. Who holds it calls nothing of a socket.
	mu         sync.Mutex
	sockets    map[*Socket]struct{}
	handshakes int // that are being checked
	// The i-th is that of the i-th rule. So are the i-th claim of an admission and the i-th link of a socket, as no
	// rule has a Skip. The list does not change.
	indexes       []index
	lastNumber    int64 // of a socket
	stopListening []func()
	draining      bool
	empty         chan struct{} // closed when draining, and no socket is left
}

// Format implements [fmt.Formatter]: it prints nothing of the sockets, which change meanwhile.
func (*Guard) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, "websocketmw.Guard") }

// Handler returns a handler that calls next for upgrades that the guard admits, and for requests that are not
// upgrades. It answers upgrades that the guard refuses. It panics if next is nil, or if the guard was not made by a
// function of this package.
func (g *Guard) Handler(next http.Handler) http.Handler {
	if g == nil || g.sockets == nil || next == nil {
		panic("headgate: websocketmw: the guard or the handler is nil: see the error of New")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := classify(r)
		if kind == other {
			next.ServeHTTP(w, r)
			return
		}
		socket, admission := g.admit(r, kind)
		if socket == nil {
			nethttp.Refuse(w, r, admission, g.config.OnRefused)
			return
		}
		socket.serve(w, r, next)
	})
}

var (
	errHTTP2     = errors.New("headgate: websocketmw: it is a WebSocket over HTTP/2")
	errMalformed = errors.New("headgate: websocketmw: the Sec-WebSocket-Key is not the base64 of 16 bytes")
)

// admit returns a socket that has its slots, or nil and why.
func (g *Guard) admit(r *http.Request, kind kind) (*Socket, *engine.Admission) {
	admission := new(engine.Admission)
	switch kind {
	case overHTTP2:
		admission.Status = http.StatusNotImplemented
		admission.Err = errHTTP2
		return nil, admission
	case malformed:
		admission.Status = http.StatusBadRequest
		admission.Err = errMalformed
		return nil, admission
	}
	beganAt, ok := g.beginHandshake()
	if !ok {
		return nil, g.refuseInDrain(admission)
	}
	defer g.endHandshake()
	socket := &Socket{guard: g, requestContext: r.Context()}
	// The keys of all rules and limits come first, so that whoever has none costs no call of a store. The slots come
	// last, as they have to be given back if something is refused after them.
	isCounted := g.rules.Keys(admission, r) && socket.countInbound(admission, r)
	if !isCounted || !g.rules.Acquire(admission, r) || !g.makeRoom(r.Context(), socket, admission) {
		return nil, admission
	}
	if !g.add(socket, admission, beganAt) {
		admission.Release()
		return nil, g.refuseInDrain(admission)
	}
	return socket, admission
}

func (g *Guard) refuseInDrain(admission *engine.Admission) *engine.Admission {
	admission.Status = http.StatusServiceUnavailable
	admission.Err = core.ErrClosed
	admission.RetryAfter = g.rules.Pause()
	return admission
}

// beginHandshake counts a handshake, and listens to notices from now on: they may mean its socket. It returns false if
// the guard admits no sockets any more.
func (g *Guard) beginHandshake() (beganAt time.Time, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		return time.Time{}, false
	}
	g.handshakes++
	g.listen()
	return time.Now(), true
}

func (g *Guard) endHandshake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handshakes--
	if g.handshakes == 0 { // no handshake is left that has begun before an order to close
		for i := range g.indexes {
			clear(g.indexes[i].closeOrders)
		}
		g.stopIfEmpty()
	}
}

// add adds a socket that has its slots. It closes it if somebody has closed all sockets of its key since its handshake
// began. It returns false if the guard admits no sockets any more.
func (g *Guard) add(socket *Socket, admission *engine.Admission, beganAt time.Time) bool {
	var closing *order
	g.mu.Lock()
	if g.draining {
		g.mu.Unlock()
		return false
	}
	g.lastNumber++
	socket.number = g.lastNumber
	socket.beganAt = beganAt
	socket.slot = admission.Slot
	socket.holdsSlot = true
	socket.links = make([]link, len(admission.Claims))
	g.sockets[socket] = struct{}{}
	for i, claim := range admission.Claims {
		index := &g.indexes[i]
		topic := index.notices.Topic(index.slots.Name(), claim.Key)
		socket.links[i].topic = topic
		index.add(socket)
		// An order that came during the handshake has not found the socket in the index.
		last, ok := index.closeOrders[topic]
		if ok && !beganAt.After(last.announcedAt) {
			closing = &last.order
		}
	}
	g.mu.Unlock()
	if closing != nil {
		socket.close(nil, closing.Code, closing.Reason)
	}
	return true
}

// release releases the slots of a socket. Further calls do nothing.
func (g *Guard) release(socket *Socket) {
	g.mu.Lock()
	socket.holdsSlot = false // first: a newcomer may have the slot at once
	g.mu.Unlock()
	if socket.slot != nil {
		socket.slot.Release()
	}
}

func (g *Guard) remove(socket *Socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sockets, socket)
	for i := range socket.links {
		g.indexes[i].remove(socket)
	}
	g.stopIfEmpty()
}

// oldestFirst returns the sockets.
func (g *Guard) oldestFirst() []*Socket {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*Socket, 0, len(g.sockets))
	for socket := range g.sockets {
		all = append(all, socket)
	}
	slices.SortFunc(all, func(a, b *Socket) int { return int(a.number - b.number) })
	return all
}

// stopIfEmpty stops listening if there is no socket. g.mu is held.
func (g *Guard) stopIfEmpty() {
	if len(g.sockets) > 0 || g.handshakes > 0 {
		return
	}
	// So a guard without sockets costs the store nothing.
	for _, stop := range g.stopListening {
		stop()
	}
	clear(g.stopListening)
	g.stopListening = g.stopListening[:0]
	if g.draining {
		close(g.empty) // once: nobody comes any more
	}
}
