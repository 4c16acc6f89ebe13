// Package rediskey makes the names of values in Redis:
//
//	headgate:{=user-42}:api:...
//
// the prefix, the key in braces, and what the value is. The braces are a hash tag: all values of one key are in one
// hash slot of a Cluster. In the braces is the key itself after "=", with a tilde and two hex digits for bytes that
// would be ambiguous; of a long key the SHA-256 after "#"; and with a secret the HMAC-SHA-256 after "*".
package rediskey

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"slices"
	"sync"
)

const (
	// MaxPlain is the longest key, in bytes, that is kept as it is: longer ones are hashed.
	MaxPlain = 128

	// MinSecret is the least length of a secret in bytes: that of the hash.
	MinSecret = sha256.Size

	// HashSlots is the number of hash slots of a Cluster.
	HashSlots = 16384
)

// Names makes names that begin with a prefix, which has no braces. It is safe for concurrent use.
type Names struct {
	prefix string
	mac    mac // nil without a secret
}

// New returns Names. If there is a secret, no key can be read in them.
func New(prefix string, secret []byte) *Names { return &Names{prefix, newMAC(secret)} }

// A mac returns the HMAC-SHA-256 of a key. The secret is inside the function, so that printing Names does not show it.
type mac func(key string) [sha256.Size]byte

// newMAC returns nil if there is no secret. The hashes are pooled, as setting one up takes longer than a key.
func newMAC(secret []byte) mac {
	if len(secret) == 0 {
		return nil
	}
	secret = slices.Clone(secret)
	pool := sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
	return func(key string) (sum [sha256.Size]byte) {
		h := pool.Get().(hash.Hash)
		defer pool.Put(h)
		h.Reset()
		h.Write([]byte(key))
		h.Sum(sum[:0])
		return sum
	}
}

// AppendTag appends the prefix and the part of the key, up to and including the closing brace.
func (n *Names) AppendTag(b []byte, key string) []byte {
	b = append(append(b, n.prefix...), ":{"...)
	switch {
	case n.mac != nil:
		sum := n.mac(key)
		b = base64.RawURLEncoding.AppendEncode(append(b, '*'), sum[:])
	case len(key) > MaxPlain:
		sum := sha256.Sum256([]byte(key))
		b = base64.RawURLEncoding.AppendEncode(append(b, '#'), sum[:])
	default:
		b = AppendEscaped(append(b, '='), key, "{}")
	}
	return append(b, '}')
}

// Common returns the name of a value of a part of the product, such as "slots", that is of no key. All of a part are in
// one hash slot. What is in the braces begins otherwise than that of a key.
func (n *Names) Common(part, value string) string { return n.prefix + ":{" + part + "}:" + value }

// AppendEscaped appends a text with ~XX for the two bytes of special and the tilde itself.
func AppendEscaped(b []byte, text, special string) []byte {
	const hex = "0123456789abcdef"
	for i := range len(text) {
		c := text[i]
		if c == '~' || c == special[0] || c == special[1] {
			b = append(b, '~', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// HashSlot returns the hash slot of a name, or of its beginning up to the closing brace: CRC-16/XMODEM of what is in
// the braces, as in the Redis Cluster specification.
func HashSlot(name []byte) int {
	tag := name[bytes.IndexByte(name, '{')+1:]
	tag = tag[:bytes.IndexByte(tag, '}')]
	var crc uint16
	for _, b := range tag {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % HashSlots
}
