// A Socket is where a connection and its place in the fleet meet: it owns both, and passes on what
// either says. It has no state and no lock of its own, and may not count, wait or close by itself.

package websocketmw

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/websocketmw/internal/conn"
	"github.com/headgate/headgate/websocketmw/internal/fleet"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// A Socket is an admitted upgrade, from when its slots are taken until its connection is
// closed. It is safe for concurrent use.
//
// A Socket does not keep its connection reachable: if the handler drops the connection
// without closing it, garbage collection closes it and releases the slots.
type Socket struct {
	house  *house
	member fleet.Member
	life   conn.Life
}

// A house is what the sockets of a guard have in common.
type house struct {
	rules  conn.Rules
	fleet  *fleet.Fleet
	notify func(*Socket, Event) // nil: nobody wants to know
}

// open adds a socket for an upgrade that is admitted. In shadow mode it may be slotless.
func (h *house) open(r *http.Request, slot *core.Slot, shake *fleet.Handshake, budgets []hidden.Text, slotless bool) (*Socket, error) {
	s := &Socket{house: h}
	s.life.Begin(r.Context(), &h.rules, (*owner)(s), budgets)
	s.member.Begin((*member)(s), slot, shake, slotless)
	if slotless {
		s.life.Spare()
	}
	if !h.fleet.Add(&s.member) {
		return nil, core.ErrClosed // draining since the attempt began
	}
	return s, nil
}

// all returns the sockets.
func (h *house) all() []*Socket {
	members := h.fleet.All()
	all := make([]*Socket, len(members))
	for i, m := range members {
		all[i] = (*Socket)(m.Socket().(*member))
	}
	return all
}

// Format implements [fmt.Formatter]: it prints which slots the socket holds, not of whom.
func (s *Socket) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "socket that holds %v", s.member.Slot())
}

type socketKey struct{}

// FromContext returns the socket of a handler's request, from the request's context or
// one derived from it. It returns false if the request is not an upgrade that a guard
// admitted.
func FromContext(ctx context.Context) (*Socket, bool) {
	s, ok := ctx.Value(socketKey{}).(*Socket)
	return s, ok
}

// Slot returns the slot that the socket holds, which reports the occupancy when it was
// acquired, and whether it was lost. Do not release it: the guard does.
func (s *Socket) Slot() *core.Slot { return s.member.Slot() }

// Since returns when the handler of the upgrade was called, or the zero time before that.
func (s *Socket) Since() time.Time { return s.life.Since() }

// Context returns a context that is canceled when the socket ends, with the values of the
// request's context. The request's own context is canceled when the handler returns,
// which may be earlier.
func (s *Socket) Context() context.Context { return s.life.Context() }

// Done returns a channel that is closed when the socket ends. It is the channel of
// [Socket.Context].
func (s *Socket) Done() <-chan struct{} { return s.Context().Done() }

// Close begins to close the socket, and returns at once. It sends a Close frame as soon as no frame
// of the handler is incomplete. The frame has the code and at most 123 bytes of the reason. Later
// writes of the handler are dropped. From the next frame on, the handler reads only the Close frame
// of the client. It should then close the connection. If it has not done so after 5 seconds, the
// guard does. Only the first call has an effect.
//
// The code is 1000 to 1003, 1007 to 1014 or 3000 to 4999. Clients reject all others (RFC
// 6455, section 7.4), so instead of them Close sends 1011 (internal error).
func (s *Socket) Close(code int, reason string) { s.life.Close(code, reason) }

// notify calls Notify, unless the socket has ended.
func (s *Socket) notify(e Event) {
	if f := s.house.notify; f != nil {
		s.life.Tell(func() { f(s, e) })
	}
}

// An owner is a Socket as its connection knows it.
type owner Socket

// kindOf returns the kind of an event of a connection.
func kindOf(k conn.Kind) EventKind {
	return [...]EventKind{
		conn.Idle: EventIdle, conn.Aged: EventAged, conn.Slow: EventSlow, conn.Forgotten: EventForgotten,
		conn.Exceeded: EventOver, conn.Invalid: EventInvalid, conn.Closed: EventClosed,
	}[k]
}

// Happened implements [conn.Owner].
func (o *owner) Happened(e conn.Event) {
	if f := o.house.notify; f != nil {
		f((*Socket)(o), Event{kindOf(e.Kind), e.Name, e.Err})
	}
}

// Opened implements [conn.Owner].
func (o *owner) Opened() { o.house.fleet.Opened(&o.member) }

// Ended implements [conn.Owner]: it releases the slots.
func (o *owner) Ended() {
	o.house.fleet.Release(&o.member)
	o.house.fleet.Remove(&o.member)
}

// Within implements [conn.Owner].
func (o *owner) Within(ctx context.Context) context.Context {
	return context.WithValue(ctx, socketKey{}, (*Socket)(o))
}

// A member is a Socket as its fleet knows it.
type member Socket

// Since implements [fleet.Socket].
func (m *member) Since() time.Time { return m.life.Since() }

// Context implements [fleet.Socket].
func (m *member) Context() context.Context { return m.life.Context() }

// Ended implements [fleet.Socket].
func (m *member) Ended() bool { return m.life.Ended() }

// Close implements [fleet.Socket]. It is not limited by shadow mode.
func (m *member) Close(code int, reason string) { m.life.Close(code, reason) }

// Evicted implements [fleet.Socket].
func (m *member) Evicted(code int, reason string) {
	(*Socket)(m).notify(Event{Kind: EventEvicted})
	if !m.life.Spare() {
		m.life.Close(code, reason) // another has the slot
	}
}

// Surplus implements [fleet.Socket].
func (m *member) Surplus() {
	(*Socket)(m).notify(Event{Kind: EventShed})
	if !m.life.Spare() {
		m.life.Leave(frames.CodeTryAgain, "too many sockets are open; try again later")
	}
}

// Lost implements [fleet.Socket].
func (m *member) Lost() { (*Socket)(m).notify(Event{Kind: EventLost}) }

// A holder is a socket whose handshake was admitted.
type holder struct{ *Socket }

// End implements [holds.Held].
func (h holder) End() {
	if h.Since().IsZero() { // not served
		h.life.End()
	}
}

// Serve implements [holds.Held].
func (h holder) Serve(w http.ResponseWriter, r *http.Request, next http.Handler, fields func(http.Header), end func(status int, written int64, hijacked bool)) {
	conn.Serve(&h.life, w, r, next, fields, end)
}
