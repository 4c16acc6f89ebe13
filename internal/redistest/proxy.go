package redistest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy stands between a client and a server, and makes the network between them
// fail. Its methods act at once, also on connections that exist, and a fault lasts
// until [Proxy.Heal]. Any goroutine may call them.
type Proxy struct {
	t       testing.TB
	target  string
	port    int
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool         // the test has ended
	listener net.Listener // nil while connections are refused
	links    map[*link]bool
	faults   faults
	changed  chan struct{} // closed when the faults change
}

// faults are what is wrong with the network. The zero value is a good one.
type faults struct {
	requests, replies fate
	delay             time.Duration // of replies
	cut               bool          // the next reply
	after             int           // that many bytes
}

// A fate is what happens to the bytes of one direction.
type fate int

const (
	pass fate = iota
	hold      // until Heal
	drop
)

// NewProxy starts a proxy for the server at an address.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{
		t:       t,
		target:  target,
		port:    Port(t),
		links:   make(map[*link]bool),
		changed: make(chan struct{}),
	}
	p.Heal()
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Cut()
		p.running.Wait()
	})
	return p
}

// Addr returns the address for the client to use.
func (p *Proxy) Addr() string { return address(p.port) }

// Cut closes all connections and refuses new ones, as if the server had been killed.
func (p *Proxy) Cut() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
		// A process that is being started at this moment has the listener too, until it
		// executes its program.
		wait(p.t, "closing the port", func() error {
			if !free(p.port) {
				return errors.New("it is open")
			}
			return nil
		})
	}
	for l := range p.links {
		l.close()
	}
}

// CutMidReply lets n more bytes of replies pass on the connection that has a reply
// next, and closes it. With 0, the server has executed a command and the client does
// not hear of it. Other connections and later ones are not touched. The replies of a
// client's handshake count like others: let it connect before.
func (p *Proxy) CutMidReply(n int) { p.change(func(f *faults) { f.cut, f.after = true, n }) }

// Delay makes every reply late by d.
func (p *Proxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// Blackhole accepts connections and loses all that is sent: the server never sees
// the requests.
func (p *Proxy) Blackhole() { p.change(func(f *faults) { f.requests, f.replies = drop, drop }) }

// Deafen loses the replies only: the server executes the requests.
func (p *Proxy) Deafen() { p.change(func(f *faults) { f.requests, f.replies = pass, drop }) }

// Hold keeps requests and replies until Heal. Then they arrive, late: the server also
// executes the requests of a client that has given up and disconnected.
func (p *Proxy) Hold() { p.change(func(f *faults) { f.requests, f.replies = hold, hold }) }

// Heal ends all faults. A connection that has lost bytes is closed: what follows on
// it would make no sense.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.change(func(f *faults) { *f = faults{} })
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.lossy {
			l.close()
		}
	}
	if p.listener != nil || p.closed {
		return
	}
	listener, err := listen(p.port)
	if err != nil {
		p.t.Errorf("redistest: proxy: %v", err)
		return
	}
	p.listener = listener
	p.running.Go(func() { p.accept(listener) })
}

func (p *Proxy) change(f func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.faults)
	close(p.changed)
	p.changed = make(chan struct{})
}

// accept takes connections until the listener is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(listener, client) })
	}
}

// serve connects a client of a listener with the server.
func (p *Proxy) serve(listener net.Listener, client net.Conn) {
	defer client.Close()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	server, err := dialer.DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	l := &link{proxy: p, client: client, server: server, ended: make(chan struct{})}
	p.mu.Lock()
	cut := p.listener != listener
	if !cut {
		p.links[l] = true
	}
	p.mu.Unlock()
	if cut {
		return
	}
	var both sync.WaitGroup
	both.Go(l.requests)
	both.Go(l.replies)
	both.Wait()
	p.mu.Lock()
	l.close()
	delete(p.links, l)
	p.mu.Unlock()
}

// A link is a client's connection, and the one to the server that belongs to it. The
// proxy's lock guards it.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	ended          chan struct{} // closed by close
	closed         bool
	lossy          bool // bytes were dropped
	cut            bool // it ends
	after          int  // that many bytes of replies from now
}

// close ends a link.
func (l *link) close() {
	if l.closed {
		return
	}
	l.closed = true
	close(l.ended)
	_ = l.client.Close()
	_ = l.server.Close()
}

// requests passes the requests on, and their end.
func (l *link) requests() {
	for c := range l.read(l.client) {
		if !l.await(c, func(f faults) (fate, time.Duration) { return f.requests, 0 }) {
			continue
		}
		if _, err := l.server.Write(c.bytes); err != nil {
			return
		}
		if server, ok := l.server.(*net.TCPConn); ok && c.last {
			_ = server.CloseWrite()
		}
	}
}

// replies passes the replies on. When they end, the link does.
func (l *link) replies() {
	for c := range l.read(l.server) {
		if !l.await(c, func(f faults) (fate, time.Duration) { return f.replies, f.delay }) {
			continue
		}
		n, cut := l.allowed(len(c.bytes))
		// The client may have gone: the server executes its requests all the same.
		_, _ = l.client.Write(c.bytes[:n])
		if cut || c.last {
			l.proxy.mu.Lock()
			l.close()
			l.proxy.mu.Unlock()
		}
	}
}

// allowed returns how many of n bytes of replies may pass, and whether the link is to
// be cut after them.
func (l *link) allowed(n int) (allowed int, cut bool) {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.cut && n > 0 {
		p.faults.cut = false
		l.cut, l.after = true, p.faults.after
	}
	if !l.cut {
		return n, false
	}
	n = min(n, l.after)
	l.after -= n
	return n, l.after == 0
}

// A chunk is what was read from a connection at once.
type chunk struct {
	at    time.Time
	bytes []byte
	last  bool
}

// read returns what arrives on a connection.
func (l *link) read(conn net.Conn) <-chan chunk {
	chunks := make(chan chunk, 256)
	l.proxy.running.Go(func() {
		defer close(chunks)
		for last := false; !last; {
			b := make([]byte, 16<<10)
			n, err := conn.Read(b)
			last = err != nil
			select {
			case chunks <- chunk{time.Now(), b[:n], last}:
			case <-l.ended:
				return
			}
		}
	})
	return chunks
}

// await waits as long as a chunk is held or delayed, and reports whether it is to be
// passed on. The fate is that of the chunk's direction, with the delay.
func (l *link) await(c chunk, fateOf func(faults) (fate, time.Duration)) bool {
	p := l.proxy
	for {
		p.mu.Lock()
		fate, delay := fateOf(p.faults)
		changed := p.changed
		if fate == drop {
			l.lossy = true
		}
		p.mu.Unlock()
		var due <-chan time.Time // never, if held
		switch fate {
		case drop:
			return false
		case pass:
			left := time.Until(c.at.Add(delay))
			if left <= 0 {
				return true
			}
			due = time.After(left)
		case hold:
		}
		select {
		case <-due:
		case <-changed:
		case <-l.ended:
			return false
		}
	}
}
