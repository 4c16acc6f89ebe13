// The writer: it owns what the handler writes, and where the guard's Close frame fits. It may not read.

package conn

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const dropTime = 10 * time.Millisecond // how long a dropped write takes

// A writer passes on what the handler writes: the 101 with the guard's fields, then frames, and
// between two of them the guard's Close frame.
type writer struct {
	inner net.Conn
	life  *Life
	slow  *sender // nil without a limit

	mu       sync.Mutex       // guards what follows, and the order of writes
	response *frames.Response // nil once the 101 was written
	own      http.Header      // the guard's fields, for the 101
	place    frames.Walker
	closed   bool        // a Close frame was written
	mute     bool        // by the guard
	wanted   atomic.Bool // the guard wants to write a Close frame; mu does not guard it
}

// follows reports whether the frames that are written are followed.
func (w *writer) follows() bool { return !w.life.rules.NoFollowing }

// Write writes what the library does, and the guard's Close frame at the end of a frame.
func (w *writer) Write(p []byte) (int, error) {
	if !w.follows() && w.slow == nil && w.life.switched.Load() {
		return w.inner.Write(p)
	}
	n, err := w.write(p)
	w.trySendClose()
	return n, err
}

func (w *writer) write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	if !w.life.switched.Load() {
		var err error
		if n, err = w.respond(p); err != nil || n == len(p) {
			return n, err
		}
	}
	write := w.writeFrames
	if !w.follows() {
		write = w.send
	}
	m, err := write(p[n:])
	return n + m, err
}

// respond writes the part of p that belongs to the library's response.
func (w *writer) respond(p []byte) (int, error) {
	first := !w.response.Begun()
	n, switched := w.response.Scan(p)
	if switched {
		w.life.agree(w.response.Extensions())
	}
	out, added := p[:n], 0
	if first {
		out, added = frames.WithFields(out, w.own)
		w.own = nil
	}
	written, err := w.inner.Write(out)
	if err != nil {
		return min(max(written-added, 0), n), err
	}
	if switched {
		w.life.opens()
		w.response = nil
	}
	return n, nil
}

// writeFrames writes frames. If the guard wants to close, it stops at the end of the
// current frame.
func (w *writer) writeFrames(p []byte) (n int, err error) {
	if w.wanted.Load() && !w.closed {
		ahead := w.place
		if k := ahead.Finish(p); k > 0 {
			if n, err = w.pass(p[:k]); err != nil {
				return n, err
			}
		}
		w.sendClose()
	}
	switch {
	case w.mute:
		return w.drop(n, p)
	case n == len(p):
		return n, nil
	}
	m, err := w.pass(p[n:])
	return n + m, err
}

// drop reports all of p as written, though only n bytes were: after an error the handler
// might close the connection before the peer has read the Close frame. It waits for
// dropTime, so that a handler that keeps writing does not spin. Once the socket has
// ended, it returns an error.
func (w *writer) drop(n int, p []byte) (int, error) {
	pause := time.NewTimer(dropTime)
	defer pause.Stop()
	select {
	case <-w.life.Context().Done():
		return n, net.ErrClosed
	case <-pause.C:
		return len(p), nil
	}
}

// send writes p within the limits of the Rules.
func (w *writer) send(p []byte) (int, error) {
	if w.slow == nil {
		return w.inner.Write(p)
	}
	return w.sendSlowly(p)
}

// sendSlowly is send with limits.
func (w *writer) sendSlowly(p []byte) (int, error) {
	n, err := w.slow.write(p, false)
	if _, _, closing := w.life.Closing(); closing && w.follows() {
		w.wanted.Store(true) // now: sayClose may be late, and the handler go on
	}
	return n, err
}

// pass writes p and follows its frames.
func (w *writer) pass(p []byte) (int, error) {
	n, err := w.send(p)
	closes, pings := w.place.Walk(p[:n])
	w.closed = w.closed || closes
	if pings > 0 {
		w.life.pings.Add(pings)
	}
	return n, err
}

// trySendClose is called after wanted was set and after every write, so that the Close
// frame is written by whichever comes last.
func (w *writer) trySendClose() {
	if w.wanted.Load() && w.mu.TryLock() {
		w.sendClose()
		w.mu.Unlock()
	}
}

// sendClose writes the Close frame if it is wanted and no frame is incomplete. w.mu is
// held.
func (w *writer) sendClose() {
	if !w.wanted.Load() || w.closed || !w.place.Between() || !w.life.switched.Load() {
		return
	}
	why := w.life.whyClosing()
	w.closed, w.mute = true, true
	_ = w.inner.SetWriteDeadline(why.end)
	frame := frames.Close(why.code, why.reason)
	if w.slow.queues() {
		_, _ = w.slow.write(frame, true)
		return
	}
	_, _ = w.inner.Write(frame)
}
