package keyfuncs_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

// trusted are the proxies of these tests: a network of each kind, and one address.
var trusted = []string{"10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.80"}

// request returns a request from remote with the lines of one header.
func request(remote, header string, lines ...string) *http.Request {
	r := &http.Request{Method: "GET", RemoteAddr: remote, Header: http.Header{}}
	for _, line := range lines {
		r.Header.Add(header, line)
	}
	return r
}

func wantKey(t *testing.T, f keyfuncs.Func, r *http.Request, want string) {
	t.Helper()
	if got, err := f(r); err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// wantClient is wantKey for proxies. If no key is wanted, an error is: not one after which
// First would go on, nor one with anything that was written.
func wantClient(t *testing.T, f keyfuncs.Func, r *http.Request, want string) {
	t.Helper()
	if want != "" {
		wantKey(t, f, r, want)
		return
	}
	key, err := f(r)
	if key != "" || err == nil || errors.Is(err, keyfuncs.ErrAbsent) || !strings.Contains(err.Error(), "named no client") {
		t.Errorf("got %q, %v; want an error", key, err)
	}
	if err != nil && strings.Contains(err.Error(), "203.0.113") {
		t.Errorf("the error holds an address: %v", err)
	}
}

func TestRemoteAddr(t *testing.T) {
	for _, c := range []struct{ remote, want string }{
		{"203.0.113.7:4711", "203.0.113.7"},
		{"203.0.113.7", "203.0.113.7"}, // as some middlewares leave it
		{"10.1.2.3:80", "10.1.2.3"},
		{"127.0.0.1:80", "127.0.0.1"},
		{"[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"},
		{"[2001:DB8:1:2::]:4711", "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64"},
		{"[::1]:80", "::/64"},
		{"[fe80::1%eth0]:80", "fe80::/64"},
		{"[fe80::1%a]b]:80", "fe80::/64"}, // an interface may be named so
		{"fe80::1%eth0", "fe80::/64"},
		{"[::ffff:203.0.113.7]:80", "203.0.113.7"},
		{"[::ffff:cb00:7107]:80", "203.0.113.7"},
		{"[::ffff:203.0.113.7%eth0]:80", "203.0.113.7"},
		{"[64:ff9b::203.0.113.7]:80", "203.0.113.7"},
		{"[64:ff9b::cb00:7107]:80", "203.0.113.7"},
		{"[64:ff9b:1::203.0.113.7]:80", "64:ff9b:1::/64"}, // RFC 8215: each operator's own

		// One IPv4 address has all of these networks by 6to4 and Teredo.
		{"[2002:cb00:7107::1]:80", "203.0.113.7"},
		{"[2002:cb00:7107:ffff:3:4:5:6]:80", "203.0.113.7"},
		{"[2002:cb00:7107:1::%eth0]:80", "203.0.113.7"},
		{"[2003:cb00:7107::1]:80", "2003:cb00:7107::/64"},
		{"[2002:a00:1::1]:80", "2002:a00:1::/64"}, // 10.0.0.1 has none
		{"[2002:7f00:1::1]:80", "2002:7f00:1::/64"},
		{"[2001:0:1:2:3:4:f5ff:fffe]:80", "2001:0:1:2::/64"},
		{"[2001:ffff:ffff::1]:80", "2001:ffff:ffff::/64"},
		{"[2001:0:4136:e378:8000:63bf:34ff:8ef8]:80", "203.0.113.7"}, // the example of RFC 4380, but for the address
		{"[2001:0:1:2:3:4:34ff:8ef8]:80", "203.0.113.7"},
		{"[2001:1::34ff:8ef8]:80", "2001:1::/64"},

		// What stands for IPv4 within one network of 64 bits gives nobody another.
		{"[::203.0.113.7]:80", "::/64"},                               // IPv4-compatible, RFC 4291
		{"[::ffff:0:203.0.113.7]:80", "::/64"},                        // IPv4-translated, RFC 2765
		{"[2001:db8:1:2:0:5efe:203.0.113.7]:80", "2001:db8:1:2::/64"}, // ISATAP, RFC 5214
	} {
		t.Run(c.remote, func(t *testing.T) {
			wantKey(t, keyfuncs.RemoteAddr(), request(c.remote, ""), c.want)
		})
	}
}

// A connection without an address has no key, whatever the headers are.
func TestNoRemoteAddr(t *testing.T) {
	for _, remote := range []string{
		"", "@", "/run/app.sock", "pipe", "localhost:80", "203.0.113.7:", "203.0.113.7:x", "203.0.113.7:123456", "203.0.113.7:000080",
		"203.0.113.07:80", "1.2.3:80", "[2001:db8::1", "[2001:db8::1]80", "[]:80", ":80", "203.0.113.7 :80",
	} {
		for name, f := range map[string]keyfuncs.Func{
			"RemoteAddr":    keyfuncs.RemoteAddr(),
			"XForwardedFor": keyfuncs.XForwardedFor(trusted...),
			"Forwarded":     keyfuncs.Forwarded(trusted...),
			"ProxyHeader":   keyfuncs.ProxyHeader("X-Real-IP", trusted...),
			"BehindProxies": keyfuncs.BehindProxies(2),
		} {
			r := request(remote, "X-Forwarded-For", "203.0.113.9")
			r.Header.Set("Forwarded", "for=203.0.113.9")
			r.Header.Set("X-Real-IP", "203.0.113.9")
			key, err := f(r)
			if key != "" || err == nil {
				t.Errorf("%s from %q: got %q, %v; want an error", name, remote, key, err)
				continue
			}
			if errors.Is(err, keyfuncs.ErrAbsent) {
				t.Errorf("%s from %q: %v, and First would go on", name, remote, err)
			}
			if len(remote) > 1 && strings.Contains(err.Error(), remote) {
				t.Errorf("%s: the error holds the address: %v", name, err)
			}
		}
	}
}

func TestProxyHeader(t *testing.T) {
	for _, c := range []struct {
		name   string
		remote string
		lines  []string
		want   string
	}{
		{"believed", "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"spaces", "10.0.0.1:80", []string{" \t203.0.113.9\t "}, "203.0.113.9"},
		{"port", "10.0.0.1:80", []string{"203.0.113.9:1234"}, "203.0.113.9"},
		{"IPv6", "10.0.0.1:80", []string{"2001:db8::9"}, "2001:db8::/64"},
		{"brackets", "10.0.0.1:80", []string{"[2001:db8::9]:1234"}, "2001:db8::/64"},
		{"zone", "10.0.0.1:80", []string{"fe80::1%eth0"}, "fe80::/64"},
		{"mapped", "10.0.0.1:80", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"proxy mapped", "[::ffff:10.0.0.1]:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"client in a trusted network", "10.0.0.1:80", []string{"10.7.7.7"}, "10.7.7.7"},
		{"not from a proxy", "198.51.100.1:80", []string{"203.0.113.9"}, "198.51.100.1"},
		{"missing", "10.0.0.1:80", nil, ""},
		{"empty", "10.0.0.1:80", []string{""}, ""},
		{"garbage", "10.0.0.1:80", []string{"me"}, ""},
		{"list", "10.0.0.1:80", []string{"203.0.113.9, 203.0.113.10"}, ""},
		{"repeated", "10.0.0.1:80", []string{"203.0.113.9", "203.0.113.9"}, ""},
		{"huge", "10.0.0.1:80", []string{strings.Repeat("1", 1<<20)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := keyfuncs.ProxyHeader("x-real-ip", trusted...)
			wantClient(t, f, request(c.remote, "X-Real-IP", c.lines...), c.want)
		})
	}
}

// CloudFront writes a port after every address, and no brackets: what follows the last colon is the port, also where it
// could be part of the address. What has no port is not from CloudFront.
func TestCloudFrontViewerAddress(t *testing.T) {
	for line, want := range map[string]string{
		"203.0.113.9:46532":               "203.0.113.9",
		"2001:db8:1:2::9:46532":           "2001:db8:1:2::/64",
		"2001:db8:1:2:3:4:5:6:443":        "2001:db8:1:2::/64",
		"2001:db8::443":                   "", // 2001:db8: is no address
		"2001:db8:::443":                  "2001:db8::/64",
		"2001:db8:1:2::443:443":           "2001:db8:1:2::/64",
		"2001:db8::1:2:3:4:80":            "2001:db8::/64",
		"2001:db8:1::2:3:4:5:80":          "2001:db8:1::/64",
		"[2001:db8:1:2::9]:46532":         "2001:db8:1:2::/64",
		"::ffff:203.0.113.9:46532":        "203.0.113.9",
		"203.0.113.9":                     "",
		"2001:db8:1:2:3:4:5:46532":        "",
		"[2001:db8:1:2::9]":               "",
		"2001:db8:1:2::9:":                "",
		"2001:db8:1:2::9:port":            "",
		"2001:db8:1:2::9:46532, 10.0.0.1": "",
		":443":                            "",
		"":                                "",
	} {
		f := keyfuncs.ProxyHeader("CloudFront-Viewer-Address", trusted...)
		wantClient(t, f, request("10.0.0.1:80", "CloudFront-Viewer-Address", line), want)
	}
}

func TestXForwardedFor(t *testing.T) {
	for _, c := range []struct {
		name   string
		remote string
		lines  []string
		want   string
	}{
		{"one proxy", "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"two proxies", "10.0.0.1:80", []string{"203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"IPv6 proxies", "[2001:db8:ffff::1]:80", []string{"2001:db8:1:2::9, 2001:db8:ffff::2"}, "2001:db8:1:2::/64"},
		{"proxy of one address", "192.0.2.80:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"its neighbour", "192.0.2.81:80", []string{"203.0.113.9"}, "192.0.2.81"},
		{"proxy mapped", "[::ffff:10.0.0.1]:80", []string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
		{"client in a private network", "10.0.0.1:80", []string{"192.168.7.7"}, "192.168.7.7"},
		{"client is a proxy", "10.0.0.1:80", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},

		{"not from a proxy", "198.51.100.1:80", []string{"203.0.113.9"}, "198.51.100.1"},
		{"leftmost spoofed", "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"leftmost spoofed, two proxies", "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"a proxy spoofed", "10.0.0.1:80", []string{"1.1.1.1, 10.0.0.9, 203.0.113.9"}, "203.0.113.9"},
		{"lines are one list", "10.0.0.1:80", []string{"1.1.1.1", "203.0.113.9", "10.0.0.2"}, "203.0.113.9"},
		{"lines of several", "10.0.0.1:80", []string{"1.1.1.1, 2.2.2.2", "203.0.113.9, 10.0.0.3", "10.0.0.2"}, "203.0.113.9"},
		{"garbage spoofed", "10.0.0.1:80", []string{"\x00,\", 203.0.113.9"}, "203.0.113.9"},
		{"commas spoofed", "10.0.0.1:80", []string{",,,, 203.0.113.9"}, "203.0.113.9"},
		{"line of commas spoofed", "10.0.0.1:80", []string{",,,", "203.0.113.9"}, "203.0.113.9"},
		{"quote spoofed", "10.0.0.1:80", []string{`"a, 203.0.113.9`}, "203.0.113.9"},

		{"port", "10.0.0.1:80", []string{"203.0.113.9:1234"}, "203.0.113.9"},
		{"brackets", "10.0.0.1:80", []string{"[2001:db8:1:2::9]"}, "2001:db8:1:2::/64"},
		{"brackets, port", "10.0.0.1:80", []string{"[2001:db8:1:2::9]:1234"}, "2001:db8:1:2::/64"},
		{"zone", "10.0.0.1:80", []string{"fe80::9%eth0"}, "fe80::/64"},
		{"mapped", "10.0.0.1:80", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"NAT64", "10.0.0.1:80", []string{"64:ff9b::203.0.113.9"}, "203.0.113.9"},
		{"NAT64 of a proxy is no proxy", "10.0.0.1:80", []string{"203.0.113.9, 64:ff9b::10.0.0.2"}, "10.0.0.2"},
		{"spaces", "10.0.0.1:80", []string{"1.1.1.1 ,\t 203.0.113.9\t,10.0.0.2 "}, "203.0.113.9"},
		{"no space", "10.0.0.1:80", []string{"1.1.1.1,203.0.113.9,10.0.0.2"}, "203.0.113.9"},

		{"missing", "10.0.0.1:80", nil, ""},
		{"missing, not from a proxy", "198.51.100.1:80", nil, "198.51.100.1"},
		{"empty", "10.0.0.1:80", []string{""}, "10.0.0.1"},
		{"garbage", "10.0.0.1:80", []string{"1.1.1.1, me"}, "10.0.0.1"},
		{"garbage behind a proxy", "10.0.0.1:80", []string{"1.1.1.1, me, 10.0.0.2"}, "10.0.0.2"},
		{"unknown", "10.0.0.1:80", []string{"1.1.1.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"unix socket", "10.0.0.1:80", []string{"1.1.1.1, unix:"}, "10.0.0.1"},
		{"empty element", "10.0.0.1:80", []string{"1.1.1.1, , 10.0.0.2"}, "10.0.0.2"},
		{"trailing comma", "10.0.0.1:80", []string{"203.0.113.9,"}, "10.0.0.1"},
		{"empty line", "10.0.0.1:80", []string{"203.0.113.9", ""}, "10.0.0.1"},
		{"two in one element", "10.0.0.1:80", []string{"1.1.1.1 203.0.113.9"}, "10.0.0.1"},
		{"not an octet", "10.0.0.1:80", []string{"203.0.113.256"}, "10.0.0.1"},
		{"octal", "10.0.0.1:80", []string{"203.0.113.011"}, "10.0.0.1"},
		{"network", "10.0.0.1:80", []string{"203.0.113.0/24"}, "10.0.0.1"},
		{"bad port", "10.0.0.1:80", []string{"203.0.113.9:http"}, "10.0.0.1"},
		{"quoted", "10.0.0.1:80", []string{`"203.0.113.9"`}, "10.0.0.1"},

		{"64 hops", "10.0.0.1:80", []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", 63)}, "203.0.113.9"},
		{"65 hops", "10.0.0.1:80", []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", 64)}, "10.0.0.2"},
		{"huge list", "10.0.0.1:80", []string{strings.Repeat("1.1.1.1,", 1<<17) + "203.0.113.9"}, "203.0.113.9"},
		{"huge element spoofed", "10.0.0.1:80", []string{strings.Repeat("1", 1<<20) + ", 203.0.113.9"}, "203.0.113.9"},
		{"huge element", "10.0.0.1:80", []string{"203.0.113.9" + strings.Repeat(" ", 1<<20)}, "10.0.0.1"},
		{"1024 bytes", "10.0.0.1:80", []string{strings.Repeat(" ", 1024-11) + "203.0.113.9"}, "203.0.113.9"},
		{"1024 bytes, then a comma", "10.0.0.1:80", []string{"," + strings.Repeat(" ", 1024-11) + "203.0.113.9"}, "203.0.113.9"},
		{"1025 bytes", "10.0.0.1:80", []string{strings.Repeat(" ", 1025-11) + "203.0.113.9"}, "10.0.0.1"},
		{"1025 bytes, then a comma", "10.0.0.1:80", []string{"," + strings.Repeat(" ", 1025-11) + "203.0.113.9"}, "10.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := keyfuncs.XForwardedFor(trusted...)
			wantClient(t, f, request(c.remote, "X-Forwarded-For", c.lines...), c.want)
		})
	}
}

func TestForwarded(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  string
	}{
		// The examples of RFC 7239, sections 4, 6 and 7.1, from a trusted proxy.
		{"obfuscated", []string{`for="_gazonk"`}, "10.0.0.1"},
		{"case", []string{`For="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"parameters", []string{"for=192.0.2.60;proto=http;by=203.0.113.43"}, "192.0.2.60"},
		{"two", []string{"for=192.0.2.43, for=198.51.100.17"}, "198.51.100.17"},
		{"port", []string{`for="192.0.2.43:47011"`}, "192.0.2.43"},
		{"hidden", []string{"for=_hidden, for=_SEVKISEK"}, "10.0.0.1"},
		{"mixed", []string{`for=192.0.2.43,for="[2001:db8:cafe::17]",for=unknown`}, "10.0.0.1"},

		{"two proxies", []string{"for=203.0.113.9, for=10.0.0.2"}, "203.0.113.9"},
		{"lines are one list", []string{"for=1.1.1.1", "for=203.0.113.9;by=10.0.0.3, for=10.0.0.3", "for=10.0.0.2"}, "203.0.113.9"},
		{"hidden port", []string{`for="203.0.113.9:_a1"`}, "203.0.113.9"},
		{"mapped", []string{`for="[::ffff:203.0.113.9]"`}, "203.0.113.9"},
		{"zone", []string{`for="[fe80::9%eth0]"`}, "fe80::/64"},
		{"upper case", []string{"FOR=203.0.113.9"}, "203.0.113.9"},
		{"not first", []string{"by=10.0.0.1;for=203.0.113.9"}, "203.0.113.9"},
		{"extension", []string{`secret="a,b;for=1.1.1.1";for=203.0.113.9`}, "203.0.113.9"},
		{"quoted comma after", []string{`for=203.0.113.9;x=",for=1.1.1.1"`}, "203.0.113.9"},
		{"escapes", []string{`for="\203.0.113\.9"`}, "203.0.113.9"},
		{"escaped quotes", []string{`for=203.0.113.9;x="a\",\\\"b\\"`}, "203.0.113.9"},
		{"empty pairs", []string{";;for=203.0.113.9;;"}, "203.0.113.9"},
		{"spaces", []string{" for=203.0.113.9 ;\tproto=http "}, "203.0.113.9"},
		{"port without quotes", []string{"for=203.0.113.9:80"}, "203.0.113.9"},
		{"IPv6 without quotes", []string{"for=[2001:db8::9]:80"}, "2001:db8::/64"},
		{"IPv6 without brackets", []string{`for="2001:db8::9"`}, "2001:db8::/64"},

		{"leftmost spoofed", []string{"for=1.1.1.1, for=203.0.113.9"}, "203.0.113.9"},
		{"open quote", []string{`for="1.1.1.1, for=203.0.113.9`}, "203.0.113.9"},
		{"open quote, quoted element", []string{`for="1.1.1.1, for="[2001:db8::9]"`}, "2001:db8::/64"},
		{"open quote, two proxies", []string{`for="1, for="203.0.113.9:80";x="a,b", for="10.0.0.2"`}, "203.0.113.9"},
		{"open quote, next line", []string{`for="1.1.1.1`, `for=203.0.113.9`}, "203.0.113.9"},
		{"escaped open quote", []string{`for="1.1.1.1\", for="203.0.113.9"`}, "203.0.113.9"},
		{"backslash at the end", []string{`for="\, for="203.0.113.9"`}, "203.0.113.9"},

		{"missing", nil, ""},
		{"empty", []string{""}, "10.0.0.1"},
		{"empty element", []string{"for=1.1.1.1, , for=10.0.0.2"}, "10.0.0.2"},
		{"trailing comma", []string{"for=203.0.113.9,"}, "10.0.0.1"},
		{"no for", []string{"for=1.1.1.1, by=10.0.0.1;proto=https"}, "10.0.0.1"},
		{"empty for", []string{"for=1.1.1.1, for="}, "10.0.0.1"},
		{"empty quoted for", []string{`for=1.1.1.1, for=""`}, "10.0.0.1"},
		{"for twice", []string{"for=1.1.1.1;for=203.0.113.9"}, "10.0.0.1"},
		{"no equals sign", []string{"for"}, "10.0.0.1"},
		{"no name", []string{"=203.0.113.9"}, "10.0.0.1"},
		{"space in the pair", []string{"for = 203.0.113.9"}, "10.0.0.1"},
		{"quoted name", []string{`"for"=203.0.113.9`}, "10.0.0.1"},
		{"two words", []string{"for=203.0.113.9 for=1.1.1.1"}, "10.0.0.1"},
		{"bad pair after", []string{"for=203.0.113.9;proto"}, "10.0.0.1"},
		{"after the quotes", []string{`for="203.0.113.9"x`}, "10.0.0.1"},
		{"quote in a token", []string{`for=203.0.113.9"x"`}, "10.0.0.1"},
		{"open quote of the proxy", []string{`for="203.0.113.9`}, "10.0.0.1"},
		{"escape at the end", []string{`for="203.0.113.9\`}, "10.0.0.1"},
		{"pair after the quotes", []string{`for="203.0.113.9"x=y`}, "10.0.0.1"},
		{"bad name after", []string{"for=203.0.113.9;a b=c"}, "10.0.0.1"},
		{"empty value after", []string{"for=203.0.113.9;x="}, "10.0.0.1"},
		{"empty hidden port", []string{`for="203.0.113.9:_"`}, "10.0.0.1"},
		{"bad hidden port", []string{`for="203.0.113.9:_a b"`}, "10.0.0.1"},
		{"bare address", []string{"203.0.113.9"}, "10.0.0.1"},

		{"64 hops", []string{"for=203.0.113.9" + strings.Repeat(", for=10.0.0.2", 63)}, "203.0.113.9"},
		{"65 hops", []string{"for=203.0.113.9" + strings.Repeat(", for=10.0.0.2", 64)}, "10.0.0.2"},
		{"huge quoted", []string{`for="` + strings.Repeat(`\"`, 1<<19) + `, for=203.0.113.9`}, "203.0.113.9"},
		{"huge element", []string{`for=203.0.113.9;x="` + strings.Repeat(",", 1<<20) + `"`}, "10.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := keyfuncs.Forwarded(trusted...)
			wantClient(t, f, request("10.0.0.1:80", "Forwarded", c.lines...), c.want)
			// Nothing counts that does not come from a proxy.
			wantKey(t, f, request("198.51.100.1:80", "Forwarded", c.lines...), "198.51.100.1")
		})
	}
}

// behindProxies are the functions that believe a proxy.
func behindProxies() map[string]keyfuncs.Func {
	networks := func(f keyfuncs.Func) keyfuncs.Func { return keyfuncs.Network(f, 24, 64) }
	return map[string]keyfuncs.Func{
		"XForwardedFor":            keyfuncs.XForwardedFor(trusted...),
		"Forwarded":                keyfuncs.Forwarded(trusted...),
		"ProxyHeader":              keyfuncs.ProxyHeader("X-Real-IP", trusted...),
		"BehindProxies":            keyfuncs.BehindProxies(1),
		"Network of XForwardedFor": networks(keyfuncs.XForwardedFor(trusted...)),
		"Network of Forwarded":     networks(keyfuncs.Forwarded(trusted...)),
		"Network of ProxyHeader":   networks(keyfuncs.ProxyHeader("X-Real-IP", trusted...)),
		"Network of BehindProxies": networks(keyfuncs.BehindProxies(1)),
	}
}

// wantRead asks all of them about a request that change makes. If a proxy has surely read it, the
// key is the address that the proxy wrote, and else there is none, also within First.
func wantRead(t *testing.T, what string, change func(*http.Request) *http.Request, read bool) {
	t.Helper()
	for name, f := range behindProxies() {
		ask := func(remote string) (string, error) {
			r := request(remote, "X-Forwarded-For", "203.0.113.9")
			r.Header.Set("Forwarded", "for=203.0.113.9")
			r.Header.Set("X-Real-IP", "203.0.113.9")
			r = change(r)
			if keyfuncs.In(f, "203.0.113.0/24")(r) && !read && remote == "10.0.0.1:80" {
				t.Errorf("%s, %s: In is true", name, what)
			}
			return f(r)
		}
		key, err := ask("10.0.0.1:80")
		switch {
		case read && !strings.HasPrefix(key, "203.0.113."):
			t.Errorf("%s, %s: got %q, %v", name, what, key, err)
		case !read && (key != "" || err == nil || errors.Is(err, keyfuncs.ErrAbsent)):
			t.Errorf("%s, %s: got %q, %v; want an error", name, what, key, err)
		}
		if key, err := ask("198.51.100.1:80"); !strings.HasSuffix(name, "BehindProxies") && !strings.HasPrefix(key, "198.51.100.") {
			t.Errorf("%s, %s, no proxy: got %q, %v", name, what, key, err)
		}
	}
}

// After CONNECT, a proxy may pass on what it does not read. Without a proxy, and over HTTP/2,
// there is nothing to hide.
func TestConnect(t *testing.T) {
	for major := range 4 {
		wantRead(t, fmt.Sprint("HTTP/", major), func(r *http.Request) *http.Request {
			r.Method, r.ProtoMajor = http.MethodConnect, major
			r.TLS = &tls.ConnectionState{NegotiatedProtocol: "h2"}
			return r
		}, major >= 2)
	}
}

// A connection that a handler upgraded to HTTP/2 is one that proxies do not read. It is told from
// those that the server began as HTTP/2.
func TestUpgraded(t *testing.T) {
	protocols := func(http2, unencrypted bool) *http.Protocols {
		p := new(http.Protocols)
		p.SetHTTP1(true)
		p.SetHTTP2(http2)
		p.SetUnencryptedHTTP2(unencrypted)
		return p
	}
	type server = http.Server
	for _, s := range []struct {
		name    string
		server  any
		accepts bool // HTTP/2 without TLS
	}{
		{"no server", nil, false},
		{"a nil server", (*server)(nil), false},
		{"something else", "server", false},
		{"the defaults", &server{}, false},
		{"HTTP/1.1", &server{Protocols: protocols(false, false)}, false},
		{"HTTP/2 over TLS", &server{Protocols: protocols(true, false)}, false},
		{"HTTP/2", &server{Protocols: protocols(true, true)}, true},
		{"HTTP/2 without TLS", &server{Protocols: protocols(false, true)}, true},
	} {
		for _, c := range []struct {
			name string
			tls  *tls.ConnectionState
			read bool
		}{
			{"no TLS", nil, s.accepts},
			{"TLS without ALPN", &tls.ConnectionState{}, false},
			{"TLS of HTTP/1.1", &tls.ConnectionState{NegotiatedProtocol: "http/1.1"}, false},
			{"TLS of HTTP/2", &tls.ConnectionState{NegotiatedProtocol: "h2"}, true},
		} {
			for major := range 4 {
				wantRead(t, fmt.Sprintf("%s, %s, HTTP/%d", s.name, c.name, major), func(r *http.Request) *http.Request {
					r.ProtoMajor, r.TLS = major, c.tls
					if s.server == nil {
						return r
					}
					return r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, s.server))
				}, major != 2 || c.read)
			}
		}
	}
}

// The error says what to do.
func TestUpgradedError(t *testing.T) {
	r := request("10.0.0.1:80", "X-Forwarded-For", "203.0.113.9")
	r.ProtoMajor = 2
	for name, f := range behindProxies() {
		_, err := f(r)
		if err == nil || !strings.Contains(err.Error(), "enable Protocols.UnencryptedHTTP2 of http.Server instead of h2c.NewHandler") || strings.Contains(err.Error(), "203") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBehindProxies(t *testing.T) {
	for _, c := range []struct {
		name   string
		n      int
		remote string
		lines  []string
		want   string
	}{
		{"one", 1, "10.0.0.1:80", []string{"203.0.113.9"}, "203.0.113.9"},
		{"one, spoofed", 1, "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"two", 2, "10.0.0.1:80", []string{"203.0.113.9, 198.51.100.1"}, "203.0.113.9"},
		{"two, spoofed", 2, "10.0.0.1:80", []string{"1.1.1.1,, 203.0.113.9, 198.51.100.1"}, "203.0.113.9"},
		{"two lines", 2, "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9", "198.51.100.1"}, "203.0.113.9"},
		{"name between", 2, "10.0.0.1:80", []string{"203.0.113.9, unix:"}, "203.0.113.9"},
		{"normalised", 1, "10.0.0.1:80", []string{"[::ffff:203.0.113.9]:80"}, "203.0.113.9"},
		{"from a unix socket", 1, "@", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"64", 64, "10.0.0.1:80", []string{"1.1.1.1, 203.0.113.9" + strings.Repeat(", 10.0.0.2", 63)}, "203.0.113.9"},

		{"missing", 1, "10.0.0.1:80", nil, ""},
		{"empty", 1, "10.0.0.1:80", []string{""}, ""},
		{"too few", 2, "10.0.0.1:80", []string{"203.0.113.9"}, ""},
		{"too few, two lines", 3, "10.0.0.1:80", []string{"203.0.113.9", "198.51.100.1"}, ""},
		{"garbage", 1, "10.0.0.1:80", []string{"203.0.113.9, me"}, ""},
		{"garbage before", 2, "10.0.0.1:80", []string{"1.1.1.1, me, 198.51.100.1"}, ""},
		{"trailing comma", 1, "10.0.0.1:80", []string{"203.0.113.9,"}, ""},
		{"quoted comma counts", 2, "10.0.0.1:80", []string{`1.1.1.1, "203.0.113.9, 203.0.113.8"`}, ""},
		{"huge element between", 2, "10.0.0.1:80", []string{"203.0.113.9, " + strings.Repeat("1", 1<<20)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := keyfuncs.BehindProxies(c.n)
			wantClient(t, f, request(c.remote, "X-Forwarded-For", c.lines...), c.want)
		})
	}
}

func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		v4, v6       int
		remote, want string
	}{
		{32, 64, "203.0.113.77", "203.0.113.77"},
		{32, 64, "2001:db8:1:2:3::1", "2001:db8:1:2::/64"},
		{24, 64, "203.0.113.77", "203.0.113.0/24"},
		{24, 64, "::ffff:203.0.113.77", "203.0.113.0/24"},
		{24, 64, "64:ff9b::203.0.113.77", "203.0.113.0/24"},
		{24, 64, "2002:cb00:714d::1", "203.0.113.0/24"},
		{24, 64, "2001:db8:1:2:3::1", "2001:db8:1:2::/64"},
		{32, 128, "2002:cb00:714d::1", "203.0.113.77"},
		{1, 64, "203.0.113.77", "128.0.0.0/1"},
		{32, 64, "203.0.113.77", "203.0.113.77"},
		{32, 48, "203.0.113.77", "203.0.113.77"},
		{32, 48, "2001:db8:1:2:3::1", "2001:db8:1::/48"},
		{32, 56, "2001:db8:1:2fe::1", "2001:db8:1:200::/56"},
		{32, 1, "2001:db8::1", "::/1"},
		{32, 128, "2001:db8:1:2:3::1", "2001:db8:1:2:3::1"},
	} {
		for name, f := range map[string]keyfuncs.Func{
			"RemoteAddr":    keyfuncs.RemoteAddr(),
			"XForwardedFor": keyfuncs.XForwardedFor("10.0.0.1"),
			"Forwarded":     keyfuncs.Forwarded("10.0.0.1"),
			"ProxyHeader":   keyfuncs.ProxyHeader("X-Real-IP", "10.0.0.1"),
			"BehindProxies": keyfuncs.BehindProxies(1),
		} {
			r := request("10.0.0.1:80", "X-Forwarded-For", c.remote)
			r.Header.Set("Forwarded", `for="`+c.remote+`"`)
			r.Header.Set("X-Real-IP", c.remote)
			if name == "RemoteAddr" {
				r.RemoteAddr = c.remote
			}
			if got, err := keyfuncs.Network(f, c.v4, c.v6)(r); err != nil || got != c.want {
				t.Errorf("by %d and %d bits, %s of %s: got %q, %v; want %q", c.v4, c.v6, name, c.remote, got, err, c.want)
			}
		}
	}
}

// An address of 6to4 or Teredo that stands for no public IPv4 address is cut as any other: a client can have one.
func TestNetworkOfUnfolded(t *testing.T) {
	for remote, want := range map[string]string{
		"[2002:a00:1::1]:80":       "2002:a00:1::/56", // 10.0.0.1
		"[2001:0:1::f5ff:fffe]:80": "2001:0:1::/56",   // 10.0.0.1
		"[2002:cb00:7107::1]:80":   "203.0.113.0/24",  // of 203.0.113.7
	} {
		wantKey(t, keyfuncs.Network(keyfuncs.RemoteAddr(), 24, 56), request(remote, ""), want)
	}
}

// Who cuts an address is the outermost Network; what is not an address is not cut.
func TestNetworkOfOthers(t *testing.T) {
	r := request("[2001:db8:1:2:3::1]:80", "")
	whole := keyfuncs.Network(keyfuncs.RemoteAddr(), 32, 128)
	wantKey(t, keyfuncs.Network(keyfuncs.Network(keyfuncs.RemoteAddr(), 8, 8), 32, 128), r, "2001:db8:1:2:3::1")
	wantKey(t, keyfuncs.Network(whole, 32, 48), r, "2001:db8:1::/48")
	wantKey(t, whole, r, "2001:db8:1:2:3::1")
	wantKey(t, keyfuncs.RemoteAddr(), r, "2001:db8:1:2::/64") // what was asked before is forgotten
	wantKey(t, keyfuncs.All(keyfuncs.RemoteAddr(), whole), r, "17:2001:db8:1:2::/64,17:2001:db8:1:2:3::1,")
	own := func(key string) keyfuncs.Func { return keyfuncs.Network(constant(key), 24, 64) }
	wantKey(t, own("[2001:db8:1:2:3::1%eth0]:80"), r, "2001:db8:1:2::/64")
	wantKey(t, own("::ffff:203.0.113.7"), r, "203.0.113.0/24")
	wantKey(t, own("2001:db8:1:2::/64"), r, "2001:db8:1:2::/64")
	wantKey(t, own("203.0.113.128/25"), r, "203.0.113.0/24")
	for _, key := range []string{"anna", "203.0.0.0/16", "2001:db8::/48", "ip:203.0.113.7", "2002:c000:201::/64"} {
		if got, err := own(key)(r); got != "" || !errors.Is(err, keyfuncs.ErrProgram) || strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %q, %v", key, got, err)
		}
	}
	wantError(t, keyfuncs.Network(failing(keyfuncs.ErrAbsent), 32, 64), keyfuncs.ErrAbsent)
	if got, err := own("")(r); got != "" || err == nil {
		t.Errorf("an empty key: got %q, %v", got, err)
	}
}

// However a network of proxies is written, it is the same one.
func TestTrustedForms(t *testing.T) {
	for _, c := range []struct{ network, remote string }{
		{"10.0.0.0/8", "10.1.2.3"},
		{"10.0.0.0/8", "[::ffff:10.1.2.3]"},
		{"::ffff:10.0.0.0/104", "10.1.2.3"},
		{"::ffff:10.0.0.0/104", "[::ffff:10.1.2.3]"},
		{"10.1.2.3", "10.1.2.3"},
		{"10.1.2.3/32", "10.1.2.3"},
		{"::ffff:10.1.2.3", "10.1.2.3"},
		{"fe80::/10", "[fe80::1%eth0]"},
		{"2001:DB8::/32", "[2001:db8::1]"},
		{"2001:db8::1", "[2001:db8::1]"},
		{"64:ff9b::/96", "[64:ff9b::10.1.2.3]"},
	} {
		f := keyfuncs.XForwardedFor("198.51.100.0/24", c.network)
		r := request(c.remote+":80", "X-Forwarded-For", "203.0.113.9")
		if got, err := f(r); err != nil || got != "203.0.113.9" {
			t.Errorf("%s from %s: got %q, %v", c.network, c.remote, got, err)
		}
	}
}

// A wrong argument panics; every fault is a line.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		make func() keyfuncs.Func
		want []string
	}{
		{"no network", func() keyfuncs.Func { return keyfuncs.XForwardedFor() },
			[]string{"no trusted network"}},
		{"bad networks", func() keyfuncs.Func {
			return keyfuncs.Forwarded("", "10.0.0.0/33", "10.0.0.0/8", "proxy", "fe80::1%eth0", "fe80::%eth0/64", " 10.0.0.1")
		}, []string{`""`, `"10.0.0.0/33"`, `"proxy"`, `"fe80::1%eth0"`, `"fe80::%eth0/64"`, `" 10.0.0.1"`}},
		{"host bits", func() keyfuncs.Func { return keyfuncs.XForwardedFor("10.1.2.3/8", "::ffff:10.0.0.0/90") },
			[]string{"would be 10.0.0.0/8", `"::ffff:10.0.0.0/90"`}},
		{"everybody", func() keyfuncs.Func { return keyfuncs.XForwardedFor("0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96") },
			[]string{`"0.0.0.0/0": it contains every address`, `"::/0": it contains every address`, `"::ffff:0.0.0.0/96": it contains every address`}},
		{"header", func() keyfuncs.Func { return keyfuncs.ProxyHeader("", "10.0.0.0/8") },
			[]string{`not the name of a header: ""`}},
		{"swapped", func() keyfuncs.Func { return keyfuncs.ProxyHeader("10.0.0.0/8", "X-Real-IP") },
			[]string{`not the name of a header: "10.0.0.0/8"`, `trusted network "X-Real-IP"`}},
		{"a list", func() keyfuncs.Func { return keyfuncs.ProxyHeader("x-forwarded-for", "10.0.0.0/8") },
			[]string{"use XForwardedFor"}},
		{"a list of RFC 7239", func() keyfuncs.Func { return keyfuncs.ProxyHeader("Forwarded", "proxy") },
			[]string{"use Forwarded", `"proxy"`}},
		{"n", func() keyfuncs.Func { return keyfuncs.BehindProxies(0) }, []string{"number of proxies 0"}},
		{"n negative", func() keyfuncs.Func { return keyfuncs.BehindProxies(-1) }, []string{"number of proxies -1"}},
		{"n large", func() keyfuncs.Func { return keyfuncs.BehindProxies(65) }, []string{"number of proxies 65"}},
		{"bits", func() keyfuncs.Func { return keyfuncs.Network(keyfuncs.RemoteAddr(), 33, 129) }, []string{"33 and 129 bits"}},
		{"bits of IPv4", func() keyfuncs.Func { return keyfuncs.Network(keyfuncs.RemoteAddr(), 0, 64) }, []string{"0 and 64 bits"}},
		{"bits of IPv6", func() keyfuncs.Func { return keyfuncs.Network(keyfuncs.RemoteAddr(), 32, 0) }, []string{"32 and 0 bits"}},
		{"all at once", func() keyfuncs.Func {
			return keyfuncs.ProxyHeader("X Real IP", "a", "::/0")
		}, []string{`"X Real IP"`, `"a"`, `"::/0"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantLines(t, panicOf(func() { c.make() }), c.want)
		})
	}
}

// panicOf returns the text with which f panics.
func panicOf(f func()) (text string) {
	defer func() { text, _ = recover().(string) }()
	f()
	return ""
}

// wantLines asks for a text of as many lines as there are texts to be found in them.
func wantLines(t *testing.T, text string, want []string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	if len(lines) != len(want) {
		t.Fatalf("got %d lines, want %d:\n%s", len(lines), len(want), text)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, "headgate: keyfuncs: ") || !strings.Contains(line, want[i]) {
			t.Errorf("got %q, want %q in it", line, want[i])
		}
	}
}

// What net/http makes of bytes on the wire: names of any case, lines folded by
// obs-fold (RFC 9112, section 5.2), several lines.
func TestWire(t *testing.T) {
	const wire = "GET / HTTP/1.1\r\nHost: a\r\n" +
		"x-forwarded-for: 1.1.1.1,\r\n 2.2.2.2\r\n" +
		"X-FORWARDED-FOR: 203.0.113.9,\r\n\t10.0.0.2\r\n" +
		"forwarded: for=1.1.1.1\r\n" +
		"FORWARDED: for=203.0.113.9;\r\n proto=https, for=10.0.0.2\r\n\r\n"
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire)))
	if err != nil {
		t.Fatal(err)
	}
	r.RemoteAddr = "10.0.0.1:80"
	wantKey(t, keyfuncs.XForwardedFor(trusted...), r, "203.0.113.9")
	wantKey(t, keyfuncs.Forwarded(trusted...), r, "203.0.113.9")
	wantKey(t, keyfuncs.BehindProxies(2), r, "203.0.113.9")
}

// Networks are written as netip writes them, whatever groups are zero or short.
func TestNetworksAreWrittenInOneWay(t *testing.T) {
	groups := []uint16{0, 1, 0xf, 0x10, 0xff, 0x100, 0xabc, 0x1000, 0xffff}
	f := keyfuncs.RemoteAddr()
	for _, a := range groups {
		for _, b := range groups {
			for _, c := range groups {
				for _, d := range groups {
					addr := fmt.Sprintf("%x:%x:%x:%x:0:1:2:3", a, b, c, d)
					if got, err := f(request("["+addr+"]:80", "")); err != nil || got != networkOf(addr) {
						t.Fatalf("%s: key %q, %v; want %q", addr, got, err, networkOf(addr))
					}
				}
			}
		}
	}
}

// What is remembered of some clients is nothing that others get, however many of them there are
// and in whatever order they come.
func TestManyClients(t *testing.T) {
	const clients = 3000 // of which not all are remembered
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			f, cut := keyfuncs.RemoteAddr(), worker%2 == 1
			if cut {
				f = keyfuncs.Network(f, 32, 48)
			}
			draw := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 20_000 {
				client := draw.IntN(clients)
				if draw.IntN(2) == 0 { // some come often
					client %= 100
				}
				want := fmt.Sprintf("2001:db8:1:%x::/64", client+1)
				if cut {
					want = "2001:db8:1::/48"
				}
				remote := fmt.Sprintf("[2001:db8:1:%x:0:%x::9]:%d", client+1, client%7, draw.IntN(1<<16))
				if got, err := f(request(remote, "")); got != want || err != nil {
					t.Errorf("%s: key %q, %v; want %q", remote, got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A key costs one allocation, its text, however much a client writes. That of a connection whose
// address has the usual form costs none, unless it is new.
func TestAllocations(t *testing.T) {
	const xff = "X-Forwarded-For"
	walk := keyfuncs.XForwardedFor(trusted...)
	rfc7239 := keyfuncs.Forwarded(trusted...)
	for name, c := range map[string]struct {
		f keyfuncs.Func
		r *http.Request
		n float64
	}{ // a second one is the error of netip for what is no address
		"IPv4":       {keyfuncs.RemoteAddr(), request("203.0.113.7:80", ""), 0},
		"IPv6":       {keyfuncs.RemoteAddr(), request("[2001:db8:1:2:3:4:5:6]:80", ""), 0},
		"list":       {walk, request("10.0.0.1:80", xff, strings.Repeat("1.1.1.1,", 1<<17)+"203.0.113.9"), 2},
		"hops":       {walk, request("10.0.0.1:80", xff, strings.Repeat("10.0.0.2,", 1<<17)+"10.0.0.2"), 2},
		"lines":      {walk, request("10.0.0.1:80", xff, strings.Fields(strings.Repeat("10.0.0.2 ", 10_000))...), 2},
		"element":    {walk, request("10.0.0.1:80", xff, strings.Repeat("1", 1<<20)), 2},
		"count":      {keyfuncs.BehindProxies(64), request("10.0.0.1:80", xff, strings.Repeat("1.1.1.1,", 1<<17)+"1.1.1.1"), 2},
		"quotes":     {rfc7239, request("10.0.0.1:80", "Forwarded", strings.Repeat(`\"`, 1<<19)), 2},
		"parameters": {rfc7239, request("10.0.0.1:80", "Forwarded", strings.Repeat("x=y;", 1<<17)+", for=203.0.113.9"), 2},
	} {
		if got := testing.AllocsPerRun(100, func() { _, _ = c.f(c.r) }); got > c.n {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}
