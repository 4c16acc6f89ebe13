package websocketmw

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// The sockets of a key are those that count for it, the oldest first, until they end. Rules of
// other names, and what would have been refused in shadow mode, are not among them.
func TestSocketsOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop := memstore.New(memstore.Config{})
		users, service := newSlots(t, shop, "user", 3), newSlots(t, memstore.New(memstore.Config{}), "service", 100)
		g, err := New(Config{ObserveOnly: true, Rules: []nethttp.Rule{
			{Slots: service, Key: func(*http.Request) (string, error) { return "anna", nil }},
			{Slots: users, Key: keyfuncs.Header("X-User")},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var open []nethttp.Verdict
		for i := range 10 {
			v := g.Check(upgradeRequest("X-User", []string{"anna", "ben"}[i%2]))
			if v.Status() != 0 {
				t.Fatal(v.Status())
			}
			open = append(open, v)
		}
		if all := g.Sockets("user", "anna"); len(all) != 3 || !all[0].Since().IsZero() {
			t.Fatal(len(all))
		}
		for _, i := range []int{4, 0, 2, 5, 1, 3} {
			serve(open[i])
			time.Sleep(time.Second)
		}
		check := func(slots, key string, want ...int) {
			t.Helper()
			var got []string
			for _, s := range g.Sockets(slots, key) {
				for i, v := range open {
					if socketOf(v) == s {
						got = append(got, fmt.Sprint(i))
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: sockets %v, not %v", slots, got, want)
			}
		}
		check("user", "anna", 4, 0, 2)
		check("user", "ben", 5, 1, 3)
		check("service", "anna", 4, 0, 2, 5, 1, 3)
		check("user", "")
		check("user", "service")
		check("", "anna")
		check("service", "ben")
		socketOf(open[0]).life.End()
		check("user", "anna", 4, 2)
		for _, v := range open {
			socketOf(v).life.End()
		}
		check("service", "anna")
	})
}

// To close the sockets of a user closes these with the code and the reason, and no others,
// and a second call does nothing.
func TestCloseTheSocketsOfAKey(t *testing.T) {
	for _, secure := range []bool{false, true} {
		shop := memstore.New(memstore.Config{})
		users := newSlots(t, shop, "user", 9)
		w := newWorld(t, 0, secure, Config{Rules: []nethttp.Rule{{Slots: users, Key: keyfuncs.Header("X-User")}}},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				c, _ := take(w)
				go serveUntilClose(c)
			}))
		dial := func(user string) *peer {
			p := w.dial(strings.Replace(handshakeText, "\r\n\r\n", "\r\nX-User: "+user+"\r\n\r\n", 1))
			p.respond()
			return p
		}
		anna, again, ben := dial("anna"), dial("anna"), dial("ben")
		for range 2 {
			for _, s := range w.guard.Sockets("user", "anna") {
				s.Close(4001, "signed out")
			}
		}
		for _, p := range []*peer{anna, again} {
			if got := p.closes(); got != "4001 signed out" {
				t.Error(got)
			}
			p.send(masked(0x88, ""))
			w.until(EventClosed)
		}
		if n, all := held(t, users, "anna"), w.guard.Sockets("user", "ben"); n != 0 || len(w.guard.Sockets("user", "anna")) != 0 || len(all) != 1 {
			t.Errorf("%d slots are held, %d sockets are left", n, len(all))
		}
		ben.Close()
		w.until(EventClosed)
	}
}

func held(t *testing.T, slots *core.Slots, key string) int64 {
	t.Helper()
	n, err := slots.Count(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A key with 100,000 sockets is listed whole, while others come and go.
func TestSocketsOfABusyKey(t *testing.T) {
	const sockets = 100_000
	users := newSlots(t, memstore.New(memstore.Config{}), "user", core.NoLimit)
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: users, Key: keyfuncs.Header("X-User")}}})
	if err != nil {
		t.Fatal(err)
	}
	r := upgradeRequest("X-User", "anna")
	for range sockets {
		g.Check(r)
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			default:
				v := g.Check(upgradeRequest("X-User", "ben"))
				socketOf(v).life.End()
			}
		}
	}()
	if all := g.Sockets("user", "anna"); len(all) != sockets {
		t.Errorf("%d sockets, not %d", len(all), sockets)
	}
	close(done)
	<-stopped
	for _, s := range g.Sockets("user", "anna") {
		s.life.End()
	}
	if n := held(t, users, "anna"); n != 0 || g.Len() != 0 {
		t.Errorf("%d slots and %d sockets are left", n, g.Len())
	}
}
