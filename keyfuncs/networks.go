package keyfuncs

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
)

// In returns a function that reports whether the client's address is in one of the
// networks, such as "192.0.2.0/24", or equal to one of them, such as "192.0.2.1". It is
// for exemptions, such as nethttp's Config.Skip:
//
//	address, err := keyfuncs.Prefix{V6: 128}.XForwardedFor("10.0.0.0/8")
//	...
//	monitors, err := keyfuncs.In(address, "192.0.2.0/24", "2001:db8:1::/48")
//	...
//	nethttp.Config{Skip: monitors, ...}
//
// The address is the key of the given function. Use the one that is named after your
// deployment, neither in [All] nor in [First]. Its [Prefix] must keep at least as many
// bits of an address as the networks have; by default it keeps 64 bits of IPv6.
//
// The result is false if the function returns an error, a key that is not an address, or
// a prefix that is only partly in the networks. So use In to grant something; to refuse
// the other clients, such as with nethttp's Config.Deny, use it with [Unless]. To refuse
// clients in the networks, use [NotIn] with Unless.
//
// Every client that can connect from the networks, or is mistaken for one that does, is
// exempt. Do not list the networks of your proxies: a request for which they name no
// client is attributed to the proxy, and so is every request if you use [RemoteAddr]
// behind a proxy.
//
// All faults of the networks are reported at once. At least one network is required, and
// the network of all addresses is a fault. In panics if address is nil.
func In(address Func, networks ...string) (func(*http.Request) bool, error) {
	return membership("In", address, networks, inside)
}

// NotIn returns a function that reports whether the client's address is in none of the
// networks. With [Unless], it refuses clients in the networks.
//
// The result is false in the same cases of doubt as with [In]. It is therefore not the
// negation of In. The arguments, faults and warnings are those of In too.
func NotIn(address Func, networks ...string) (func(*http.Request) bool, error) {
	return membership("NotIn", address, networks, outside)
}

// Unless returns the negation of a function. It is for nethttp's Config.Deny, which
// should refuse if in doubt, because [In] and [NotIn] return false then:
//
//	office, err := keyfuncs.In(address, "192.0.2.0/24")
//	...
//	nethttp.Config{Deny: keyfuncs.Unless(office), ...} // only the office
//
//	welcome, err := keyfuncs.NotIn(address, "198.51.100.0/24")
//	...
//	nethttp.Config{Deny: keyfuncs.Unless(welcome), ...} // all but that network
//
// In or NotIn without Unless would admit clients whose address is in doubt. Unless panics
// if permitted is nil.
func Unless(permitted func(*http.Request) bool) func(*http.Request) bool {
	if permitted == nil {
		panic("headgate: keyfuncs: Unless: the function is nil")
	}
	return func(r *http.Request) bool { return !permitted(r) }
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

// A place is the position of an address relative to a set of networks.
type place int

const (
	unknown place = iota
	inside
	outside
)

// placeOf returns the place of a key, which is an address or a network.
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
