package keyfuncs

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// In returns a function that reports whether the client's address is in one of the networks. A
// network is a prefix such as "192.0.2.0/24", or a single address such as "192.0.2.1". In is for
// exemptions, such as nethttp's Config.Skip:
//
//	address := keyfuncs.XForwardedFor("10.0.0.0/8")
//	monitors := keyfuncs.In(address, "192.0.2.0/24", "2001:db8:1::/48")
//	...
//	nethttp.Config{Skip: monitors, ...} // they have no limits
//
// The address is one of [RemoteAddr], [XForwardedFor], [Forwarded], [ProxyHeader] and [BehindProxies],
// the one that is named after your deployment. It may be a function of yours that returns an address.
// If a network has more than 64 bits of IPv6, In asks for the whole address, as [Network] does, which
// costs a copy of the request.
//
// The result is false if the function returns an error, a key that is not an address, or a network that is
// only partly in the networks. So use In to grant something. What refuses clients because they are in a
// network lets in whom it does not know.
//
// Every client that can connect from the networks, or is mistaken for one that does, is exempt. Do
// not list the networks of your proxies. A request for which they name no client is attributed to
// the proxy. So is every request if you use [RemoteAddr] behind a proxy. No client is in [Unix].
//
// At least one network is required. The network of all addresses is a fault, and so are networks of
// 6to4 and Teredo addresses, whose keys are IPv4 addresses: name those. In panics with all faults of the
// networks, and if address is nil. For networks that are data, see [CheckNetworks].
func In(address Func, networks ...string) func(*http.Request) bool {
	require("In", address)
	ranges, err := parsePrefixes("network", networks, inKeys, "name fewer, or remove the check")
	check(err)
	long := slices.ContainsFunc(ranges, func(n netip.Prefix) bool { return n.Addr().Is6() && n.Bits() > 64 })
	return func(r *http.Request) bool {
		if long {
			r = askWhole(r)
		}
		key, err := address(r)
		if err != nil {
			return false
		}
		client, ok := networkOf(key)
		return ok && slices.ContainsFunc(ranges, func(n netip.Prefix) bool { return within(client, n) })
	}
}

// networkOf returns the address or the network that a key of this package names, as keys have it.
func networkOf(key string) (client netip.Prefix, ok bool) {
	if client, ok = named(key); !ok {
		return netip.Prefix{}, false
	}
	client, err := inKeys(client)
	return client, err == nil
}

// named returns the address or the network that a key names.
func named(key string) (client netip.Prefix, ok bool) {
	if client, err := netip.ParsePrefix(key); err == nil {
		return client, true
	}
	addr, ok := parseNode(key)
	if !ok {
		return netip.Prefix{}, false
	}
	addr = fold(addr)
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// CheckNetworks returns the faults of networks that are data, such as a configuration: what [XForwardedFor],
// [Forwarded], [ProxyHeader] and [In] panic for, one line each. If it returns nil, none of them panics.
// It does not resolve names and does not depend on the machine.
func CheckNetworks(networks ...string) error {
	_, err := parsePrefixes("network", networks, func(n netip.Prefix) (netip.Prefix, error) {
		if n, err := inHeaders(n); err != nil || n.Bits() == 0 {
			return n, err
		}
		return inKeys(n)
	}, "each client would be in it")
	return err
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

// Unix stands, among trusted networks, for connections over a unix socket: whoever may write to the
// socket is a proxy then. It is accepted among other networks, too, and is no client there.
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
		local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
		if ok && local != nil {
			return netip.Addr{}, true, nil
		}
	}
	addr, err = peerOf(r)
	return addr, err == nil && p.contain(addr), err
}

// parseTrusted parses the networks that proxies connect from.
func parseTrusted(texts []string) (proxies, error) {
	parsed, err := parsePrefixes("trusted network", texts, inHeaders, "each client could choose its address: "+
		"name the proxies' networks, or use BehindProxies")
	return proxies{parsed, slices.Contains(texts, Unix)}, err
}

// parsePrefixes parses networks and single addresses, leaves out Unix, and reports all faults. Errors call
// them what; canonical returns the form of a network in which it is compared; all says
// what is wrong with the network of all addresses.
func parsePrefixes(
	what string, texts []string, canonical func(netip.Prefix) (netip.Prefix, error), all string,
) (networks, error) {
	var (
		ns   networks
		errs []error
	)
	if len(texts) == 0 {
		errs = append(errs, fmt.Errorf("headgate: keyfuncs: no %s: name at least one, such as 192.0.2.0/24", what))
	}
	for _, text := range texts {
		if text == Unix {
			continue
		}
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
