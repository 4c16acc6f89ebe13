package keyfuncs

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// These bound the work for a request, however much a client writes into its headers.
const (
	maxHops    = 64      // elements of a list
	maxElement = 1 << 10 // bytes of an element
)

var errNoPeer = unusable("the remote address of the connection is not an IP address (a unix socket?)")

// What errors say of requests that may be health checks.
const (
	missing = "missing; " + exempt
	exempt  = "exempt the routes of health checks"
)

// errNoClient returns the error for a request in which a proxy should have named its client,
// and did not. It is not ErrAbsent, or a client that can have a header removed could choose
// the next member of First.
func errNoClient(header, why string) error {
	return unusable("the proxy named no client: header " + header + ": " + why)
}

var (
	errTunnel = unusable("CONNECT through a proxy: " +
		"what follows could be another request, which the proxy does not read")
	errH2C = unusable("HTTP/2 from a proxy that could be an upgraded connection, which the proxy does not read: " +
		"enable Protocols.UnencryptedHTTP2 of http.Server instead of h2c.NewHandler")
)

// unread returns an error for a request that may be, or begin, what a client sends through a
// tunnel: its proxy has not read it, and so has written nothing in it.
//
// A proxy may take a successful answer to CONNECT as the begin of a tunnel, as HAProxy does (RFC 9110,
// section 9.3.6). net/http reads what the client then sends as further requests. Over HTTP/2, CONNECT is
// for one stream, such as a WebSocket (RFC 8441).
func unread(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect && r.ProtoMajor < 2:
		return errTunnel
	case isUpgraded(r):
		return errH2C
	}
	return nil
}

// isUpgraded reports whether a handler, such as h2c.NewHandler, may have turned a connection of
// HTTP/1.1 into one of HTTP/2, for which a client can ask through a proxy (RFC 7540, section
// 3.2). A connection is begun as HTTP/2 if the protocol was chosen in the TLS handshake. Without
// TLS it is if net/http reads HTTP/2 there, as it then ignores such questions.
//
// What is in doubt counts as upgraded: no server, as under FastCGI, and requests of the scheme
// http over TLS, which have no TLS from Go 1.27 on.
func isUpgraded(r *http.Request) bool {
	if r.ProtoMajor != 2 {
		return false
	}
	if r.TLS != nil {
		return r.TLS.NegotiatedProtocol != "h2"
	}
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	return server == nil || server.Protocols == nil || !server.Protocols.UnencryptedHTTP2()
}

// peerOf returns the address that the connection of r comes from.
func peerOf(r *http.Request) (netip.Addr, error) {
	addr, ok := parseNode(r.RemoteAddr)
	if !ok {
		return netip.Addr{}, errNoPeer
	}
	return addr, nil
}

// parseNode parses an address as servers and proxies write it: alone, in brackets, with
// a port, with a zone. The result has no zone and is never an IPv4-mapped IPv6 address.
// The syntax is that of a node in RFC 7239, section 6, which the other sources follow
// too, and an IPv6 address without brackets.
func parseNode(text string) (netip.Addr, bool) {
	host, ok := hostOf(text)
	if !ok {
		return netip.Addr{}, false
	}
	return parseHost(host)
}

// viewerAddress is the name of a header whose IPv6 addresses have a port, and no brackets.
const viewerAddress = "Cloudfront-Viewer-Address"

// parseViewer parses the value of that header: the port, which is always there, is what follows the last colon.
func parseViewer(text string) (netip.Addr, bool) {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 || !isPort(text[colon+1:]) {
		return netip.Addr{}, false
	}
	host := text[:colon]
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	return parseHost(host)
}

// parseHost is parseNode for what hostOf returned.
func parseHost(host string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, false
	}
	return addr.Unmap().WithZone(""), true
}

// hostOf returns a node without its brackets and port.
func hostOf(text string) (host string, ok bool) {
	if strings.HasPrefix(text, "[") {
		end := strings.LastIndexByte(text, ']') // a zone may contain one too
		if end < 0 {
			return "", false
		}
		after := text[end+1:]
		return text[1:end], after == "" || after[0] == ':' && isPort(after[1:])
	}
	i := strings.IndexByte(text, ':')
	if i >= 0 && i == strings.LastIndexByte(text, ':') {
		// An IPv6 address has two colons or more: a single one begins a port.
		return text[:i], isPort(text[i+1:])
	}
	return text, true
}

// plainHost returns what is before the port of a text, as net/http writes RemoteAddr: an IPv6 address
// in brackets. It may reject anything that hostOf accepts.
func plainHost(text string) (host string, brackets, ok bool) {
	colon := len(text) - 1
	for colon > 0 && '0' <= text[colon] && text[colon] <= '9' {
		colon--
	}
	digits := len(text) - 1 - colon
	hasPort := digits >= 1 && digits <= 5
	if !hasPort || colon < 2 || text[colon] != ':' {
		return "", false, false
	}
	if text[0] == '[' && text[colon-1] == ']' {
		return text[1 : colon-1], true, true
	}
	return text[:colon], false, true
}

// isIPv4 reports whether a text is an IPv4 address. To parse it and write it as text again would
// take 30 ns longer, a tenth of the time of a guard.
func isIPv4(text string) bool {
	i := 0
	for octet := 1; ; octet++ {
		a := digit(text, i)
		if a > 9 {
			return false
		}
		i++
		b := digit(text, i)
		if b <= 9 && a != 0 { // no leading zeros
			i++
			c := digit(text, i)
			if c <= 9 {
				if 100*int(a)+10*int(b)+int(c) > 255 {
					return false
				}
				i++
			}
		}
		if octet == 4 {
			return i == len(text)
		}
		if i == len(text) || text[i] != '.' {
			return false
		}
		i++
	}
}

// digit returns the digit at s[i]; more than 9 if there is none.
func digit(text string, i int) byte {
	if i >= len(text) {
		return 10
	}
	return text[i] - '0'
}

// isPort reports whether a text is a node-port (RFC 7239, section 6): up to 5 digits, or an
// obfuscated port such as "_x".
func isPort(text string) bool {
	if strings.HasPrefix(text, "_") {
		return len(text) > 1 && isToken(text)
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return 1 <= len(text) && len(text) <= 5
}

// A list is the value of a header that is a comma-separated list, in any number of lines
// (RFC 9110, section 5.3).
type list struct {
	lines     []string
	lastComma func(string) int // -1 if there is none
}

// fromRight yields the elements from the last to the first, because the nearest proxy
// wrote the last. Empty elements are yielded too: a proxy may write one if it has no
// address, and the element to the left of it is then not the proxy's. An element longer
// than maxElement ends the list.
func (l list) fromRight(yield func(string) bool) {
	for _, line := range slices.Backward(l.lines) {
		for {
			tail := line[max(0, len(line)-maxElement-1):] // an element, and the comma before it
			comma := l.lastComma(tail)
			if comma < 0 && len(tail) > maxElement {
				return
			}
			if !yield(trimSpace(tail[comma+1:])) {
				return
			}
			if comma < 0 {
				break
			}
			line = line[:len(line)-len(tail)+comma]
		}
	}
}

func lastComma(text string) int { return strings.LastIndexByte(text, ',') }
