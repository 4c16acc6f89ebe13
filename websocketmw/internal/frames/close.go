// Close frames of a server. It may not write them.

package frames

import (
	"strings"
	"unicode/utf8"
)

// The codes of the guard's Close frames (RFC 6455, section 7.4, and the IANA registry).
const (
	CodeGoingAway = 1001
	CodeProtocol  = 1002
	CodePolicy    = 1008
	CodeInternal  = 1011
	CodeRestart   = 1012
	CodeTryAgain  = 1013
)

// Sendable reports whether a Close frame may have the code.
func Sendable(code int) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}

// MaxReason is the most bytes that the reason in a Close frame can have: the payload of a
// control frame is at most 125 bytes, of which the code takes 2.
const MaxReason = 125 - 2

// Close returns a Close frame of a server, with as much of the reason as fits.
func Close(code int, reason string) []byte {
	reason = strings.ToValidUTF8(reason, "\ufffd") // clients reject anything else
	if len(reason) > MaxReason {
		cut := MaxReason
		for !utf8.RuneStart(reason[cut]) {
			cut--
		}
		reason = reason[:cut]
	}
	b := []byte{finBit | opClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(b, reason...)
}
