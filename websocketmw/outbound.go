// What a program may say about what clients read. It may not write or wait: package conn does.

package websocketmw

import (
	"fmt"
	"time"
)

// Outbound limits how far a client may fall behind in reading. The zero Outbound does not limit it.
// Then a write waits for as long as the client's connection takes no more, unless the handler has
// set a deadline.
type Outbound struct {
	_ struct{} // composite literals must name the fields

	// Timeout closes a socket if 32 KiB of a write, or the shorter rest of it, take longer than
	// this to send. So a client must read 32 KiB in a Timeout, or all that it gets. 0 means never.
	Timeout time.Duration

	// MaxUnsent makes the handler's writes return at once, and the guard send in the background. So
	// one client that does not read keeps nobody waiting. The socket is closed if a write finds
	// bytes unsent, and there would be more than MaxUnsent with it. The unsent bytes are sent
	// before the Close frame. Beyond twice MaxUnsent, they and the Close frame are not sent.
	// MaxUnsent should have room for several messages. Write deadlines have no effect then, and a
	// write reports the failure of an earlier one. After Close, up to 5 seconds are spent on
	// sending the rest. The buffers of an operating system, some 100 KiB or more, do not count. 0
	// means that writes wait.
	MaxUnsent int
}

// validate adds the faults of the Outbound.
func (o *Outbound) validate(f *faults) {
	if d := o.Timeout; d < 0 {
		f.add(fmt.Errorf("it is %v: it must not be negative, and 0 means never", d), "Outbound.Timeout")
	}
	if n := o.MaxUnsent; n < 0 {
		f.add(fmt.Errorf("it is %d: it must not be negative, and 0 means that writes wait", n), "Outbound.MaxUnsent")
	}
}
