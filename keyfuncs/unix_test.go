package keyfuncs_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
)

// from returns a request that came over a connection to that address of the server.
func from(local net.Addr, remote string, lines ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remote
	r.Header["X-Forwarded-For"] = lines
	if lines == nil {
		delete(r.Header, "X-Forwarded-For")
	}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
}

// The peer on a unix socket is a proxy, if it is named as one; what else says so is not believed.
func TestUnix(t *testing.T) {
	unix, tcp := &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	both := must(keyfuncs.XForwardedFor(keyfuncs.Unix, "10.0.0.0/8"))
	alone := must(keyfuncs.XForwardedFor(keyfuncs.Unix))
	without := must(keyfuncs.XForwardedFor("10.0.0.0/8"))
	for _, c := range []struct {
		name string
		f    keyfuncs.Func
		r    *http.Request
		want string // empty: an error
	}{
		{"the client", alone, from(unix, "@", "192.0.2.1, 203.0.113.9"), "203.0.113.9"},
		{"a proxy before it", both, from(unix, "@", "192.0.2.1, 203.0.113.9, 10.0.0.2"), "203.0.113.9"},
		{"a proxy that is not named", alone, from(unix, "@", "192.0.2.1, 203.0.113.9, 10.0.0.2"), "10.0.0.2"},
		{"nobody", both, from(unix, "@"), ""},
		{"unknown", both, from(unix, "@", "192.0.2.1, unknown"), ""},
		{"empty", both, from(unix, "@", ""), ""},
		{"not named", without, from(unix, "@", "203.0.113.9"), ""},
		{"over TCP", alone, from(tcp, "198.51.100.1:80", "203.0.113.9"), "198.51.100.1"},
		{"over TCP, an address like that of a socket", alone, from(tcp, "@", "203.0.113.9"), ""},
		{"over TCP, from a proxy", both, from(tcp, "10.0.0.1:80", "203.0.113.9"), "203.0.113.9"},
	} {
		if key, err := c.f(c.r); key != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.name, key, err)
		}
	}
}

func TestTrusted(t *testing.T) {
	unix := &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}
	networks := core.Must(keyfuncs.Trusted("10.0.0.0/8", "2001:db8::/32"))
	socket := core.Must(keyfuncs.Trusted(keyfuncs.Unix))
	for remote, want := range map[string]bool{
		"10.0.0.1:80": true, "[::ffff:10.0.0.1]:80": true, "[2001:db8::1]:80": true,
		"11.0.0.1:80": false, "[64:ff9b::10.0.0.1]:80": false, "@": false, "": false,
	} {
		if got := networks(from(nil, remote)); got != want {
			t.Errorf("%s: %v", remote, got)
		}
		if socket(from(nil, remote)) {
			t.Errorf("%s: the peer is not on a socket", remote)
		}
	}
	if !socket(from(unix, "@")) || networks(from(unix, "@")) {
		t.Error("on a socket")
	}
	for _, wrong := range [][]string{nil, {"10.0.0.1/8"}, {"0.0.0.0/0"}, {"Unix"}} {
		if _, err := keyfuncs.Trusted(wrong...); err == nil {
			t.Errorf("%q is not refused", wrong)
		}
	}
}
