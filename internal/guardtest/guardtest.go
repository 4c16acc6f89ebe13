// Package guardtest has what the tests of adapters for frameworks share.
package guardtest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Own is a key that the client chooses.
var Own = keyfuncs.Header("X-Own")

// ErrAny is an error of a handler or a key.
var ErrAny = errors.New("any")

// Guard returns a guard that must be valid.
func Guard(t testing.TB, c nethttp.Config) *nethttp.Guard {
	t.Helper()
	g, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Open returns a guard that admits whoever has the key, and Closed one that admits nobody.
func Open(key keyfuncs.Func) *nethttp.Guard {
	return nethttp.Limit(new(core.MemoryStore), "open", key, core.Unlimited())
}

// Closed is described with Open.
func Closed() *nethttp.Guard {
	return nethttp.Limit(new(core.MemoryStore), "closed", Own, core.Blocked())
}

// Request returns a request with fields: names and values in turn.
func Request(method, target string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
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

// Values are what middleware before a guard stores in the context of a framework.
var Values = map[string]any{"text": "ben", "secret": Secret("s3cret"), "number": uint8(42), "empty": "", "nil": nil, "struct": struct{ n int }{4711}}

// CheckKeys compares keys of a framework, and their errors, under a guard. The application is served by a framework
// whose context has Values; a guard in it uses the key. Its refusals must be errors to the framework, which failed
// returns.
func CheckKeys(t *testing.T, value func(name string) keyfuncs.Func, app func(key keyfuncs.Func) (h http.Handler, failed func() error)) {
	t.Helper()
	for name, want := range map[string]any{
		"text": "ben", "secret": "s3cret", "number": "42", "empty": keyfuncs.ErrAbsent, "nil": keyfuncs.ErrAbsent,
		"none": keyfuncs.ErrAbsent, "struct": keyfuncs.ErrProgram,
	} {
		var got string
		key := keyfuncs.First(keyfuncs.Tag("none", value("none")), keyfuncs.Tag("value", value(name)))
		h, failed := app(func(r *http.Request) (text string, err error) {
			got, err = key(r)
			return got, err
		})
		w := Serve(h, Request("GET", "/"))
		wrong, _ := want.(error)
		status, text := 204, fmt.Sprint("value:", want)
		if wrong != nil {
			status, text = 400, ""
			if errors.Is(wrong, keyfuncs.ErrProgram) {
				status = 500
			}
		}
		err := failed()
		var v *nethttp.Verdict
		if w.Code != status || got != text || (err == nil) != (wrong == nil) || err != nil && (!errors.Is(err, wrong) || !errors.As(err, &v) || v.Status != status) {
			t.Errorf("%s: %d %q %v, want %d %q %v", name, w.Code, got, err, status, text, wrong)
		}
		if strings.Contains(fmt.Sprint(err), "4711") {
			t.Errorf("the error has the value: %v", err)
		}
	}
}

// Settling returns a guard whose rule has Settle, and a function that asks for the paths of a handler behind it, and
// compares the outcomes.
func Settling(t *testing.T) (guard *nethttp.Guard, limiter *core.Limiter, want func(h http.Handler, want map[string]nethttp.Outcome)) {
	t.Helper()
	var last nethttp.Outcome
	limiter = core.NewLimiter(new(core.MemoryStore), "settled", core.FixedWindow(1000, time.Hour))
	guard = Guard(t, nethttp.Config{Rates: []nethttp.Rate{{Limiter: limiter, Key: Own, Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
		last = o
		return o.Cost
	}}}})
	return guard, limiter, func(h http.Handler, want map[string]nethttp.Outcome) {
		t.Helper()
		for path, want := range want {
			last = nethttp.Outcome{}
			h.ServeHTTP(hijackable{httptest.NewRecorder()}, Request("GET", path, "X-Own", "anna"))
			if last != want {
				t.Errorf("%s: %+v, want %+v", path, last, want)
			}
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
