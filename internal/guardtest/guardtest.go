// Package guardtest has what the tests of adapters share: guards, requests, and what guards settle.
package guardtest

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// Own is a key that the client chooses.
var Own = keyfuncs.Header("X-Own")

// ErrAny is an error of a handler or a key.
var ErrAny = errors.New("any")

// Rule returns a rule for Own, with a store of its own.
func Rule(t testing.TB, name string, p core.Policy) nethttp.Rule {
	t.Helper()
	l, err := core.New(memstore.New(memstore.Config{}), name, p)
	if err != nil {
		t.Fatal(err)
	}
	return nethttp.Rule{Limiter: l, Key: Own}
}

// Guard returns a guard that must be valid.
func Guard(t testing.TB, c nethttp.Config) *nethttp.Guard {
	t.Helper()
	g, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Open returns a guard that admits whoever has the key.
func Open(t testing.TB, key keyfuncs.Func) *nethttp.Guard {
	t.Helper()
	rule := Rule(t, "open", core.Unlimited())
	rule.Key = key
	return Guard(t, nethttp.Config{Rules: []nethttp.Rule{rule}})
}

// Sockets returns a guard that lets Own have one socket.
func Sockets(t testing.TB, c websocketmw.Config) *websocketmw.Guard {
	t.Helper()
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "sockets", 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Rules = append(c.Rules, nethttp.Rule{Slots: slots, Key: Own})
	g, err := websocketmw.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Upgrade returns the handshake of a WebSocket, with fields.
func Upgrade(target string, fields ...string) *http.Request {
	return Request("GET", target, append(fields, "Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")...)
}

// Request returns a request with fields: names and values in turn.
func Request(method, target string, fields ...string) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), method, target, nil)
	for i := 1; i < len(fields); i += 2 {
		r.Header.Set(fields[i-1], fields[i])
	}
	return r
}

// Serve returns the response to a request.
func Serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A Secret is a string whose text is not its String.
type Secret string

// String implements [fmt.Stringer].
func (Secret) String() string { return "hidden" }

// An Outcomes is what a rule with Settle has seen.
type Outcomes struct {
	Guard   *nethttp.Guard // nil: Sockets is set
	Sockets *websocketmw.Guard

	last nethttp.Outcome
}

// Settling returns a guard for requests, whose limiter is "settled".
func Settling(t testing.TB) *Outcomes {
	t.Helper()
	o := &Outcomes{}
	o.Guard = Guard(t, nethttp.Config{Rules: []nethttp.Rule{o.rule(t)}})
	return o
}

// SettlingSockets returns one for sockets.
func SettlingSockets(t testing.TB) *Outcomes {
	t.Helper()
	o := &Outcomes{}
	o.Sockets = Sockets(t, websocketmw.Config{Rules: []nethttp.Rule{o.rule(t)}})
	return o
}

func (o *Outcomes) rule(t testing.TB) nethttp.Rule {
	t.Helper()
	rule := Rule(t, "settled", core.SlidingLog(core.PerHour(1000)))
	rule.Settle = func(_ *http.Request, got nethttp.Outcome) int64 {
		o.last = got
		return got.Cost
	}
	return rule
}

// Want asks for paths of a handler behind the guard, and compares the settled outcome. For the zero
// Outcome it compares nothing. To a guard of sockets, the requests are handshakes.
func (o *Outcomes) Want(t *testing.T, h http.Handler, want map[string]nethttp.Outcome) {
	t.Helper()
	for path, want := range want {
		o.last = nethttp.Outcome{}
		r := Request("GET", path, "X-Own", "anna")
		if o.Sockets != nil {
			r = Upgrade(path, "X-Own", "anna")
		}
		h.ServeHTTP(hijackable{httptest.NewRecorder()}, r)
		if o.last != want {
			t.Errorf("%s: %+v, want %+v", path, o.last, want)
		}
		if o.Sockets != nil && o.Sockets.Len() != 0 {
			t.Errorf("%s: %d sockets are left", path, o.Sockets.Len())
		}
	}
}

// hijackable is a recorder whose connection can be hijacked.
type hijackable struct{ *httptest.ResponseRecorder }

// Hijack implements [http.Hijacker]. The client has gone.
func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	server, client := net.Pipe()
	return server, nil, client.Close()
}
