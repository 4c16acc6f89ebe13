package keyfuncs

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/internal/carried"
)

// In returns a function that reports whether the client's address is in one of the networks. A
// network is a prefix such as "192.0.2.0/24", or a single address such as "192.0.2.1". In is for
// exemptions, such as nethttp's Config.Skip:
//
//	address, err := keyfuncs.Prefix{V6: 128}.XForwardedFor("10.0.0.0/8")
//	...
//	monitors, err := keyfuncs.In(address, "192.0.2.0/24", "2001:db8:1::/48")
//	...
//	nethttp.Config{Skip: monitors, ...} // they have no limits
//
// The address is the key of the given function. Use the one that is named after your
// deployment, neither in [All] nor in [First]. Its [Prefix] must keep at least as many
// bits of an address as the networks have; by default it keeps 64 bits of IPv6.
//
// The result is false if the function returns an error or a key that is not an address. It is false
// for a prefix that is only partly in the networks, too. So use In to grant something. What refuses
// clients because they are in a network lets in whom it does not know.
//
// Every client that can connect from the networks, or is mistaken for one that does, is exempt. Do
// not list the networks of your proxies. A request for which they name no client is attributed to
// the proxy. So is every request if you use [RemoteAddr] behind a proxy.
//
// All faults of the networks are reported at once. At least one network is required. The
// network of all addresses is a fault, and so are networks of 6to4 and Teredo addresses,
// whose keys are IPv4 addresses: name those. In panics if address is nil.
func In(address Func, networks ...string) (func(*http.Request) bool, error) {
	if address == nil {
		panic("headgate: keyfuncs: In: the function is nil")
	}
	ranges, err := parseRanges(networks)
	if err != nil {
		return nil, err
	}
	test := func(r *http.Request) bool {
		key, err := address(r)
		return err == nil && ranges.have(key)
	}
	if carried.IsUnused(address) {
		return carried.Unused(func(r *http.Request) bool { return test(r) }), nil
	}
	return test, nil
}

// have reports whether a key is an address or a network that is in one of these.
func (ns networks) have(key string) bool {
	client, err := netip.ParsePrefix(key)
	if err != nil {
		addr, ok := parseNode(key)
		if !ok {
			return false
		}
		addr = fold(addr)
		client = netip.PrefixFrom(addr, addr.BitLen())
	}
	client, err = inKeys(client)
	if err != nil {
		return false // not a key of this package
	}
	return slices.ContainsFunc(ns, func(n netip.Prefix) bool { return within(client, n) })
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

// Trusted returns a function that reports whether a request comes from a proxy of these networks.
// Then the fields that the proxy has written can be believed. The networks are given as to
// [XForwardedFor]. Trusted is for fields that no function of this package reads, such as
// X-Forwarded-Host: where the result is false, a client may have written them. It is false for a
// request that may be in a tunnel, which the proxy has not read.
//
// All faults of the networks are reported at once.
func Trusted(networks ...string) (func(*http.Request) bool, error) {
	proxies, err := parseTrusted(networks)
	if err != nil {
		return nil, err
	}
	return carried.Unused(func(r *http.Request) bool {
		_, trusted, err := proxies.peer(r)
		return err == nil && trusted && unread(r) == nil
	}), nil
}

// Unix stands, among trusted networks, for connections over a unix socket: whoever may write to the
// socket is a proxy then.
const Unix = "unix"

// proxies are the networks that proxies connect from, and whether unix sockets are one.
type proxies struct {
	networks

	unix bool
}

// peer returns the address that the connection of r comes from, which is invalid for a unix socket, and
// whether it is a proxy's.
func (p proxies) peer(r *http.Request) (addr netip.Addr, trusted bool, err error) {
	if p.unix {
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); ok && local != nil {
			return netip.Addr{}, true, nil
		}
	}
	addr, err = peerOf(r)
	return addr, err == nil && p.contain(addr), err
}

// parseTrusted parses the networks that proxies connect from.
func parseTrusted(texts []string) (proxies, error) {
	if len(texts) == 0 {
		return proxies{}, errors.New("headgate: keyfuncs: no trusted network: name those of the proxies, or use RemoteAddr")
	}
	isUnix := func(text string) bool { return text == Unix }
	networks := slices.DeleteFunc(slices.Clone(texts), isUnix)
	parsed, err := parsePrefixes("trusted", networks, inHeaders, "each client could choose its address: "+
		"name the proxies' networks, or use BehindProxies")
	return proxies{parsed, slices.ContainsFunc(texts, isUnix)}, err
}

// parseRanges parses the networks that In compares a client's address with.
func parseRanges(texts []string) (networks, error) {
	if len(texts) == 0 {
		return nil, errors.New("headgate: keyfuncs: no network: name at least one, such as 192.0.2.0/24")
	}
	return parsePrefixes("network", texts, inKeys, "name fewer, or remove the check")
}

// parsePrefixes parses networks and single addresses and reports all faults. Errors call
// them what; canonical returns the form of a network in which it is compared; all says
// what is wrong with the network of all addresses.
func parsePrefixes(what string, texts []string, canonical func(netip.Prefix) (netip.Prefix, error), all string) (networks, error) {
	var (
		ns   networks
		errs []error
	)
	for _, text := range texts {
		n, err := parsePrefix(text)
		if err == nil {
			n, err = canonical(n)
		}
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

// inHeaders returns a network as peers and headers have it, once parseNode has read them: an
// IPv4-mapped one as IPv4.
func inHeaders(n netip.Prefix) (netip.Prefix, error) {
	if n.Bits() >= 96 && n.Addr().Is4In6() {
		return netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96), nil
	}
	return n, nil
}

// inKeys returns a network as keys have it, which fold has passed.
func inKeys(n netip.Prefix) (netip.Prefix, error) {
	switch {
	case within(n, nat64):
		return netip.PrefixFrom(fold(n.Addr()), n.Bits()-nat64.Bits()), nil
	case within(n, sixToFour), within(n, teredo):
		return n, errors.New("clients with 6to4 and Teredo addresses are charged as IPv4: name their IPv4 networks")
	}
	return inHeaders(n)
}

// within reports whether all addresses of n are in outer.
func within(n, outer netip.Prefix) bool {
	return n.Bits() >= outer.Bits() && outer.Contains(n.Addr())
}
