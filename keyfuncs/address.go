package keyfuncs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
)

// RemoteAddr charges the remote address of the connection.
//
// Use it when clients connect to this server directly. Behind a proxy it charges
// all clients as one, the proxy.
//
// The address is [http.Request.RemoteAddr]. If that is not an IP address, such as on a
// unix socket, the result is an error that is not [ErrAbsent]. A middleware that copies
// headers into RemoteAddr makes this function, and the ones below, trust them: run the
// limit before it, or remove it.
func RemoteAddr() Func {
	return func(r *http.Request) (string, error) {
		// An address as nearly all servers write it is taken as it is. All else is parsed below.
		host, brackets, ok := plainHost(r.RemoteAddr)
		switch {
		case !ok:
		case brackets && !isWhole(r):
			if key, ok := remembered.key(host); ok {
				return key, nil
			}
		case !brackets && isIPv4(host):
			return host, nil
		}
		peer, err := peerOf(r)
		if err != nil {
			return "", err
		}
		return keyOf(r, peer), nil
	}
}

// ProxyHeader charges the address that a proxy writes to a header of its own.
//
// Use it when the proxy overwrites the header in every request, whatever the client
// sent:
//
//	X-Real-IP                  nginx: proxy_set_header X-Real-IP $remote_addr;
//	CF-Connecting-IP           Cloudflare; trusted: https://www.cloudflare.com/ips
//	CloudFront-Viewer-Address  CloudFront, whose addresses have a port
//	Fly-Client-IP              Fly.io, unless another proxy stands in front of it
//
// True-Client-IP, X-Azure-ClientIP and Fastly-Client-IP look similar, but by default those
// products forward what the client wrote.
//
// The trusted networks are the ones that the proxy connects from, such as "10.0.0.0/8", or single
// addresses, or [Unix]. To find them, log [http.Request.RemoteAddr]. At least one is required, and
// the network of all addresses is a fault. The names X-Forwarded-For and Forwarded are faults,
// because these headers can list several addresses: use [XForwardedFor] and [Forwarded].
//
// The header is used only if the connection comes from one of the networks. Otherwise the address
// of the connection is charged, as by [RemoteAddr]. A proxy's request in which the header is
// missing, repeated, or not a single address is an error. Some proxies remove any header that the
// client names in "Connection: X-Real-IP", even their own. To charge the proxy then would give such
// clients another limit. The health checks of balancers have no header either: see the package
// documentation.
//
// ProxyHeader panics with all faults of the arguments. For networks that are data, see [CheckNetworks].
func ProxyHeader(name string, trusted ...string) Func {
	name = http.CanonicalHeaderKey(name)
	var errName error
	switch {
	case !isToken(name):
		errName = fmt.Errorf("headgate: keyfuncs: not the name of a header: %q", name)
	case name == "X-Forwarded-For":
		errName = errors.New("headgate: keyfuncs: X-Forwarded-For lists addresses: use XForwardedFor")
	case name == "Forwarded":
		errName = errors.New("headgate: keyfuncs: Forwarded lists addresses: use Forwarded")
	}
	proxies, errTrusted := parseTrusted(trusted)
	check(errName, errTrusted)
	parse := parseNode
	if name == viewerAddress {
		parse = parseViewer
	}
	var (
		errMissing  = errNoClient(name, missing)
		errRepeated = errNoClient(name, "more than one line")
		errAddress  = errNoClient(name, "not an address")
	)
	return func(r *http.Request) (string, error) {
		addr, trusted, err := proxies.peer(r)
		if err != nil {
			return "", err
		}
		if !trusted {
			return keyOf(r, addr), nil
		}
		if err := unread(r); err != nil {
			return "", err
		}
		lines := r.Header.Values(name)
		switch {
		case len(lines) == 0:
			return "", errMissing
		case len(lines) > 1:
			return "", errRepeated
		}
		client, ok := parse(trimSpace(lines[0]))
		if !ok {
			return "", errAddress
		}
		return keyOf(r, client), nil
	}
}

// XForwardedFor charges the address that connected to the outermost trusted proxy,
// according to the X-Forwarded-For header.
//
// Use it behind one or more proxies whose networks you know, each of which appends the
// address that connected to it to the header:
//
//	nginx                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
//	Apache, HAProxy      ProxyPass; option forwardfor
//	AWS load balancer    the default mode, "append"; trusted: the subnets of the balancer
//	Google load balancer it appends two, the client and itself: trust its own public
//	                     address too
//
// The trusted networks are the networks of the proxies, such as "10.0.0.0/8", or single addresses.
// At least one is required, and the network of all addresses is a fault. Do not trust a network
// that contains clients, because they could choose their addresses. [Unix] is a proxy that connects
// over a unix socket.
//
// The function starts at the address of the connection. As long as the address is trusted, it
// continues with the header's next element from the right. That is the address that the proxy
// forwarded for. The first address that is not trusted is the client, and is charged. The client
// wrote the elements to the left of it, and they are never read. The current address is also
// charged if there are no more elements, and after 64 elements. So it is if the next element is not
// an address: it is empty, "unknown", or longer than 1 KiB. Several lines are one list, in their
// order.
//
// So the address of a client is charged whatever it writes. If an element that a proxy
// should have written is not an address, the proxy that forwarded it is charged.
//
// A request from a trusted address without the header is an error, for the reason that
// [ProxyHeader] gives: every proxy of yours adds an element. Health checks have none, and
// neither have clients in a trusted network that connect directly: see the package
// documentation.
//
// One missing element among several cannot be detected. An inner proxy may remove the headers that
// "Connection" names before it appends its element. Then the outer proxies must not forward that
// field as the client sent it. The proxy nginx does not forward it.
//
// XForwardedFor panics with all faults of the networks. For those that are data, see [CheckNetworks].
func XForwardedFor(trusted ...string) Func {
	return walk(trusted, "X-Forwarded-For", lastComma, parseNode)
}

// Forwarded charges the address that connected to the outermost trusted proxy, according
// to the Forwarded header of RFC 7239.
//
// Use it behind one or more proxies whose networks you know. Each must append an element with a
// "for" parameter to the header, as HAProxy 2.8 does with "option forwarded".
//
// The trusted networks and the algorithm are as for [XForwardedFor]. An element is not an address
// if it has no "for", or is not well-formed. Nor is "for=unknown", or an obfuscated identifier such
// as "for=_a1b2". An address with a port or brackets is accepted without the quotes that the RFC
// requires.
//
// Forwarded panics with all faults of the networks. For those that are data, see [CheckNetworks].
func Forwarded(trusted ...string) Func {
	return walk(trusted, "Forwarded", lastCommaUnquoted, forwardedFor)
}

// BehindProxies charges the n-th element from the right of X-Forwarded-For.
//
// Use it when the proxies' addresses change, so that they cannot be listed. It is correct only if every request passes
// through all proxies: a client that can bypass one chooses its own address. If the networks are known, prefer
// [XForwardedFor].
//
// n is the number of elements that your proxies append, from 1 to 64; BehindProxies panics if it is another.
// With one proxy that appends one element, n is 1. With a CDN in front of a load balancer, n is 2.
// The CDN appends the address of the client, and then the balancer appends the address of the CDN.
// Google's external load balancer appends two elements, so n is 2. To find n, send
//
//	curl -H 'X-Forwarded-For: 192.0.2.1' https://...
//
// and log the header as it arrives here: n is the number of elements to the right of 192.0.2.1. If
// n is too small, a proxy is charged, which you will soon notice. If n is too large, clients that
// write an element are trusted, and all others get an error. Find n again whenever a proxy is added
// or removed.
//
// Fewer than n elements, and an n-th that is not an address, are errors, whatever the
// address of the connection. So are health checks, which come without the header: see the
// package documentation. Several lines are one list, in their order.
func BehindProxies(n int) Func {
	if n < 1 || n > maxHops {
		panic(fmt.Sprintf("headgate: keyfuncs: number of proxies %d: not in 1 to %d", n, maxHops))
	}
	var (
		errFew     = errNoClient("X-Forwarded-For", "fewer elements than proxies; "+exempt)
		errAddress = errNoClient("X-Forwarded-For", "not an address")
	)
	return func(r *http.Request) (string, error) {
		if err := unread(r); err != nil {
			return "", err
		}
		hops := 0
		elements := list{r.Header.Values("X-Forwarded-For"), lastComma}
		for element := range elements.fromRight {
			hops++
			if hops < n {
				continue
			}
			client, ok := parseNode(element)
			if !ok {
				return "", errAddress
			}
			return keyOf(r, client), nil
		}
		return "", errFew
	}
}

// walk returns a Func that follows a header from hop to hop, as XForwardedFor describes.
func walk(trusted []string, header string,
	lastComma func(string) int, parse func(string) (netip.Addr, bool),
) Func {
	proxies, errTrusted := parseTrusted(trusted)
	check(errTrusted)
	errMissing := errNoClient(header, missing)
	errAddress := errNoClient(header, "not an address")
	return func(r *http.Request) (string, error) {
		addr, trusted, err := proxies.peer(r)
		if err != nil {
			return "", err
		}
		if trusted {
			if err := unread(r); err != nil {
				return "", err
			}
			lines := r.Header.Values(header)
			if len(lines) == 0 {
				return "", errMissing
			}
			hops := 0
			elements := list{lines, lastComma}
			for element := range elements.fromRight {
				next, ok := parse(element)
				if !ok {
					break
				}
				addr = next
				hops++
				if hops == maxHops || !proxies.contain(addr) {
					break
				}
			}
		}
		if !addr.IsValid() { // of a unix socket, whose proxy named nobody
			return "", errAddress
		}
		return keyOf(r, addr), nil
	}
}

// Network charges by networks of other lengths than 32 bits of an IPv4 address and 64 bits of an IPv6
// address: the addresses whose first v4 or v6 bits are the same have one key.
//
//	keyfuncs.Network(keyfuncs.XForwardedFor("10.0.0.0/8"), 32, 56)
//
// Many households get a /56, and hosting customers a /48, and can use all its addresses. 56 or 48 bits
// account for that, but may charge neighbors together. Examples of keys are "203.0.113.0/24" and
// "2001:db8:1::/48"; of 32 and 128 bits, an address.
//
// The address is one of [RemoteAddr], [XForwardedFor], [Forwarded], [ProxyHeader] and [BehindProxies],
// which give Network the whole address. It may be a function of yours that returns an address, or a network of no
// fewer bits; any other key is [ErrProgram]. Network costs a copy of the request.
//
// Network panics if address is nil, v4 is not from 1 to 32, or v6 is not from 1 to 128.
func Network(address Func, v4, v6 int) Func {
	require("Network", address)
	isValid := v4 >= 1 && v4 <= 32
	isValid = isValid && v6 >= 1 && v6 <= 128
	if !isValid {
		const fault = "headgate: keyfuncs: Network: %d and %d bits: not 1 to 32 for IPv4 and 1 to 128 for IPv6"
		panic(fmt.Sprintf(fault, v4, v6))
	}
	errAddress := ofKind(ErrProgram, "Network: the key of the function is no address")
	return func(r *http.Request) (string, error) {
		key, err := call(address, askWhole(r))
		if err != nil || isWhole(r) { // who cuts it is the one that asked
			return key, err
		}
		network, ok := named(key)
		if canonical, err := inKeys(network); err == nil {
			network = canonical
		} else if !network.IsSingleIP() { // one address is a client that fold leaves, without a public IPv4 address
			ok = false
		}
		bits := v6
		if network.Addr().Is4() {
			bits = v4
		}
		if !ok || network.Bits() < bits {
			return "", errAddress
		}
		if bits == network.Addr().BitLen() {
			return network.Addr().String(), nil
		}
		network, _ = network.Addr().Prefix(bits) // no error: the bits are in range
		return network.String(), nil
	}
}

// wholeKey is the mark, in the context of a request, for which the functions of addresses return the
// whole address instead of its network. Nothing but Network and In sets it.
type wholeKey struct{}

func askWhole(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), wholeKey{}, true))
}

func isWhole(r *http.Request) bool { return r.Context().Value(wholeKey{}) != nil }

// These are the IPv6 networks in which each IPv4 address has addresses of its own. An
// IPv4-mapped address is written as IPv4 by parseNode.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052, section 2.1
	sixToFour = netip.MustParsePrefix("2002::/16")    // RFC 3056, section 2
	teredo    = netip.MustParsePrefix("2001::/32")    // RFC 4380, section 4
)

// fold returns the IPv4 address to which an IPv6 address belongs, if it is in one of these
// networks. Otherwise a client with one IPv4 address could have 65,536 networks of 64 bits
// by 6to4, and one for each Teredo server, while NAT64 puts all of IPv4 into one.
//
// By 6to4 and Teredo only public addresses have others. Were 2002:a00:1:: charged as
// 10.0.0.1, then whoever gets its packets might be exempted as a client of that network.
func fold(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return addr
	}
	b := addr.As16()
	var inner netip.Addr
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(addr):
		inner = netip.AddrFrom4([4]byte(b[2:]))
	case teredo.Contains(addr):
		inner = netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	}
	if inner.IsGlobalUnicast() && !inner.IsPrivate() {
		return inner
	}
	return addr
}

// keyOf returns the key of an address that parseNode returned.
func keyOf(r *http.Request, addr netip.Addr) string {
	// This is not done in parseNode, because whether a proxy is trusted depends on its
	// real address.
	addr = fold(addr)
	if !addr.Is4() && isWhole(r) {
		return addr.String()
	}
	return shortKey(addr)
}

// shortKey returns the key of an address that fold returned.
func shortKey(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	var room [len("ffff:ffff:ffff:ffff::/64")]byte
	network, _ := addr.Prefix(64)             // no error: it has more bits
	return string(network.AppendTo(room[:0])) // one allocation, where String makes two
}
