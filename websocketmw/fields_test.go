package websocketmw

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Fields that are set twice, as by SetFields and then nethttp.Refuse, appear once.
func TestFieldsTwice(t *testing.T) {
	rate, err := core.New(memstore.New(memstore.Config{}), "handshakes", core.SlidingLog(core.PerHour(3)))
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Config{Rules: []nethttp.Rule{
		{Limiter: rate, Key: keyfuncs.RemoteAddr()},
		{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 0), Key: keyfuncs.RemoteAddr()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		status   int
		policies []string
	}{
		{429, []string{`"handshakes";q=3;w=3600, "ws";q=0;qu="concurrent-requests"`}},
		{429, []string{`"handshakes";q=3;w=3600`}}, // refused by the rate
	} {
		r := upgradeRequest()
		v := g.Check(r)
		w := httptest.NewRecorder()
		v.SetFields(w.Header())
		g.Refuse(w, r, v)
		if w.Code != want.status || !slices.Equal(w.Header().Values("RateLimit-Policy"), want.policies) ||
			len(w.Header().Values("RateLimit")) != len(want.policies) {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		if _, err := rate.AllowN(t.Context(), "192.0.2.1", 3); err != nil {
			t.Fatal(err)
		}
	}
}

// An error of the program in the Key of an Inbound is not the client's fault.
func TestInboundErrProgram(t *testing.T) {
	limiter, err := core.New(memstore.New(memstore.Config{}), "bytes", core.TokenBucket(core.PerSecond(1000), 1000))
	if err != nil {
		t.Fatal(err)
	}
	for want, fault := range map[int]error{500: keyfuncs.ErrProgram, 400: keyfuncs.ErrAbsent} {
		g, err := New(Config{
			Rules: []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.RemoteAddr()}},
			Inbound: []Inbound{{
				Limiter: limiter, Key: func(*http.Request) (string, error) { return "", fault },
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if v := g.Check(upgradeRequest()); v.Status() != want || !errors.Is(v.Err, fault) {
			t.Errorf("%d, %v; want %d", v.Status(), v.Err, want)
		}
	}
}
