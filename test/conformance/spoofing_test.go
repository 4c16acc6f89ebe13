package conformance

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Whatever a client writes, all frameworks charge the same key, and the right one.
// 10.0.0.0/8 and 2001:db8:feed::/48 are the networks of the proxies.
func TestSpoofing(t *testing.T) {
	const (
		proxy   = "10.0.0.1:4711"
		abroad  = "198.51.100.9:4711" // a client that connects by itself
		xff     = "X-Forwarded-For"
		toolong = "1.1.1.1,"
	)
	var (
		remote    = keyfuncs.RemoteAddr()
		header    = keyfuncs.ProxyHeader("X-Real-IP", "10.0.0.0/8")
		list      = keyfuncs.XForwardedFor("10.0.0.0/8", "2001:db8:feed::/48")
		forwarded = keyfuncs.Forwarded("10.0.0.0/8", "2001:db8:feed::/48")
		behind2   = keyfuncs.BehindProxies(2)
	)
	for _, test := range []struct {
		name   string
		key    keyfuncs.Func
		remote string
		fields []string // pairs; a name may come again
		want   string   // empty: an error
	}{
		{"connection, lies ignored", remote, abroad, []string{xff, "192.0.2.1", "X-Real-IP", "192.0.2.1", "Forwarded", "for=192.0.2.1"}, "198.51.100.9"},
		{"connection, IPv6 by /64", remote, "[2001:db8:1:2:3:4:5:6]:80", nil, "2001:db8:1:2::/64"},
		{"connection, IPv4-mapped", remote, "[::ffff:203.0.113.7]:80", nil, "203.0.113.7"},
		{"connection, NAT64", remote, "[64:ff9b::203.0.113.7]:80", nil, "203.0.113.7"},
		{"connection, 6to4", remote, "[2002:cb00:7107:8::9]:80", nil, "203.0.113.7"},
		{"connection, zone", remote, "[fe80::1%eth0]:80", nil, "fe80::/64"},
		{"connection, unix socket", remote, "@", nil, ""},

		{"header from the proxy", header, proxy, []string{"X-Real-IP", " 203.0.113.7 "}, "203.0.113.7"},
		{"header from a client", header, abroad, []string{"X-Real-IP", "203.0.113.7"}, "198.51.100.9"},
		{"header missing", header, proxy, nil, ""},
		{"header twice", header, proxy, []string{"X-Real-IP", "192.0.2.1", "X-Real-IP", "203.0.113.7"}, ""},
		{"header garbage", header, proxy, []string{"X-Real-IP", "203.0.113.7;drop"}, ""},

		{"list from a client", list, abroad, []string{xff, "203.0.113.7"}, "198.51.100.9"},
		{"list, one", list, proxy, []string{xff, "203.0.113.7"}, "203.0.113.7"},
		{"list, forged before", list, proxy, []string{xff, "192.0.2.1, 203.0.113.7"}, "203.0.113.7"},
		{"list, forged as a proxy", list, proxy, []string{xff, "192.0.2.1, 10.9.9.9, 203.0.113.7, 10.0.0.2"}, "203.0.113.7"},
		{"list in several lines", list, proxy, []string{xff, "192.0.2.1", xff, "203.0.113.7", xff, "10.0.0.2"}, "203.0.113.7"},
		{"list in other letters", list, proxy, []string{"x-forwarded-for", "192.0.2.1, 203.0.113.7"}, "203.0.113.7"},
		{"list with spaces and tabs", list, proxy, []string{xff, "192.0.2.1 ,\t 203.0.113.7 \t,  10.0.0.2  "}, "203.0.113.7"},
		{"list with ports", list, proxy, []string{xff, "203.0.113.7:4711"}, "203.0.113.7"},
		{"list with brackets and a port", list, proxy, []string{xff, "[2001:db8:1:2::3]:4711"}, "2001:db8:1:2::/64"},
		{"list with a zone", list, proxy, []string{xff, "fe80::1%25eth0"}, "fe80::/64"},
		{"list, IPv4-mapped", list, proxy, []string{xff, "::ffff:203.0.113.7"}, "203.0.113.7"},
		{"list, NAT64", list, proxy, []string{xff, "64:ff9b::cb00:7107"}, "203.0.113.7"},
		{"list, private, not trusted", list, proxy, []string{xff, "192.0.2.1, 192.168.1.1"}, "192.168.1.1"},
		{"list, all trusted", list, proxy, []string{xff, "10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"list, proxy of IPv6", list, "[2001:db8:feed::1]:80", []string{xff, "192.0.2.1, 203.0.113.7, 2001:db8:feed::2"}, "203.0.113.7"},
		{"list missing", list, proxy, nil, ""},
		{"list empty", list, proxy, []string{xff, ""}, "10.0.0.1"},
		{"list, garbage last", list, proxy, []string{xff, "203.0.113.7, <script>"}, "10.0.0.1"},
		{"list, garbage in the middle", list, proxy, []string{xff, "192.0.2.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"list, leading zeros", list, proxy, []string{xff, "203.0.113.007"}, "10.0.0.1"},
		{"list, too many hops", list, proxy, []string{xff, strings.Repeat("10.0.0.2,", 1000) + "10.0.0.3"}, "10.0.0.2"},
		{"list, forged without end", list, proxy, []string{xff, strings.Repeat(toolong, 10_000) + "203.0.113.7"}, "203.0.113.7"},

		{"two proxies", behind2, "10.0.0.9:1", []string{xff, "192.0.2.1, 203.0.113.7, 198.51.100.1"}, "203.0.113.7"},
		{"two proxies, one named", behind2, "10.0.0.9:1", []string{xff, "198.51.100.1"}, ""},
		{"two proxies, two lines", behind2, "@", []string{xff, "192.0.2.1, 203.0.113.7", xff, "198.51.100.1"}, "203.0.113.7"},

		{"Forwarded missing", forwarded, proxy, nil, ""},
		{"Forwarded from a client", forwarded, abroad, []string{"Forwarded", "for=203.0.113.7"}, "198.51.100.9"},
		{"Forwarded", forwarded, proxy, []string{"Forwarded", "for=192.0.2.1, for=203.0.113.7;proto=https;by=10.0.0.1"}, "203.0.113.7"},
		{"Forwarded, quoted", forwarded, proxy, []string{"Forwarded", `For="[2001:db8:1:2::3]:4711"`}, "2001:db8:1:2::/64"},
		{"Forwarded, escaped", forwarded, proxy, []string{"Forwarded", `for="203.0.113\.7"`}, "203.0.113.7"},
		{"Forwarded, a comma within quotes", forwarded, proxy, []string{"Forwarded", `for=203.0.113.7;host="a, for=192.0.2.1"`}, "203.0.113.7"},
		{"Forwarded, an open quote before", forwarded, proxy, []string{"Forwarded", `for="192.0.2.1, for=203.0.113.7`}, "203.0.113.7"},
		{"Forwarded, several lines", forwarded, proxy, []string{"Forwarded", "for=192.0.2.1", "Forwarded", "for=203.0.113.7, for=10.0.0.2"}, "203.0.113.7"},
		{"Forwarded, hidden", forwarded, proxy, []string{"Forwarded", "for=203.0.113.7, for=_hidden"}, "10.0.0.1"},
		{"Forwarded, for twice", forwarded, proxy, []string{"Forwarded", "for=203.0.113.7;for=192.0.2.1"}, "10.0.0.1"},
		{"Forwarded, garbage", forwarded, proxy, []string{"Forwarded", "=;,\"for=203.0.113.7"}, "10.0.0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, f := range frameworks {
				var got string
				var failed error
				asked := func(r *http.Request) (key string, err error) {
					got, failed = test.key(r)
					return got, failed
				}
				for _, key := range keysOf(f.name, asked) {
					l := core.NewLimiter(new(core.MemoryStore), "api", core.Unlimited())
					guard, err := nethttp.New(rates(nethttp.Rate{Limiter: l, Key: key}))
					if err != nil {
						t.Fatal(err)
					}
					r := httptest.NewRequest("GET", "/", nil)
					r.RemoteAddr = test.remote
					for i := 0; i < len(test.fields); i += 2 {
						r.Header.Add(test.fields[i], test.fields[i+1])
					}
					a := ask(f.serve(guard, answering(204)), r)
					if got != test.want || (failed != nil) != (test.want == "") {
						t.Errorf("%s: %q, %v, want %q", f.name, got, failed, test.want)
					}
					if failed == nil && a.Status != 204 || failed != nil && a.Status != 400 {
						t.Errorf("%s: status %d, %v", f.name, a.Status, failed)
					}
				}
			}
		})
	}
}
