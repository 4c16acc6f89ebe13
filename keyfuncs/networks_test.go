package keyfuncs_test

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/keyfuncs"
)

func TestIn(t *testing.T) {
	var (
		whole    = keyfuncs.Network(keyfuncs.RemoteAddr(), 32, 128)
		usual    = keyfuncs.RemoteAddr()
		coarse   = keyfuncs.Network(keyfuncs.RemoteAddr(), 24, 48)
		networks = []string{"192.0.2.0/25", "198.51.100.7", "2001:db8:1:2::/64", "::ffff:203.0.113.0/120"}
	)
	for _, c := range []struct {
		remote  string
		address keyfuncs.Func
		in      bool
	}{
		{"192.0.2.0:80", usual, true},
		{"192.0.2.127:80", usual, true},
		{"192.0.2.128:80", usual, false},
		{"192.0.1.255:80", usual, false},
		{"198.51.100.7:80", usual, true},
		{"198.51.100.6:80", usual, false},
		{"198.51.100.8:80", usual, false},
		{"203.0.113.9:80", usual, true}, // the network is IPv4, however it is written
		{"203.0.114.9:80", usual, false},
		{"[::ffff:192.0.2.1]:80", usual, true},
		{"[64:ff9b::192.0.2.1]:80", usual, true},
		{"[2002:c000:201:5::6]:80", usual, true},
		{"[2002:a00:1::1]:80", usual, false}, // of no IPv4 address, and no IPv6 address either
		{"[2001:0:1:2:3:4:3fff:fdfe]:80", usual, true},
		{"[2001:db8:1:2::9]:80", usual, true},
		{"[2001:db8:1:3::9]:80", usual, false},
		{"[2001:db8:1:2::9]:80", whole, true},
		{"[2001:db8:1:3::9]:80", whole, false},
		// Known by network: the address, or another of its network, is in one.
		{"192.0.2.1:80", coarse, false},
		{"192.0.2.200:80", coarse, false},
		{"203.0.113.1:80", coarse, true},
		{"192.0.3.1:80", coarse, false},
		{"[2001:db8:1:2::9]:80", coarse, false},
		{"[2001:db8:3::9]:80", coarse, false},
		// No address, no answer.
		{"@", usual, false},
		{"192.0.2.1:80", failing(errBroken), false},
		{"192.0.2.1:80", constant("everyone"), false},
		{"192.0.2.1:80", constant(""), false},
		{"192.0.2.1:80", first(usual), false},
		{"192.0.2.1:80", keyfuncs.All(usual), false},
		// Keys of functions that are not this package's.
		{"", constant("192.0.2.1:4711"), true},
		{"", constant("::ffff:192.0.2.1"), true},
		{"", constant("::ffff:192.0.2.0/121"), true},
		{"", constant("::ffff:192.0.2.0/120"), false},
		{"", constant("64:ff9b::192.0.2.1"), true},
		{"", constant("64:ff9b::c000:200/121"), true},
		{"", constant("[2001:db8:1:2::9%eth0]:80"), true},
		{"", constant("2002:c000:201::1"), true},
		{"", constant("2002:c000:281::1"), false},
		{"", constant("2001::3fff:fdfe"), true},
		{"", constant("2002:c000:201::/64"), false},
		{"", constant("2001::/64"), false},
	} {
		r := request(c.remote, "")
		if in := keyfuncs.In(c.address, networks...)(r); in != c.in {
			key, err := c.address(r)
			t.Errorf("%s, key %q, %v: %v, want %v", c.remote, key, err, in, c.in)
		}
	}
}

// A network of more than 64 bits is compared with the whole address, whatever the key is.
func TestInLongNetworks(t *testing.T) {
	in := func(f keyfuncs.Func, r *http.Request) bool {
		return keyfuncs.In(f, "2001:db8:2::1", "2001:db8:3::/124")(r)
	}
	for remote, want := range map[string]bool{
		"2001:db8:2::1": true, "2001:db8:2::2": false, "2001:db8:3::f": true, "2001:db8:3::10": false, "192.0.2.1": false, "@": false,
	} {
		for name, f := range map[string]keyfuncs.Func{
			"RemoteAddr":    keyfuncs.RemoteAddr(),
			"XForwardedFor": keyfuncs.XForwardedFor(keyfuncs.Unix, "10.0.0.1"),
			"Forwarded":     keyfuncs.Forwarded("10.0.0.1"),
			"ProxyHeader":   keyfuncs.ProxyHeader("X-Real-IP", "10.0.0.1"),
			"BehindProxies": keyfuncs.BehindProxies(1),
			"Network":       keyfuncs.Network(keyfuncs.RemoteAddr(), 24, 48),
			"own":           func(r *http.Request) (string, error) { return keyfuncs.RemoteAddr()(r) },
		} {
			r := request("10.0.0.1:80", "X-Forwarded-For", remote)
			r.Header.Set("Forwarded", `for="`+remote+`"`)
			r.Header.Set("X-Real-IP", remote)
			if name == "RemoteAddr" || name == "Network" || name == "own" {
				r.RemoteAddr = "[" + remote + "]:80"
			}
			if got := in(f, r); got != want {
				t.Errorf("%s of %s: %v", name, remote, got)
			}
		}
	}
	// What cannot tell the whole address is in none.
	for _, f := range []keyfuncs.Func{constant("2001:db8:2::/64"), first(keyfuncs.RemoteAddr()), keyfuncs.Hashed(keyfuncs.RemoteAddr())} {
		if in(f, request("[2001:db8:2::1]:80", "")) {
			t.Error("a network of 64 bits is in one of 128")
		}
	}
}

// An inner network decides, wherever it stands, when an outer one leaves doubt.
func TestInOverlapping(t *testing.T) {
	coarse := keyfuncs.Network(keyfuncs.RemoteAddr(), 24, 64)
	for _, networks := range [][]string{{"192.0.2.1", "192.0.0.0/16"}, {"192.0.0.0/16", "192.0.2.1"}} {
		if !keyfuncs.In(coarse, networks...)(request("192.0.2.9:80", "")) {
			t.Errorf("%v", networks)
		}
	}
}

// What is larger than a part that stands for IPv4 is a network of IPv6.
func TestInAroundNAT64(t *testing.T) {
	in := keyfuncs.In(keyfuncs.RemoteAddr(), "64:ff9b::/32")
	for remote, want := range map[string]bool{
		"[64:ff9b:1::1]:80":      true,
		"[64:ff9c::1]:80":        false,
		"[64:ff9b::1.2.3.4]:80":  false, // is 1.2.3.4
		"[::ffff:1.2.3.4]:80":    false,
		"[64:ff9b:0:0:1::1]:80":  true,
		"[64:ff9a:ffff::ffff]:1": false,
	} {
		if got := in(request(remote, "")); got != want {
			t.Errorf("%s: %v", remote, got)
		}
	}
}

// The same for 6to4 and Teredo.
func TestInAround6to4(t *testing.T) {
	in := keyfuncs.In(keyfuncs.RemoteAddr(), "2000::/4")
	for remote, want := range map[string]bool{
		"[2003::1]:80":         true,
		"[2001:1::1]:80":       true,
		"[2002:102:304::1]:80": false, // is 1.2.3.4
		"[2001::1]:80":         false, // is 255.255.255.254
	} {
		if got := in(request(remote, "")); got != want {
			t.Errorf("%s: %v", remote, got)
		}
	}
}

func TestNetworkFaults(t *testing.T) {
	for _, c := range []struct {
		networks []string
		want     []string
	}{
		{nil, []string{"no network"}},
		{[]string{"192.0.2.0/24", ""}, []string{`network "": neither`}},
		{[]string{"office"}, []string{`network "office": neither`}},
		{[]string{"fe80::1%eth0"}, []string{"neither"}},
		{[]string{"192.0.2.0/33"}, []string{"neither"}},
		{[]string{"192.0.2.1/24"}, []string{"which would be 192.0.2.0/24"}},
		{[]string{"0.0.0.0/0"}, []string{"every address"}},
		{[]string{"::/0"}, []string{"every address"}},
		{[]string{"::ffff:0.0.0.0/96"}, []string{"every address"}},
		{[]string{"64:ff9b::/96"}, []string{"every address"}},
		{[]string{"2002::/16"}, []string{"IPv4"}},
		{[]string{"2002:c000:201::/48"}, []string{"name their IPv4 networks"}},
		{[]string{"2002:c000:201::1"}, []string{"name their IPv4 networks"}},
		{[]string{"2001::/32", "2001::1"}, []string{"name their IPv4 networks", "name their IPv4 networks"}},
		{[]string{"office", "192.0.2.0/24", "::/0", "10.0.0.1/8"}, []string{"office", "::/0", "10.0.0.0/8"}},
	} {
		wantLines(t, panicOf(func() { keyfuncs.In(keyfuncs.RemoteAddr(), c.networks...) }), c.want)
		if keyfuncs.CheckNetworks(c.networks...) == nil {
			t.Errorf("%q: CheckNetworks accepts them", c.networks)
		}
	}
}

// What In says of a prefix is true of each address in it.
func TestNetworksModel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	rnd := rand.New(rand.NewPCG(2, 1))
	address := func() netip.Addr {
		if rnd.IntN(2) == 0 { // few bits, so that networks meet
			return netip.AddrFrom4([4]byte{192, 0, 2, byte(rnd.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 3, 7: byte(rnd.IntN(4)), 8: byte(rnd.IntN(2)), 15: byte(rnd.IntN(256))})
	}
	for range 20_000 {
		var networks []string
		var prefixes []netip.Prefix
		for range 1 + rnd.IntN(3) {
			a := address()
			p, _ := a.Prefix(a.BitLen() - rnd.IntN(10))
			if rnd.IntN(3) == 0 && a.Is6() {
				p, _ = a.Prefix(60 + rnd.IntN(10))
			}
			prefixes, networks = append(prefixes, p), append(networks, p.String())
		}
		f := keyfuncs.Network(keyfuncs.RemoteAddr(), 24+rnd.IntN(9), 60+rnd.IntN(69))
		in := keyfuncs.In(f, networks...)
		a := address()
		r := request(netip.AddrPortFrom(a, 80).String(), "")
		var really bool
		for _, p := range prefixes {
			really = really || p.Contains(a)
		}
		if in(r) && !really {
			t.Fatalf("%v is not in %q", a, networks)
		}
		if keyfuncs.In(keyfuncs.RemoteAddr(), networks...)(r) != really {
			t.Fatalf("%v of %q, really %v: In says otherwise", a, networks, really)
		}
	}
}

func FuzzNetworks(f *testing.F) {
	for _, seed := range []string{"", "192.0.2.0/24", "::/0", "0.0.0.0/0", "::ffff:0:0/96", "64:ff9b::/96", "fe80::1%eth0", "/", "1.2.3.4/", "::1/128"} {
		f.Add(seed, "192.0.2.1")
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, network, key string) {
		err := keyfuncs.CheckNetworks(network)
		if text := panicOf(func() { usable(network) }); text != "" {
			if err == nil {
				t.Fatalf("%q is accepted, and panics: %s", network, text)
			}
			return
		}
		r := new(http.Request)
		keyfuncs.In(constant(key), network)(r)
		if p, err := netip.ParsePrefix(network); err == nil && !keyfuncs.In(constant(network), network)(r) {
			t.Fatalf("%v is not in itself", p)
		}
	})
}
