package keyfuncs_test

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

// checkAddress asks what holds for every key of an address: it is there or an error
// is, it is written in the one way, and is its own key.
func checkAddress(t *testing.T, f keyfuncs.Func, r *http.Request) string {
	t.Helper()
	key, err := f(r)
	if (key == "") == (err == nil) {
		t.Fatalf("key %q, error %v", key, err)
	}
	if err != nil {
		return ""
	}
	if err := canonical(key); err != nil {
		t.Fatal(err)
	}
	addr, _, _ := strings.Cut(key, "/")
	if again, err := keyfuncs.RemoteAddr()(request(addr, "")); err != nil || again != key {
		t.Fatalf("the key of %q is %q, %v", key, again, err)
	}
	return key
}

func FuzzRemoteAddr(f *testing.F) {
	for _, seed := range []string{
		"203.0.113.7:4711", "203.0.113.7", "[2001:db8::1%eth0]:80", "::ffff:1.2.3.4", "64:ff9b::1.2.3.4", "@", "",
		"[::", "[::]x", ":", "::", "1.2.3.4:_x", "[1.2.3.4]:80", "::ffff:0:0", "fe80::1%", "%eth0", "[%]:1",
		// Close to what has a short cut.
		"0.0.0.0:0", "255.255.255.255:65535", "01.2.3.4:80", "1.2.3.00:80", "256.2.3.4:80", "1.2.3:80", "1.2.3.4.5:80",
		"1..2.3:80", ".1.2.3:80", "1.2.3.:80", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:123456", "1.2.3.4%a:80", "1.2.3.4:80:80",
		"10.20.30.40:1", "1.2.3.25a:80", "1.2.3.0255:80", "1.2.3.99:80", "[::1]:", "[::1]:123456", "[::1]80", "::1]:80", "[]:80", "[::1x:80",
		"[[::1]]:80", "[::1]]:80", "[::ffff:1.2.3.4]:80", "[fe80::1%]:1]:80", "[2002:cb00:7109::1]:80", "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:80",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, remote string) {
		key := checkAddress(t, keyfuncs.RemoteAddr(), request(remote, ""))
		for _, bits := range lengths {
			sameKey(t, bits[0], bits[1], remote)
		}
		if whole, _ := keyfuncs.Network(keyfuncs.RemoteAddr(), 32, 128)(request(remote, "")); whole != "" {
			if want := networkOf(whole); key != want {
				t.Fatalf("key %q, want %q", key, want)
			}
		}
		// What net/http gives must be understood. (ParseAddrPort accepts ports of many zeros.)
		if ap, err := netip.ParseAddrPort(remote); err == nil && ap.String() == remote && key == "" {
			t.Fatalf("no key for %v", ap)
		}
	})
}

// networkOf returns the key of an address by its key of all bits, as netip writes it.
func networkOf(whole string) string {
	addr := netip.MustParseAddr(whole)
	if addr.Is4() {
		return whole
	}
	return netip.PrefixFrom(addr, 64).Masked().String()
}

// lengths are of networks of IPv4 and IPv6.
var lengths = [][2]int{{32, 64}, {32, 48}, {1, 1}, {32, 128}, {24, 48}, {16, 56}}

// sameKey asks that RemoteAddr, at each time that it is asked, has the key that XForwardedFor has
// of a connection that is not from its proxy, which takes no short cut and remembers nothing.
func sameKey(t *testing.T, v4, v6 int, remote string) {
	t.Helper()
	for _, wrap := range []func(keyfuncs.Func) keyfuncs.Func{
		func(f keyfuncs.Func) keyfuncs.Func { return f },
		func(f keyfuncs.Func) keyfuncs.Func { return keyfuncs.Network(f, v4, v6) },
	} {
		f := wrap(keyfuncs.RemoteAddr())
		want, wantErr := wrap(keyfuncs.XForwardedFor("2001:db8:1234:5678::9abc"))(request(remote, ""))
		for range 3 {
			if got, err := f(request(remote, "")); got != want || !errors.Is(err, wantErr) {
				t.Errorf("by %d and %d bits, of %q: key %q, %v; want %q, %v", v4, v6, remote, got, err, want, wantErr)
			}
		}
	}
}

func FuzzXForwardedFor(f *testing.F) {
	for _, seed := range []string{
		"", "1.1.1.1", "1.1.1.1, 10.0.0.2", ",", ",,,", `"`, "10.0.0.2,", "::ffff:10.0.0.2", "[::1]:80", "unknown",
		"[", "10.0.0.2:", "\x00", strings.Repeat("10.0.0.2,", 70), strings.Repeat(" ", 1100), "10.0.0.2\n10.0.0.3",
	} {
		f.Add(seed)
	}
	const header, proxy = "X-Forwarded-For", "10.0.0.1:80"
	walk := keyfuncs.XForwardedFor(trusted...)
	count := keyfuncs.BehindProxies(2)
	f.Fuzz(func(t *testing.T, written string) {
		checkAddress(t, walk, request(proxy, header, written))
		checkAddress(t, count, request(proxy, header, written))
		checkAddress(t, keyfuncs.ProxyHeader("X-Real-IP", trusted...), request(proxy, "X-Real-IP", written))
		for appended, want := range map[string]string{
			"203.0.113.9, 10.0.0.2":     "203.0.113.9",
			"[2001:db8::9]:80,10.0.0.2": "2001:db8::/64",
		} {
			for _, f := range []keyfuncs.Func{walk, count} {
				wantKey(t, f, request(proxy, header, written+", "+appended), want)
				wantKey(t, f, request(proxy, header, written+","+appended), want)
				wantKey(t, f, request(proxy, header, written, appended), want)
				wantKey(t, f, request(proxy, header, append(strings.Split(written, "\n"), appended)...), want)
			}
		}
		// A proxy that did not know the client is charged for it.
		wantKey(t, walk, request(proxy, header, written+", unknown, 10.0.0.2"), "10.0.0.2")
		wantKey(t, walk, request(proxy, header, written+", "), "10.0.0.1")
	})
}

func FuzzForwarded(f *testing.F) {
	for _, seed := range []string{
		"", "for=1.1.1.1", `for="1.1.1.1`, `for="1.1.1.1\`, `for="a\"`, `"`, `""`, `\"`, `\`, `for=1.1.1.1;x="`,
		`for="[::1]:80";by=_x`, "for=unknown", ",", ";", "=", "for=", `for="`, `x="a,b"`, "for=10.0.0.2, for=10.0.0.3",
		"For=10.0.0.2;for=1.1.1.1", strings.Repeat(`"`, 1100), strings.Repeat(`for=10.0.0.2,`, 70),
	} {
		f.Add(seed)
	}
	const header, proxy = "Forwarded", "10.0.0.1:80"
	walk := keyfuncs.Forwarded(trusted...)
	f.Fuzz(func(t *testing.T, written string) {
		checkAddress(t, walk, request(proxy, header, written))
		for appended, want := range map[string]string{
			"for=203.0.113.9":                                      "203.0.113.9",
			`for="203.0.113.9:80";by="[2001:db8::1]"`:              "203.0.113.9",
			`x="a\"b,c\\";for="[2001:db8::9]", for=10.0.0.2`:       "2001:db8::/64",
			`for=203.0.113.9, for="10.0.0.3";x="," , for=10.0.0.2`: "203.0.113.9",
			`for=_hidden;x="\\\""`:                                 "10.0.0.1",
			`for=unknown, for="10.0.0.2"`:                          "10.0.0.2",
			`by=10.0.0.1`:                                          "10.0.0.1",
		} {
			wantKey(t, walk, request(proxy, header, written+", "+appended), want)
			wantKey(t, walk, request(proxy, header, written+","+appended), want)
			wantKey(t, walk, request(proxy, header, written, appended), want)
		}
		// As the value of a parameter that a client chose and the proxy quoted.
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(written)
		if len(quoted) < 900 {
			wantKey(t, walk, request(proxy, header, `for=203.0.113.9;host="`+quoted+`"`), "203.0.113.9")
		}
	})
}

func FuzzAllUnambiguous(f *testing.F) {
	f.Add("a", "b", "ab", "")
	f.Add("a", "1:b", "a,1:", "b")
	f.Add("1:a", "b", "1", "a,1:b")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		if a == "" || b == "" || c == "" || d == "" {
			t.Skip("not a key")
		}
		ab := keyOf(t, keyfuncs.All(constant(a), constant(b)))
		cd := keyOf(t, keyfuncs.All(constant(c), constant(d)))
		if (ab == cd) != (a == c && b == d) {
			t.Fatalf("%q, %q: %q; %q, %q: %q", a, b, ab, c, d, cd)
		}
		if abc := keyOf(t, keyfuncs.All(constant(a), constant(b), constant(c))); abc == ab || abc == cd {
			t.Fatalf("three members have the key of two: %q", abc)
		}
		one := keyOf(t, first(constant(a)))
		other := keyOf(t, first(failing(keyfuncs.ErrAbsent), constant(b)))
		if one == other {
			t.Fatalf("two members of First have the key %q", one)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add("key")
	f.Add(" \t")
	f.Add(strings.Repeat("k", 5000))
	f.Fuzz(func(t *testing.T, value string) {
		key, err := keyfuncs.Header("X-Api-Key")(request("", "X-Api-Key", value))
		if (key == "") == (err == nil) {
			t.Fatalf("key %q, error %v", key, err)
		}
		if padded, _ := keyfuncs.Header("X-Api-Key")(request("", "X-Api-Key", "\t "+value+" ")); padded != key {
			t.Fatalf("white space makes another key: %q, %q", key, padded)
		}
	})
}
