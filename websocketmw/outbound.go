package websocketmw

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// An output is what a socket knows of the bytes that the handler writes: the 101, then frames, and between two of
// them the guard's Close frame.
type output struct {
	mu       sync.Mutex // guards what follows, and the order of writes
	response *frames.Response
	walker   frames.Walker
	closed   bool // a Close frame was written
	drops    bool // the guard has written it: the rest of what the handler writes is dropped

	wantsClose atomic.Bool  // the guard wants to write a Close frame
	pings      atomic.Int64 // that were written, and of which the reader does not know
}

const dropTime = 10 * time.Millisecond // how long a write takes that is dropped

// write writes what the library does, and the guard's Close frame at the end of a frame.
func (s *Socket) write(data []byte) (n int, err error) {
	s.out.mu.Lock()
	if !s.upgraded.Load() {
		n, err = s.writeResponse(data)
	}
	if err == nil && n < len(data) {
		var written int
		written, err = s.writeFrames(data[n:])
		n += written
	}
	s.out.mu.Unlock()
	s.trySendClose()
	return n, err
}

// writeResponse writes the part of data that belongs to the library's response.
func (s *Socket) writeResponse(data []byte) (int, error) {
	var response frames.Response
	if s.out.response != nil {
		response = *s.out.response
	}
	n, switched := response.Scan(data)
	if switched {
		s.extensions.Store(uint32(response.Extensions))
		s.out.response = nil
	} else {
		s.out.response = keep(response)
	}
	written, err := s.conn.Write(data[:n])
	if err != nil {
		return written, err
	}
	if switched { // only now: a 101 that was not written has not upgraded
		s.noteUpgrade()
	}
	return n, nil
}

// keep moves a response to the heap: only one that is written in pieces needs that.
func keep(response frames.Response) *frames.Response { return &response }

// writeFrames writes frames. If the guard wants to close, it stops at the end of the current frame.
func (s *Socket) writeFrames(data []byte) (n int, err error) {
	if s.out.wantsClose.Load() && !s.out.closed {
		ahead := s.out.walker // a copy: writeThrough moves the walker by what was written
		end := ahead.Finish(data)
		if end > 0 {
			n, err = s.writeThrough(data[:end])
			if err != nil {
				return n, err
			}
		}
		s.sendClose()
	}
	switch {
	case s.out.drops:
		return s.dropWrite(n, data)
	case n == len(data):
		return n, nil
	}
	written, err := s.writeThrough(data[n:])
	return n + written, err
}

// dropWrite reports all of data as written, though only n bytes were: after an error the handler might close the
// connection before the peer has read the Close frame. It waits, so that a handler that keeps writing does not spin.
func (s *Socket) dropWrite(n int, data []byte) (int, error) {
	pause := time.NewTimer(dropTime)
	defer pause.Stop()
	select {
	case <-s.Context().Done():
		return n, net.ErrClosed
	case <-pause.C:
		return len(data), nil
	}
}

// writeThrough writes data and follows its frames.
func (s *Socket) writeThrough(data []byte) (int, error) {
	n, err := s.conn.Write(data)
	closes, pings := s.out.walker.Walk(data[:n])
	s.out.closed = s.out.closed || closes
	if pings > 0 {
		s.out.pings.Add(pings)
	}
	return n, err
}

// requestClose writes the guard's Close frame now, or has the current write do so.
func (s *Socket) requestClose() {
	s.out.wantsClose.Store(true)
	s.trySendClose()
}

// trySendClose is called after wantsClose was set and after every write, so that the Close frame is written by
// whichever comes last.
func (s *Socket) trySendClose() {
	if s.out.wantsClose.Load() && s.out.mu.TryLock() {
		s.sendClose()
		s.out.mu.Unlock()
	}
}

// sendClose writes the Close frame if it is wanted and no frame is incomplete. out.mu is held.
func (s *Socket) sendClose() {
	isDue := s.out.wantsClose.Load() && !s.out.closed
	if !isDue || !s.out.walker.Between() || !s.upgraded.Load() {
		return
	}
	s.mu.Lock()
	closing := *s.closing
	s.mu.Unlock()
	s.out.closed = true
	s.out.drops = true
	_ = s.conn.SetWriteDeadline(closing.endsAt) // a client that does not read must not hold the connection
	_, _ = s.conn.Write(frames.Close(closing.code, closing.reason))
}
