package plans

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// What Find finds is what a search through all overrides finds: the exact key, the longest network, the longest prefix.
func TestPrecedence(t *testing.T) {
	type over struct {
		kind, value string
		network     netip.Prefix
		from, until int64
	}
	now := time.Now().UnixMicro()
	hits := map[string]int{}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		v4 := func() string { return fmt.Sprintf("10.%d.%d.%d", r.IntN(2), r.IntN(2), r.IntN(4)) }
		v6 := func() string { return fmt.Sprintf("2001:db8:%d:%d::", r.IntN(2), r.IntN(3)) }
		table := NewTable(-1, map[string]int{"gold": -2})
		var all []over
		for range 1 + r.IntN(12) {
			o := over{}
			switch r.IntN(5) {
			case 0:
				o.from = now + int64(time.Hour/time.Microsecond)
			case 1:
				o.from, o.until = now-1e6, now+int64(time.Hour/time.Microsecond)
			case 2:
				o.until = now - 1
			}
			switch r.IntN(4) {
			case 0:
				o.kind, o.value = "key", []string{v4(), v6() + "/64", "user-" + fmt.Sprint(r.IntN(3))}[r.IntN(3)]
			case 1:
				o.kind, o.network = "network", netip.PrefixFrom(netip.MustParseAddr(v4()), 8+r.IntN(25)).Masked()
			case 2:
				o.kind, o.network = "network", netip.PrefixFrom(netip.MustParseAddr(v6()+"1"), 30+r.IntN(40)).Masked()
			case 3:
				o.kind, o.value = "prefix", []string{"1", "10.", "10.0.", "2001:", "user", "user-1"}[r.IntN(6)]
			}
			if o.kind == "network" {
				o.value = o.network.String()
			}
			twice := false
			for _, b := range all {
				twice = twice || b.kind == o.kind && b.value == o.value
			}
			if twice {
				continue
			}
			all = append(all, o)
			i := len(all) - 1
			switch o.kind {
			case "key":
				table.Key(o.value, i, o.from, o.until)
			case "network":
				table.Network(o.network, i, o.from, o.until)
			case "prefix":
				table.Prefix(o.value, i, o.from, o.until)
			}
		}
		for range 20 {
			key := []string{v4(), v6() + "/64", v6() + "7", v4() + "/24", "user-1", "user-12", "x", ""}[r.IntN(8)]
			plan := []string{"", "gold", "none"}[r.IntN(3)]
			want, best, how := -1, -1, "default"
			if plan == "gold" {
				want, how = -2, "plan"
			}
			for i, o := range all {
				if o.from > now || o.until != 0 && o.until <= now {
					continue
				}
				rank := -1
				switch o.kind {
				case "key":
					if key == o.value {
						rank = 100000
					}
				case "prefix":
					if strings.HasPrefix(key, o.value) {
						rank = len(o.value)
					}
				case "network":
					text, bits := key, 0
					if a, b, ok := strings.Cut(key, "/"); ok {
						text = a
						fmt.Sscan(b, &bits)
					}
					if a, err := netip.ParseAddr(text); err == nil {
						if bits == 0 {
							bits = a.BitLen()
						}
						if o.network.Contains(a) && o.network.Bits() <= bits {
							rank = 1000 + o.network.Bits()
						}
					}
				}
				if rank > best {
					want, best, how = i, rank, o.kind
				}
			}
			hits[how]++
			if got := table.Find(plan, key); got != want {
				t.Fatalf("seed %d: %d for %q, not %d: %+v", seed, got, key, want, all)
			}
		}
	}
	t.Log(hits)
}

// What is no address is found out without memory, and what is one is read as netip does.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"203.0.113.7", "2001:db8::/64", "10.0.0.0/8", "::ffff:1.2.3.4", "1.2.3", "a:b:c", "1.2.3.4/33", "fe80::1%eth0", "/", "::/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, bits, ok := Address(s)
		text, _, cut := strings.Cut(s, "/")
		want, err := netip.ParseAddr(text)
		if ok && (err != nil || a != want || bits > a.BitLen()) || !ok && err == nil && !cut && want.Zone() == "" {
			t.Errorf("%q: %v/%d %v, not %v %v", s, a, bits, ok, want, err)
		}
	})
}
