package websocketmw

// An Event is something that became of a socket.
type Event struct {
	Kind  EventKind
	Limit string // of EventOver: the limiter's name
	Err   error  // of EventOver: why the limiter could not tell, if so
}

// An EventKind says what it was.
type EventKind uint8

const (
	// EventClosed: the socket has ended, and its slots are free. It is the last event.
	EventClosed EventKind = iota
	// EventIdle: the guard closes the socket for Config.MaxIdle.
	EventIdle
	// EventAged: the guard closes the socket for Config.MaxAge.
	EventAged
	// EventLost: the slots were lost for a time, see core.Slot.Lost.
	EventLost
	// EventForgotten: the handler lost the connection without closing it.
	EventForgotten
	// EventOver: the client sent more than a limit of Config.Inbound.
	EventOver
)

// String returns a short name for logs and metrics.
func (k EventKind) String() string {
	names := [...]string{"closed", "idle", "aged", "lost", "forgotten", "over"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}
