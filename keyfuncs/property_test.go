package keyfuncs_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

// A hop is something that may stand in a header, and what it means.
type hop struct {
	text    string
	key     string // "" for what is no address
	trusted bool
}

var hops = []hop{
	{"203.0.113.9", "203.0.113.9", false},
	{"203.0.113.9:4711", "203.0.113.9", false},
	{"::ffff:203.0.113.9", "203.0.113.9", false},
	{"64:ff9b::203.0.113.9", "203.0.113.9", false},
	{"64:ff9b::10.0.0.1", "10.0.0.1", false},
	{"192.168.1.1", "192.168.1.1", false},
	{"[2001:db8:1:2::9]:4711", "2001:db8:1:2::/64", false},
	{"[fe80::9%eth0]", "fe80::/64", false},
	{"10.0.0.1", "10.0.0.1", true},
	{"10.0.0.2:80", "10.0.0.2", true},
	{"::ffff:10.0.0.3", "10.0.0.3", true},
	{"[2001:db8:ffff::1]", "2001:db8:ffff::/64", true},
	{"192.0.2.80", "192.0.2.80", true},
	{"", "", false},
	{"unknown", "", false},
	{"_hidden", "", false},
	{"1.2.3", "", false},
	{"203.0.113.9 10.0.0.1", "", false},
}

// walkSlowly is the obvious reading of a whole list: from the peer to the left, as
// long as the word is that of a proxy. It is "" if a proxy wrote nothing.
func walkSlowly(peer hop, written []hop) string {
	if peer.trusted && len(written) == 0 {
		return ""
	}
	at := peer
	for i := len(written) - 1; i >= 0 && at.trusted && written[i].key != ""; i-- {
		at = written[i]
	}
	return at.key
}

// nthSlowly is the obvious reading of BehindProxies. It is "" if there is no such element.
func nthSlowly(n int, written []hop) string {
	if n <= len(written) {
		return written[len(written)-n].key
	}
	return ""
}

// write writes hops to lines, with commas or new lines and spaces between.
func write(rnd *rand.Rand, written []hop, element func(hop) string) []string {
	var lines []string
	for i, h := range written {
		text := pick(rnd, "", " ", "\t") + element(h) + pick(rnd, "", " ", "\t ")
		if i == 0 || rnd.IntN(3) == 0 {
			lines = append(lines, text)
		} else {
			lines[len(lines)-1] += "," + text
		}
	}
	return lines
}

func pick[T any](rnd *rand.Rand, from ...T) T { return from[rnd.IntN(len(from))] }

func randomHops(rnd *rand.Rand, n int) []hop {
	written := make([]hop, rnd.IntN(n))
	for i := range written {
		written[i] = pick(rnd, hops...)
	}
	return written
}

func randomPeer(rnd *rand.Rand) hop {
	for {
		if peer := pick(rnd, hops...); peer.key != "" {
			return peer
		}
	}
}

func plain(h hop) string { return h.text }

func TestXForwardedForModel(t *testing.T) {
	f := keyfuncs.XForwardedFor(trusted...)
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 50_000 {
		peer, written := randomPeer(rnd), randomHops(rnd, 8)
		r := request(peer.text, "X-Forwarded-For", write(rnd, written, plain)...)
		want := walkSlowly(peer, written)
		if got, err := f(r); (err != nil) != (want == "") || got != want {
			t.Fatalf("%q from %q: got %q, %v; want %q", r.Header, r.RemoteAddr, got, err, want)
		}
	}
}

func TestBehindProxiesModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		n, peer, written := 1+rnd.IntN(4), randomPeer(rnd), randomHops(rnd, 8)
		r := request(peer.text, "X-Forwarded-For", write(rnd, written, plain)...)
		want := nthSlowly(n, written)
		if got, err := keyfuncs.BehindProxies(n)(r); (err != nil) != (want == "") || got != want {
			t.Fatalf("%d: %q from %q: got %q, %v; want %q", n, r.Header, r.RemoteAddr, got, err, want)
		}
	}
}

// element writes a well-formed forwarded-element for a hop, in all its liberty.
func element(rnd *rand.Rand, h hop) string {
	const nasty = `,;="\ for[]:1.`
	quote := func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			if s[i] == '"' || s[i] == '\\' || rnd.IntN(8) == 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i])
		}
		return `"` + b.String() + `"`
	}
	pairs := []string{pick(rnd, "for=", "For=", "FOR=") + quote(h.text)}
	if !strings.ContainsAny(h.text, ":[]% ") && h.text != "" && rnd.IntN(2) == 0 {
		pairs[0] = "for=" + h.text
	}
	for range rnd.IntN(3) {
		extension := make([]byte, rnd.IntN(10))
		for i := range extension {
			extension[i] = nasty[rnd.IntN(len(nasty))]
		}
		pairs = append(pairs, pick(rnd, "by=10.0.0.1", "proto=https", `host="a:80"`, "", "x="+quote(string(extension))))
	}
	rnd.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	return strings.Join(pairs, ";")
}

func TestForwardedModel(t *testing.T) {
	f := keyfuncs.Forwarded(trusted...)
	rnd := rand.New(rand.NewPCG(1, 3))
	for range 50_000 {
		peer, written := randomPeer(rnd), randomHops(rnd, 8)
		lines := write(rnd, written, func(h hop) string { return element(rnd, h) })
		r := request(peer.text, "Forwarded", lines...)
		want := walkSlowly(peer, written)
		if got, err := f(r); (err != nil) != (want == "") || got != want {
			t.Fatalf("%q from %q: got %q, %v; want %q", lines, r.RemoteAddr, got, err, want)
		}
	}
}

// The property that all of this is for: whatever a client writes, the key is what the
// proxies say, be their elements on the client's line or on one of their own.
func TestClientsCannotChoose(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const alphabet = `",\;=for1.:[] ` + "\t\x00\xff"
	rnd := rand.New(rand.NewPCG(1, 4))
	for range 50_000 {
		junk := make([]byte, rnd.IntN(12))
		for i := range junk {
			junk[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		// The proxies saw a client, or something that has no address, and each other.
		client := pick(rnd, hops[0], hops[3], hops[4], hops[6], hops[14])
		appended := []hop{client}
		for range rnd.IntN(3) {
			appended = append(appended, hops[8+rnd.IntN(5)])
		}
		for header, c := range map[string]struct {
			f       keyfuncs.Func
			element func(hop) string
			want    string
		}{
			"X-Forwarded-For": {keyfuncs.XForwardedFor(trusted...), plain, walkSlowly(hops[8], appended)},
			"Forwarded": {keyfuncs.Forwarded(trusted...), func(h hop) string { return element(rnd, h) },
				walkSlowly(hops[8], appended)},
			"x-forwarded-for": {keyfuncs.BehindProxies(len(appended)), plain, nthSlowly(len(appended), appended)},
		} {
			lines := write(rnd, appended, c.element)
			if rnd.IntN(2) == 0 {
				lines = append([]string{string(junk)}, lines...)
			} else {
				lines[0] = string(junk) + "," + lines[0]
			}
			got, err := c.f(request(hops[8].text, header, lines...))
			if (err != nil) != (c.want == "") || got != c.want {
				t.Fatalf("%s: %q: got %q, %v; want %q", header, lines, got, err, c.want)
			}
		}
	}
}

// Every address of a network has the network's key, and no other address has it.
func TestNetworkModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 5))
	for range 20_000 {
		var b [16]byte
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		a := netip.AddrFrom16(b)
		v4, v6 := 1+rnd.IntN(32), 1+rnd.IntN(128)
		bits := v6
		if rnd.IntN(2) == 0 {
			a = netip.AddrFrom4([4]byte(b[:4]))
			bits = v4
		}
		flip := rnd.IntN(a.BitLen())
		other := a.AsSlice()
		other[flip/8] ^= 0x80 >> (flip % 8)
		o, _ := netip.AddrFromSlice(other)

		f := keyfuncs.Network(keyfuncs.RemoteAddr(), v4, v6)
		key, err := f(request(netip.AddrPortFrom(a, 80).String(), ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := canonical(key); err != nil {
			t.Fatalf("%v: %v", a, err)
		}
		otherKey, err := f(request(o.String(), ""))
		if err != nil {
			t.Fatal(err)
		}
		if same := key == otherKey; same != (flip >= bits) {
			t.Fatalf("%v and %v by %d bits: %q and %q", a, o, bits, key, otherKey)
		}
	}
}

// canonical reports what is wrong with the key of an address.
func canonical(key string) error {
	network, err := netip.ParsePrefix(key)
	if err != nil {
		addr, err := netip.ParseAddr(key)
		if err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		network = netip.PrefixFrom(addr, addr.BitLen())
	}
	text := network.String()
	if network.IsSingleIP() {
		text = network.Addr().String()
	}
	switch addr := network.Addr(); {
	case key != text, network != network.Masked(), addr.Is4In6(), addr.Zone() != "",
		netip.MustParsePrefix("64:ff9b::/96").Contains(addr) && network.Bits() >= 96,
		netip.MustParsePrefix("2002:cb00::/24").Contains(addr) && network.Bits() >= 24: // public, by 6to4
		return fmt.Errorf("key %q is not canonical", key)
	}
	return nil
}
