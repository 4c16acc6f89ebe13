package limits

import (
	"crypto/hkdf"
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

// Hash returns the hash of a key, for an override in a document that keys must not be in. It is the
// HMAC-SHA-256 of the key, in hexadecimal digits. Its secret is derived by HKDF (RFC 5869) from the
// given one, which is the Secret of [Config]. So the hash differs from the hash that a store has
// for the key, and does not reveal it.
func Hash(secret []byte, key string) string {
	h := newHasher(secret)
	sum := h.sum(key)
	return hex.EncodeToString(sum[:])
}

// SecretID returns 32 hexadecimal digits that tell secrets apart and do not tell them, or nothing
// for no secret. They are derived from the secret by HKDF, so that they are no hash of a key.
func SecretID(secret []byte) string {
	if len(secret) == 0 {
		return ""
	}
	return hex.EncodeToString(derive(secret, "which secret", 16))
}

// derive returns another secret, for a purpose. It is no HMAC of a text under the given secret:
// of these, a store has as many as clients have keys.
func derive(secret []byte, purpose string, size int) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, "headgate limits: "+purpose, size)
	if err != nil {
		panic(err) // only for a size of more than 255 hashes
	}
	return key
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
	derived := derive(secret, "overrides", hashSize)
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
