// The Rules of all sockets of a guard, and what happens to one. They do not change, and touch nothing.

package conn

import (
	"slices"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// CloseTimeout is how long the handler has to close a socket that the guard closes.
const CloseTimeout = 5 * time.Second

// controlName is the name of the limit on control frames without a Bound of that Unit.
const controlName = "control-frames"

const (
	maxRead   = 64 << 10 // bytes at once, which bounds the memory for their frames
	maxCharge = 1 << 30  // units at once
)

// Rules are what all sockets of a guard have in common. They do not change.
type Rules struct {
	ObserveOnly bool          // no socket is closed or delayed; it is spared instead
	NoFollowing bool          // frames that are written are not followed: there are no Close frames
	MaxIdle     time.Duration // 0: never
	MaxAge      time.Duration // 0: never
	Timeout     time.Duration // of a write; 0: never
	MaxUnsent   int           // bytes; 0: writes wait

	bounds []bound
	most   int  // bytes to read at once
	delays bool // one of the bounds delays
}

// A Bound is a limit on what a client sends.
type Bound struct {
	Limiter *core.Limiter
	Unit    frames.Unit
	Over    Over
}

// Over is what happens to a socket over a Bound.
type Over uint8

// What happens.
const (
	Close  Over = iota // it is closed
	Delay              // its reads are delayed
	Report             // nothing
)

// A bound is a Bound, or the guard's own limit on control frames, which has no Limiter.
type bound struct {
	Bound

	batch int64 // units to charge at once
}

// name returns the name for events and Close frames.
func (b *bound) name() string {
	if b.Limiter == nil {
		return controlName
	}
	return b.Limiter.Name()
}

// Bind sets the limits on what clients send, in the order in which they are charged.
func (r *Rules) Bind(all []Bound) {
	r.most = maxRead
	limited := false
	for _, one := range all {
		b := bound{one, maxCharge}
		for _, p := range one.Limiter.Policies() {
			b.batch = max(1, min(b.batch, p.Limit()))
		}
		if one.Unit == frames.Bytes {
			r.most = min(r.most, int(b.batch))
		} else if slices.ContainsFunc(one.Limiter.Policies(), core.Policy.CountsDenied) {
			b.batch = 1 // a batch that is refused would count as that many refusals
		}
		r.bounds = append(r.bounds, b)
		r.delays = r.delays || one.Over == Delay
		limited = limited || one.Unit == frames.Controls
	}
	if !limited {
		r.bounds = append(r.bounds, bound{Bound{Unit: frames.Controls}, maxCharge})
	}
}

// An Event is something that happened to a socket.
type Event struct {
	Kind Kind
	Name string // for Exceeded: of the limit
	Err  error  // for Exceeded: the error of the limiter, if it could not decide; for Invalid: the forbidden frame
}

// A Kind is the kind of an [Event].
type Kind uint8

// What may happen.
const (
	Idle      Kind = iota // it is closed because of MaxIdle
	Aged                  // it is closed because of MaxAge
	Slow                  // it is closed because of Timeout or MaxUnsent
	Forgotten             // the handler dropped the connection without closing it
	Exceeded              // the client exceeded a Bound
	Invalid               // the client sent what RFC 6455 forbids
	Closed                // it has ended
)
