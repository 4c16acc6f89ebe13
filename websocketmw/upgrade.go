package websocketmw

import (
	"encoding/base64"
	"net/http"
	"strings"
)

// A kind of request.
type kind uint8

const (
	other     kind = iota // not an upgrade
	malformed             // an upgrade that is invalid, but that a library may accept
	upgrade               // RFC 6455, section 4.1
	overHTTP2             // RFC 8441, which no library speaks
)

// classify is as lenient as the most lenient library, so that no upgrade passes uncounted: x/net accepts
// substrings, and gorilla any of several versions.
func classify(r *http.Request) kind {
	if r.Method == http.MethodConnect {
		if strings.EqualFold(r.Header.Get(":protocol"), "websocket") { // so net/http shows an extended CONNECT
			return overHTTP2
		}
		return other
	}
	asks := mentions(r.Header["Upgrade"], "websocket") && mentions(r.Header["Connection"], "upgrade")
	if r.Method != http.MethodGet || !asks || !mentions(r.Header["Sec-Websocket-Version"], "13") {
		return other
	}
	// Without a key, every library refuses. With a bad one, some do.
	keys := r.Header["Sec-Websocket-Key"]
	switch {
	case len(keys) == 0 || keys[0] == "":
		return other
	case len(keys) == 1 && isKey(strings.Trim(keys[0], " \t")):
		return upgrade
	default:
		return malformed
	}
}

// mentions reports whether a line contains word, in any case. word is in lower case.
func mentions(lines []string, word string) bool {
	for _, line := range lines {
		if strings.Contains(strings.ToLower(line), word) {
			return true
		}
	}
	return false
}

// isKey reports whether a text is the base64 of 16 bytes (RFC 6455, section 4.2.1).
func isKey(text string) bool {
	const size, encoded = 16, 24
	if len(text) != encoded {
		return false
	}
	var b [encoded / 4 * 3]byte
	n, err := base64.StdEncoding.Decode(b[:], []byte(text))
	return err == nil && n == size
}
