// The events that programs are told. They are values, and touch nothing.

package websocketmw

// An Event is something that happened to a socket.
type Event struct {
	Kind  EventKind
	Limit string // for EventOver: the name of the limiter, or "control-frames" for the guard's own
	Err   error  // for EventOver: the error of the limiter, if it could not decide; for EventInvalid: the forbidden frame
}

// An EventKind is the kind of an [Event].
type EventKind uint8

const (
	// EventClosed: the socket has ended and its slots are released. This is the last
	// event. It comes when Notify has returned from all others.
	EventClosed EventKind = iota
	// EventIdle: the guard closes the socket because of Config.MaxIdle.
	EventIdle
	// EventAged: the guard closes the socket because of Config.MaxAge.
	EventAged
	// EventLost: the slots were lost, see core.Slot.Lost.
	EventLost
	// EventShed: there were too many sockets, and the guard closes this one. The cause is
	// Config.OnExcess, or that no other gave up its slot for it under EvictOldest.
	EventShed
	// EventForgotten: the handler dropped the connection without closing it.
	EventForgotten
	// EventOver: the client exceeded a limit of Config.Inbound, or the limiter could
	// not decide. It happens at most once for each read.
	EventOver
	// EventInvalid: the client sent what RFC 6455 forbids, and the guard closes the
	// socket.
	EventInvalid
	// EventEvicted: a newer socket has got the slot of this one, which the guard closes, under
	// EvictOldest.
	EventEvicted
	// EventSlow: the client reads too slowly for Config.Outbound, and the guard closes the
	// socket. It may happen during a write, so Notify must not write to the socket.
	EventSlow
)

// String returns a short name for logs and metrics: closed, idle, aged, lost, shed,
// forgotten, over, invalid, evicted or
// slow.
func (k EventKind) String() string {
	names := [...]string{"closed", "idle", "aged", "lost", "shed", "forgotten", "over", "invalid", "evicted", "slow"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}
