// What a program may say about what clients send, and the keys of that. It may not count or charge
// anything: package conn does.

package websocketmw

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/keyfuncs"
)

// Inbound is a limit on the messages, frames or bytes of clients. It applies to the bytes of the
// connection, so it works with any library. Input above the limit never reaches the library, unless
// Over is [Report] or the limiter returns an error.
type Inbound struct {
	_ struct{} // composite literals must name the fields

	// Limiter decides. Required. It is called once for each read, of a few kilobytes in most
	// libraries. It is called more often if it refuses, or if the read has more units than it ever
	// admits at once. With MinInterval, that is once for each unit. It is also called for each
	// message or frame if it has a policy with CountDenied.
	Limiter *core.Limiter

	// Key returns the key to charge, from the request of the upgrade, so that all
	// sockets of a user share a limit. Nil charges each socket separately; a store in
	// this process is enough then. If Key returns an error or an empty key, the upgrade
	// is refused.
	Key keyfuncs.Func

	// Unit is the counted unit. The zero value is [Messages].
	Unit Unit

	// Over is how the guard treats a socket over the limit. The zero value is [Close].
	Over Over
}

// A Unit is the unit that an Inbound counts.
type Unit uint8

const (
	// Messages are counted when they begin. A message may have any size and any number
	// of frames: also limit Bytes, or set the library's maximum message size. With
	// golang.org/x/net/websocket limit Frames instead: it hands each frame to the
	// handler as a message.
	Messages Unit = iota
	// Frames of messages are counted when they begin.
	Frames
	// Bytes of payload are counted as they arrive, before decompression. An empty
	// frame counts as one byte.
	Bytes
	// Controls are control frames. They are always limited. Without an Inbound of this unit, the
	// limit is 20 a second after a burst of 200, for each socket. An Inbound with a limiter of
	// [core.Unlimited] lifts it. A Close frame is free, and so is a pong for each ping that the
	// server sent. Config.NoCloseFrames hides these pings from the guard, so all pongs count.
	Controls
)

// Over is how the guard treats a socket over a limit of Inbound.
type Over uint8

const (
	// Close closes the socket with 1008 (policy violation). The handler reads the input within the
	// limit, to the byte, and nothing after it. If the limiter returns an error, because the store
	// is unreachable, the code is 1013 (try again later).
	Close Over = iota
	// Delay blocks the handler's Read until the limiter admits at least one unit. TCP slows the
	// client down meanwhile. The limiter may state a wait above 10 seconds, or above half the time
	// left to the read deadline. Then the socket is closed as by Close. So a policy of less than 6
	// a minute delays nothing. If the limiter returns an error, the data is read at once.
	Delay
	// Report only calls Config.Notify.
	Report
)

// validate adds the faults of Inbound[i].
func (in *Inbound) validate(f *faults, i int) {
	if in.Limiter == nil {
		f.add(errors.New("it is nil: make one with core.New"), "Inbound[%d].Limiter", i)
	}
	if in.Unit > Controls {
		f.add(fmt.Errorf("it is %d: use Messages, Frames, Bytes or Controls", in.Unit), "Inbound[%d].Unit", i)
	}
	if in.Over > Report {
		f.add(fmt.Errorf("it is %d: use Close, Delay or Report", in.Over), "Inbound[%d].Over", i)
	}
}

var errEmptyKey = errors.New("its Key returned an empty key without an error")

// budgetKeys returns the key for each limit.
func budgetKeys(all []Inbound, r *http.Request) ([]hidden.Text, error) {
	if len(all) == 0 {
		return nil, nil
	}
	keys := make([]hidden.Text, len(all))
	for i, in := range all {
		if in.Key == nil {
			keys[i] = hidden.Of(rand.Text())
			continue
		}
		k, err := in.Key(r)
		if err == nil && k == "" {
			err = errEmptyKey
		}
		if err != nil {
			return nil, fmt.Errorf("headgate: websocketmw: Inbound[%d] (limiter %q): %w", i, in.Limiter.Name(), err)
		}
		keys[i] = hidden.Of(k)
	}
	return keys, nil
}
