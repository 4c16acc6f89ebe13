package websocketmw

import (
	"encoding/base64"
	"net/http"
	"strings"
)

// protocol is the name of WebSocket in both versions of HTTP.
const protocol = "websocket"

// A kind is what a request is to the guard.
type kind uint8

const (
	other     kind = iota // not ours
	malformed             // an upgrade that RFC 6455 refuses, and some library may not
	upgrade               // RFC 6455
	connect               // RFC 8441: the handler's body and response are the socket
)

// classify is as lenient as the most lenient library, so that no upgrade passes
// uncounted: substrings do for x/net, gorilla takes any of several versions.
func classify(r *http.Request) kind {
	if r.Method == http.MethodConnect {
		if r.ProtoMajor >= 2 && strings.EqualFold(r.Header.Get(":protocol"), protocol) {
			return connect
		}
		return other
	}
	if r.Method != http.MethodGet || !mentions(r.Header["Upgrade"], protocol) || !mentions(r.Header["Connection"], "upgrade") ||
		!mentions(r.Header["Sec-Websocket-Version"], "13") {
		return other
	}
	switch keys := r.Header["Sec-Websocket-Key"]; {
	case len(keys) == 0 || keys[0] == "":
		return other
	case len(keys) == 1 && isKey(strings.Trim(keys[0], " \t")):
		return upgrade
	default:
		return malformed
	}
}

// mentions reports whether a line contains word, which is in lower case.
func mentions(lines []string, word string) bool {
	for _, line := range lines {
		if strings.Contains(strings.ToLower(line), word) {
			return true
		}
	}
	return false
}

// isKey reports whether s is the base64 of 16 bytes (RFC 6455, section 4.2.1).
func isKey(s string) bool {
	if len(s) != 24 {
		return false
	}
	var room [18]byte
	n, err := base64.StdEncoding.Decode(room[:], []byte(s))
	return err == nil && n == 16
}
