package redisstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"github.com/headgate/headgate/core"
)

// maxPlainKey is the longest key that is kept as it is: longer ones are hashed.
const maxPlainKey = 128

// A namer makes the names of cells in Redis:
//
//	headgate:{=user-42}:api/burst:tb1
//
// the prefix, the key in braces, the limiter's and the policy's name, and the
// algorithm with its layout. The braces are a hash tag: all cells of one key are
// in one slot of a cluster, whatever the limiter. The key stands there as it is
// after "=", with a tilde and two digits for the bytes that would be ambiguous;
// long keys as a SHA-256 after "#", and all of them as a HMAC-SHA-256 after "*" if
// there is a secret. Names escape the characters that separate them.
type namer struct {
	prefix string
	secret []byte
}

// tag appends the key's part, up to and with the closing brace.
func (n *namer) tag(b []byte, key string) []byte {
	b = append(b, n.prefix...)
	b = append(b, ":{"...)
	switch {
	case len(n.secret) > 0:
		mac := hmac.New(sha256.New, n.secret)
		mac.Write([]byte(key))
		b = append(b, '*')
		b = base64.RawURLEncoding.AppendEncode(b, mac.Sum(nil))
	case len(key) > maxPlainKey:
		sum := sha256.Sum256([]byte(key))
		b = append(b, '#')
		b = base64.RawURLEncoding.AppendEncode(b, sum[:])
	default:
		b = append(b, '=')
		b = escape(b, key, "{}")
	}
	return append(b, '}')
}

// suffix is what follows the tag in the name of a cell.
func suffix(l *core.Limiter, c *core.Cell) string {
	b := escape([]byte(":"), l.Name(), ":/")
	b = escape(append(b, '/'), c.Name, ":/")
	return string(append(b, ":"+c.Step.Numbers().Algorithm.String()...))
}

// escape appends s with ~XX for the given bytes and the tilde itself.
func escape(b []byte, s, special string) []byte {
	const hex = "0123456789abcdef"
	for i := range len(s) {
		c := s[i]
		if c == '~' || c == special[0] || c == special[1] {
			b = append(b, '~', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}
