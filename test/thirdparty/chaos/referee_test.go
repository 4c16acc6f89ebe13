package chaos

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
)

// A referee knows what all servers truly hold. Each tells it of a slot after it was granted
// and before it is released, and waits until that is noted; so whatever the referee counts
// together was held at the same time, however busy the machine is.
type referee struct {
	limit    int
	listener net.Listener

	mu      sync.Mutex
	changed chan struct{} // closed with each event
	servers map[string]*told
	live    map[*hold]bool
	events  []event // since the last verdict
	before  map[*hold]bool
	grants  int
}

// told is what a server has said.
type told struct {
	name  string
	holds map[string]*hold
	gone  bool
}

// A hold is a slot that was granted.
type hold struct {
	key     string
	server  *told
	excused bool // may exceed the limit: it was lost, or granted without Redis
}

// An event is a grant, an end, or that from now on a key may have so many slots.
type event struct {
	hold  *hold
	grant bool
	ended bool
	most  int
}

func newReferee(t *testing.T, limit int) *referee {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &referee{
		limit: limit, listener: l, changed: make(chan struct{}),
		servers: make(map[string]*told), live: make(map[*hold]bool), before: make(map[*hold]bool),
	}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { l.Close() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.listen(c) })
		}
	})
	return r
}

// listen notes what a server says, until it ends.
func (r *referee) listen(c net.Conn) {
	defer c.Close()
	in := bufio.NewScanner(c)
	in.Scan()
	s := &told{name: in.Text(), holds: make(map[string]*hold)}
	r.locked(func() { r.servers[s.name] = s })
	for in.Scan() {
		r.locked(func() { r.note(s, strings.Fields(in.Text())) })
		if _, err := fmt.Fprintln(c, "noted"); err != nil {
			break
		}
	}
	r.locked(func() {
		for _, h := range s.holds {
			r.end(h)
		}
		s.gone = true
	})
}

func (r *referee) note(s *told, words []string) {
	if words[0] == "died" {
		s.excuse()
		return
	}
	id := words[1]
	switch h := s.holds[id]; words[0] {
	case "granted", "granted-locally":
		h = &hold{key: words[2], server: s, excused: words[0] == "granted-locally"}
		s.holds[id] = h
		r.live[h] = true
		r.events = append(r.events, event{hold: h, grant: true})
		r.grants++
	case "ended":
		r.end(h)
	case "lost":
		h.excused = true
	}
}

func (r *referee) end(h *hold) {
	if r.live[h] {
		delete(r.live, h)
		r.events = append(r.events, event{hold: h, ended: true})
	}
}

func (r *referee) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// allow notes that from now on a key may have so many slots.
func (r *referee) allow(most int) {
	r.locked(func() { r.events = append(r.events, event{most: most}) })
}

// dies notes that a server is about to be killed.
func (r *referee) dies(name string) { r.locked(func() { r.servers[name].excuse() }) }

// excuse excuses what the server holds and held: others may have its slots since its last
// heartbeat, and it may have released some before it knew.
func (s *told) excuse() {
	for _, h := range s.holds {
		h.excused = true
	}
}

func (r *referee) gone(name string) (gone bool) {
	r.locked(func() { gone = r.servers[name].gone })
	return gone
}

// held returns how many slots of a key are held.
func (r *referee) held(key string) (n int) {
	r.locked(func() {
		for h := range r.live {
			if h.key == key {
				n++
			}
		}
	})
	return n
}

func (r *referee) granted() (n int) {
	r.locked(func() { n = r.grants })
	return n
}

// faults returns the grants since the last verdict that were too many: beyond what one server
// may hold, or what all may that have not lost theirs.
func (r *referee) faults() (faults []string) {
	r.locked(func() {
		live := make(map[*hold]bool)
		for h := range r.before {
			live[h] = true
		}
		most := r.limit
		for i, e := range r.events {
			switch {
			case e.most > 0:
				most = e.most
				continue
			case e.ended:
				delete(live, e.hold)
				continue
			}
			live[e.hold] = true
			if !e.grant {
				continue
			}
			own, all := 0, 0
			for h := range live {
				if h.key == e.hold.key {
					if h.server == e.hold.server {
						own++
					}
					if !h.excused {
						all++
					}
				}
			}
			if own > r.limit || all > most && !e.hold.excused {
				faults = append(faults, fmt.Sprintf("event %d of %d: %s has been granted a slot of %s: it holds %d, all hold %d, and may hold %d",
					i, len(r.events), e.hold.server.name, e.hold.key, own, all, most))
			}
		}
	})
	return faults
}

// forget begins the next verdict.
func (r *referee) forget() {
	r.locked(func() {
		r.events = nil
		clear(r.before)
		for h := range r.live {
			r.before[h] = true
		}
	})
}

// A refereed store tells the referee what it grants.
type refereed struct {
	slots.Registry

	count atomic.Int64 // of grants
	held  atomic.Int64
	mu    sync.Mutex
	line  net.Conn
	in    *bufio.Reader
}

func newRefereed(address, name string) (*refereed, error) {
	line, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(line, name)
	return &refereed{line: line, in: bufio.NewReader(line)}, err
}

// tell returns when the referee has noted it. If it is gone, so is the test.
func (s *refereed) tell(words ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintln(s.line, words...)
	_, _ = s.in.ReadString('\n')
}

func (s *refereed) Backend() *backend.Stores { return &backend.Stores{Slots: s} }

func (s *refereed) Acquire(ctx context.Context, c slots.Acquisition) (slots.Grant, error) {
	g, err := s.Registry.Acquire(ctx, c)
	if err != nil {
		return g, err
	}
	what := "granted"
	if g.Source == step.SourceLocal {
		what = "granted-locally"
	}
	h := &refereedHold{Hold: g.Hold, s: s, id: s.count.Add(1), over: make(chan struct{})}
	s.held.Add(1)
	s.tell(what, h.id, c.Key)
	go func() {
		select {
		case <-h.Lost():
			s.tell("lost", h.id)
		case <-h.over:
		}
	}()
	g.Hold = h
	return g, nil
}

type refereedHold struct {
	slots.Hold

	s    *refereed
	id   int64
	over chan struct{}
}

func (h *refereedHold) Release() {
	select {
	case <-h.Lost():
		h.s.tell("lost", h.id)
	default:
	}
	close(h.over)
	h.s.tell("ended", h.id)
	h.s.held.Add(-1)
	h.Hold.Release()
}
