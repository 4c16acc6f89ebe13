package keyfuncs_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

func BenchmarkRemoteAddr(b *testing.B) {
	bench(b, "IPv4", keyfuncs.RemoteAddr(), request("203.0.113.7:4711", ""))
	bench(b, "IPv4/24", keyfuncs.Network(keyfuncs.RemoteAddr(), 24, 64), request("203.0.113.7:4711", ""))
	bench(b, "IPv6", keyfuncs.RemoteAddr(), request("[2001:db8:1:2:3:4:5:6]:4711", ""))
	bench(b, "mapped", keyfuncs.RemoteAddr(), request("[::ffff:203.0.113.7]:4711", ""))
	bench(b, "NAT64", keyfuncs.RemoteAddr(), request("[64:ff9b::203.0.113.7]:4711", ""))
}

// Many clients in turn, whose texts miss the caches.
func BenchmarkManyClients(b *testing.B) {
	for _, n := range []int{100, 10_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			rs := make([]*http.Request, n)
			for i := range rs {
				rs[i] = request(fmt.Sprintf("[2001:db8:%x:%x:5678:8a2e:370:7334]:51234", i>>16, i&0xffff), "")
			}
			f, next := keyfuncs.RemoteAddr(), 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f(rs[next]); err != nil {
					b.Fatal(err)
				}
				if next++; next == n {
					next = 0
				}
			}
		})
	}
}

func BenchmarkProxyHeader(b *testing.B) {
	bench(b, "IPv4", keyfuncs.ProxyHeader("X-Real-IP", trusted...), request("10.0.0.1:80", "X-Real-IP", "203.0.113.9"))
}

func BenchmarkXForwardedFor(b *testing.B) {
	const header = "X-Forwarded-For"
	f := keyfuncs.XForwardedFor(trusted...)
	bench(b, "one hop", f, request("10.0.0.1:80", header, "203.0.113.9"))
	bench(b, "three hops", f, request("10.0.0.1:80", header, "1.1.1.1, 203.0.113.9, 10.0.0.3", "10.0.0.2"))
	bench(b, "IPv6", f, request("10.0.0.1:80", header, "2001:db8:1:2:3:4:5:6"))
	bench(b, "1 MB list", f, request("10.0.0.1:80", header, strings.Repeat("1.1.1.1,", 1<<17)+"203.0.113.9"))
	bench(b, "1 MB of trusted hops", f, request("10.0.0.1:80", header, strings.Repeat("10.0.0.2,", 1<<17)+"10.0.0.2"))
	bench(b, "1 MB element", f, request("10.0.0.1:80", header, strings.Repeat("1", 1<<20)))

	var networks []string // as many as a content network has
	for i := range 200 {
		networks = append(networks, "172.16."+strconv.Itoa(i)+".0/24")
	}
	bench(b, "200 networks", keyfuncs.XForwardedFor(append(networks, trusted...)...),
		request("10.0.0.1:80", header, "203.0.113.9"))
}

func BenchmarkForwarded(b *testing.B) {
	const header = "Forwarded"
	f := keyfuncs.Forwarded(trusted...)
	bench(b, "one hop", f, request("10.0.0.1:80", header, "for=203.0.113.9;proto=https;by=10.0.0.1"))
	bench(b, "three hops", f, request("10.0.0.1:80", header, "for=1.1.1.1, for=203.0.113.9, for=10.0.0.3", "for=10.0.0.2"))
	bench(b, "quoted IPv6", f, request("10.0.0.1:80", header, `for="[2001:db8:1:2:3:4:5:6]:4711";proto=https`))
	bench(b, "1 MB of quotes", f, request("10.0.0.1:80", header, strings.Repeat(`\"`, 1<<19)))
}

func BenchmarkBehindProxies(b *testing.B) {
	bench(b, "two", keyfuncs.BehindProxies(2), request("@", "X-Forwarded-For", "1.1.1.1, 203.0.113.9, 10.0.0.2"))
}

func BenchmarkHeader(b *testing.B) {
	bench(b, "key", keyfuncs.Header("X-Api-Key"), request("", "X-Api-Key", "0123456789abcdef"))
	bench(b, "absent", keyfuncs.Header("X-Api-Key"), request("", ""))
}

func BenchmarkBearer(b *testing.B) {
	bench(b, "opaque", keyfuncs.Bearer(), request("", "Authorization", "Bearer 0123456789abcdef0123456789abcdef"))
	jwt := encode(`{"alg":"RS256","typ":"JWT","kid":"2026-01"}`, bytesOf(600), bytesOf(256))
	bench(b, "JWT of 1,200 bytes", keyfuncs.Bearer(), request("", "Authorization", "Bearer "+jwt))
}

func BenchmarkContext(b *testing.B) {
	with := func(value any) *http.Request {
		return new(http.Request).WithContext(context.WithValue(b.Context(), userKey{}, value))
	}
	bench(b, "string", keyfuncs.Context(userKey{}), with("anna"))
	bench(b, "int", keyfuncs.Context(userKey{}), with(1234567))
}

func BenchmarkAll(b *testing.B) {
	r := request("203.0.113.7:4711", "")
	r.Pattern = "GET /items/{id}"
	bench(b, "constants", keyfuncs.All(constant("a"), constant("b")), r)
	bench(b, "route and address", keyfuncs.All(keyfuncs.Route(), keyfuncs.RemoteAddr()), r)
}

func BenchmarkFirst(b *testing.B) {
	f := keyfuncs.First(keyfuncs.Tag("key", keyfuncs.Header("X-Api-Key")), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
	bench(b, "second", f, request("203.0.113.7:4711", ""))
}

func bench(b *testing.B, name string, f keyfuncs.Func, r *http.Request) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = f(r)
		}
	})
}
