package redisstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"slices"
	"sync"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

const (
	// maxPlainKey is the longest key, in bytes, that is kept as it is: longer ones are
	// hashed.
	maxPlainKey = 128

	// minSecret is the least length of a Secret in bytes: that of the hash.
	minSecret = sha256.Size
)

// A namer makes the names of values in Redis:
//
//	headgate:{=user-42}:api:r3
//	headgate:{=user-42}:api/strict:sl5
//
// the prefix, the key in braces, the limiter's name, and r with the number of the layout of
// records: the value has one for each policy. A SlidingLog has a value of its own, with the
// policy's name, and the algorithm with its layout. The braces are a hash tag: all values of one
// key are in one hash slot of a Cluster, whatever the limiter. In the braces is the key itself
// after "=", with a tilde and two hex digits for bytes that would be ambiguous; of a
// long key the SHA-256 after "#"; and with a secret the HMAC-SHA-256 after "*". Names
// escape the characters that separate them.
type namer struct {
	prefix string
	mac    mac // nil without a secret
}

// A mac returns the HMAC-SHA-256 of a key. The secret is inside the function, so that
// printing a Store does not show it.
type mac func(key string) [sha256.Size]byte

// newMAC returns nil if there is no secret. The hashes are pooled, as setting one up
// takes longer than a key.
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

// tag appends the prefix and the key's part, up to and including the closing brace.
func (n *namer) tag(b []byte, key string) []byte {
	b = append(b, n.prefix...)
	b = append(b, ":{"...)
	switch {
	case n.mac != nil:
		sum := n.mac(key)
		b = append(b, '*')
		b = base64.RawURLEncoding.AppendEncode(b, sum[:])
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

// suffix is what follows the tag in the name of the value that has the state of a policy.
func suffix(limiter string, p *store.Policy) string {
	b := escape([]byte(":"), limiter, ":/")
	algorithm := p.Step.Numbers().Algorithm
	if algorithm != step.SlidingLog {
		return string(append(b, ":r3"...))
	}
	b = escape(append(b, '/'), p.Name, ":/")
	return string(append(b, ":"+algorithm.String()...))
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

// values appends the names of the values that a charge is about.
func (b *backend) values(names []string, c *store.Charge) []string {
	var room [maxPlainKey + 64]byte
	tag := b.names.tag(room[:0], c.Key)
	for _, suffix := range b.prepared(c.Limiter).suffixes {
		names = append(names, string(append(tag, suffix...)))
	}
	return names
}
