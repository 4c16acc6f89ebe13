package limits

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"
)

// hashSize is the number of bytes of a hash.
const hashSize = sha256.Size

// maxPooled is the length of the longest key whose memory is kept.
const maxPooled = 4096

// Hash returns the hash of a key, for an override in a document that keys must not be in. It
// is the HMAC-SHA-256 of the key, in hexadecimal digits, under a secret that is derived from
// the given one, so that it is not the hash that a store has for the key. The secret is
// that of [Config].
func Hash(secret []byte, key string) string {
	h := newHasher(secret)
	sum := h.sum(key)
	return hex.EncodeToString(sum[:])
}

// SecretID returns 32 hexadecimal digits that tell secrets apart and do not tell them, or nothing
// for no secret. They are of an HMAC of a constant, under a secret that is derived for it, so that
// they are no hash of a key.
func SecretID(secret []byte) string {
	if len(secret) == 0 {
		return ""
	}
	id := keyed(keyed(secret, "headgate: which secret"), "id")
	return hex.EncodeToString(id[:16])
}

func keyed(secret []byte, text string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// A hasher hashes keys without allocating.
type hasher struct {
	pool sync.Pool
}

// A hashing is in use by one goroutine.
type hashing struct {
	hash.Hash

	text []byte // the key, and then its hash
}

func newHasher(secret []byte) *hasher {
	derived := keyed(secret, "headgate: overrides of limits")
	return &hasher{sync.Pool{New: func() any { return &hashing{Hash: hmac.New(sha256.New, derived)} }}}
}

func (h *hasher) sum(key string) (sum [hashSize]byte) {
	one := h.pool.Get().(*hashing)
	one.Reset()
	one.text = append(one.text[:0], key...)
	one.Write(one.text)
	one.text = one.Sum(one.text[:0])
	copy(sum[:], one.text)
	if cap(one.text) <= maxPooled {
		h.pool.Put(one)
	}
	return sum
}
