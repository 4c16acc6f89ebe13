package keyfuncs_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

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
	both := keyfuncs.XForwardedFor(keyfuncs.Unix, "10.0.0.0/8")
	alone := keyfuncs.XForwardedFor(keyfuncs.Unix)
	without := keyfuncs.XForwardedFor("10.0.0.0/8")
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

// Networks that are data are checked before they are used: what is accepted panics nowhere.
func TestCheckNetworks(t *testing.T) {
	for _, right := range [][]string{{keyfuncs.Unix}, {"10.0.0.0/8", "2001:db8::1"}, {keyfuncs.Unix, "10.0.0.1"}, {"::ffff:10.0.0.0/104"}, {"64:ff9b::a00:0/104"}} {
		if err := keyfuncs.CheckNetworks(right...); err != nil {
			t.Errorf("%q: %v", right, err)
		}
		usable(right...)
	}
	for _, c := range []struct{ networks, want []string }{
		{nil, []string{"no network"}},
		{[]string{"10.0.0.1/8"}, []string{"would be 10.0.0.0/8"}},
		{[]string{"Unix"}, []string{"neither"}},
		{[]string{"0.0.0.0/0", "10.0.0.0/8", "office", "::/0", "64:ff9b::/96"}, []string{`"0.0.0.0/0": it contains every`, `"office": neither`, `"::/0"`, `"64:ff9b::/96": it contains every`}},
		{[]string{"2002:c000:201::/48"}, []string{"IPv4"}},
	} {
		err := keyfuncs.CheckNetworks(c.networks...)
		if err == nil {
			t.Errorf("%q is not refused", c.networks)
			continue
		}
		wantLines(t, err.Error(), c.want)
	}
	if keyfuncs.In(keyfuncs.RemoteAddr(), keyfuncs.Unix)(from(&net.UnixAddr{Name: "/run/a.sock", Net: "unix"}, "@")) {
		t.Error("a client is in Unix")
	}
}

// usable panics if one of the functions refuses the networks.
func usable(networks ...string) {
	keyfuncs.XForwardedFor(networks...)
	keyfuncs.Forwarded(networks...)
	keyfuncs.ProxyHeader("X-Real-IP", networks...)
	keyfuncs.In(keyfuncs.RemoteAddr(), networks...)
}
