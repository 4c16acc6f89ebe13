package thirdparty

import (
	"encoding/binary"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/headgate/headgate/websocketmw"
)

// A newcomer takes the place of the oldest socket, and is closed with all of its key, whatever
// the library and the framework. One whose client leaves before the 101 evicts nobody.
func TestEvictedAndClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until sockets are old enough to be evicted: not with -short")
	}
	t.Parallel()
	type full struct {
		*site

		name  string
		first *caller
		begun chan struct{} // a handshake whose client will leave has come to the handler
	}
	var all []full
	for _, l := range libraries {
		for _, m := range mounts {
			begun := make(chan struct{})
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Leaves") != "" {
					close(begun)
					<-r.Context().Done()
				}
				l.upgrade(w, r, func(s socket) {
					for {
						if _, err := s.Read(); err != nil {
							s.Close()
							return
						}
					}
				})
			})
			s := newSite(t, m, h, false, websocketmw.Config{Rules: []websocketmw.Rule{{WhenFull: websocketmw.EvictOldest}}})
			first, ok := s.open()
			if !ok {
				t.Fatalf("%s/%s: the first is refused", l.name, m.name)
			}
			all = append(all, full{s, l.name + "/" + m.name, first, begun})
		}
	}
	<-time.After(11 * time.Second)
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			s.t = t
			s.leaves(s.begun)
			second, ok := s.open()
			for deadline := time.Now().Add(time.Minute); !ok && time.Now().Before(deadline); second, ok = s.open() {
				<-time.After(time.Second) // the machine is busy: nobody answered in time
			}
			if !ok {
				t.Fatal("the second is refused")
			}
			s.ends(s.first, 1008, websocketmw.ErrEvicted)
			n, err := s.guard.CloseAll(t.Context(), s.slots, "everyone", 4002, "signed out")
			if err != nil || n != 1 {
				t.Errorf("%d, %v", n, err)
			}
			s.ends(second, 4002, nil)
			s.balanced()
		})
	}
}

// open opens a socket, if it is admitted.
func (s *site) open() (c *caller, admitted bool) {
	s.t.Helper()
	c, response := s.call()
	return c, response != nil && response.StatusCode == http.StatusSwitchingProtocols
}

// leaves begins a handshake, once the slots admit one more, whose client leaves before the 101. It waits until its slot
// is free.
func (s *site) leaves(begun <-chan struct{}) {
	s.t.Helper()
	for came := false; !came; {
		c := s.send("Upgrade: websocket", "Origin: http://"+s.server.Listener.Addr().String(), "Leaves: yes")
		refused := make(chan struct{})
		go func() {
			_, _ = c.in.ReadByte()
			close(refused)
		}()
		select {
		case <-begun:
			came = true
		case <-refused: // the machine is busy: nobody answered in time
		}
		c.Close()
	}
	if why := <-s.closed; why != nil {
		s.t.Errorf("who has left: %v", why)
	}
	if n, err := s.slots.Count(s.t.Context(), "everyone"); n != 1 || err != nil {
		s.t.Errorf("%d slots are held, %v", n, err)
	}
}

// ends reads the end of a socket, and answers it.
func (s *site) ends(c *caller, code uint16, cause error) {
	s.t.Helper()
	op, payload, err := c.read()
	if err != nil || op != 0x8 || len(payload) < 2 || binary.BigEndian.Uint16([]byte(payload)) != code {
		s.t.Fatalf("%x %q %v, want a Close with %d", op, payload, err, code)
	}
	if err := c.write(0x88, payload[:2]); err != nil {
		s.t.Error(err)
	}
	if why := <-s.closed; !errors.Is(why, cause) {
		s.t.Errorf("%v, not %v", why, cause)
	}
}
