package keyfuncs

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
)

// In returns a function that reports whether the client's address is in one of the
// networks, as "192.0.2.0/24", or is one of them, as "192.0.2.1". It is for exceptions,
// as nethttp's Config.Skip:
//
//	address, err := keyfuncs.Prefix{V6: 128}.XForwardedFor("10.0.0.0/8")
//	...
//	monitors, err := keyfuncs.In(address, "192.0.2.0/24", "2001:db8:1::/48")
//	...
//	nethttp.Config{Skip: monitors, ...}
//
// The address is what the given function charges, so take the one that is named after
// your deployment, by itself: neither in [All] nor in [First]. It tells as much as its
// [Prefix] leaves of an address, for IPv6 the /64: a network of more bits than that
// needs a Prefix of as many.
//
// In doubt the answer is false: if the function gives an error, or a key that is no
// address, or one that is known by a prefix of which only a part is in the networks. So
// In does for what is granted; for what is refused take [NotIn], which is false in doubt
// as well.
//
// Who can connect from the networks is excepted, and so is who is taken for one of them.
// Do not list networks of your proxies: a request whose client they did not name counts
// as theirs, and with [RemoteAddr] behind a proxy all requests do.
//
// All faults of the networks are reported at once. At least one is needed, and the
// network of all addresses is a fault. In panics if address is nil.
func In(address Func, networks ...string) (func(*http.Request) bool, error) {
	return membership("In", address, networks, inside)
}

// NotIn returns a function that reports whether the client's address is in none of the
// networks. It is for what refuses addresses:
//
//	welcome, err := keyfuncs.NotIn(address, "198.51.100.0/24")
//	...
//	if !welcome(r) {
//		http.Error(w, "403 forbidden", http.StatusForbidden)
//		return
//	}
//
// In doubt the answer is false, as with [In], whose arguments, faults and warnings are
// NotIn's too.
func NotIn(address Func, networks ...string) (func(*http.Request) bool, error) {
	return membership("NotIn", address, networks, outside)
}

func membership(name string, address Func, texts []string, want place) (func(*http.Request) bool, error) {
	if address == nil {
		panic("headgate: keyfuncs: " + name + ": the function is nil")
	}
	ranges, err := parseRanges(texts)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) bool {
		key, err := address(r)
		return err == nil && placeOf(key, ranges) == want
	}, nil
}

// A place is where an address is, as seen from a set of networks.
type place int

const (
	unknown place = iota
	inside
	outside
)

// placeOf returns the place of the address, or of all addresses of the network, that a
// key of this package stands for.
func placeOf(key string, ranges networks) place {
	client, err := netip.ParsePrefix(key)
	if err != nil {
		addr, ok := parseNode(key)
		if !ok {
			return unknown
		}
		client = netip.PrefixFrom(addr, addr.BitLen())
	}
	client = to4(client)
	at := outside
	for _, n := range ranges {
		if !n.Overlaps(client) {
			continue
		}
		if n.Bits() <= client.Bits() {
			return inside
		}
		at = unknown
	}
	return at
}

// networks is a set of networks, as parsePrefixes returns it.
type networks []netip.Prefix

func (ns networks) contain(addr netip.Addr) bool {
	for _, n := range ns {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}

// parseTrusted parses the networks that proxies connect from.
func parseTrusted(texts []string) (networks, error) {
	if len(texts) == 0 {
		return nil, errors.New("headgate: keyfuncs: no trusted network: name those of the proxies, or use RemoteAddr")
	}
	return parsePrefixes("trusted", texts, unmap, "each client could choose its address: "+
		"name the proxies' networks, or use BehindProxies")
}

// parseRanges parses the networks that In and NotIn compare a client's address with.
func parseRanges(texts []string) (networks, error) {
	if len(texts) == 0 {
		return nil, errors.New("headgate: keyfuncs: no network: name at least one, such as 192.0.2.0/24")
	}
	return parsePrefixes("network", texts, to4, "name fewer, or remove the check")
}

// parsePrefixes parses networks and single addresses and reports all faults. Errors call
// them what; canonical returns the form of a network in which it is compared; all says
// what is wrong with the network of all addresses.
func parsePrefixes(what string, texts []string, canonical func(netip.Prefix) netip.Prefix, all string) (networks, error) {
	var (
		ns   networks
		errs []error
	)
	for _, text := range texts {
		n, err := parsePrefix(text)
		n = canonical(n)
		if err == nil && n.Bits() == 0 {
			err = errors.New("it contains every address: " + all)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("headgate: keyfuncs: %s %q: %w", what, text, err))
		}
		ns = append(ns, n)
	}
	return ns, errors.Join(errs...)
}

func parsePrefix(text string) (netip.Prefix, error) {
	n, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return n, errors.New("neither a network, such as 192.0.2.0/24, nor an address")
		}
		n = netip.PrefixFrom(addr, addr.BitLen())
	}
	if n != n.Masked() {
		// Using the whole network might include more than was meant.
		return n, fmt.Errorf("an address with the length of a network, which would be %v", n.Masked())
	}
	return n, nil
}

// to4 returns a network within an IPv6 range that stands for all of IPv4 as an IPv4
// network, which is how keys write it.
func to4(n netip.Prefix) netip.Prefix {
	if n.Bits() >= 96 && nat64.Contains(n.Addr()) {
		b := n.Addr().As16()
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[12:])), n.Bits()-96)
	}
	return unmap(n)
}

// unmap returns a network of IPv4-mapped IPv6 addresses as an IPv4 network.
func unmap(n netip.Prefix) netip.Prefix {
	if n.Bits() >= 96 && n.Addr().Is4In6() {
		return netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
	}
	return n
}
