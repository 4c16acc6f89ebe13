package keyfuncs

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A SignedCookie distinguishes clients of services without sessions. It is a cookie with a random
// identifier and the time when it was issued, signed with a secret of the server. The server stores
// nothing about it. Make one with [NewSignedCookie]; the zero SignedCookie is not usable. It is
// safe for concurrent use.
//
// A hostile client cannot make or change a cookie, but it can omit its cookie, request a new one,
// collect many, and share them. So a cookie alone is no limit. With the first of cookie.Key and the
// address, and 60 requests a minute, 60 requests without a cookie bring 60 cookies. These bring another 3,600
// requests. Charge a cookie when it is some time old, and limit the address too:
//
//	browser := keyfuncs.First(keyfuncs.Tag("browser", cookie.OlderThan(time.Minute)), keyfuncs.Tag("ip", address))
//	nethttp.Config{Rates: []nethttp.Rate{
//		{Limiter: perBrowser, Key: browser},
//		{Limiter: perAddress, Key: address},
//	}}
//
// A hostile client that collects cookies then gets the second limit. The package documentation
// shows how the others of its address keep their share.
//
// It identifies a browser, not a person, and proves nothing else: do not use it to
// authenticate users.
type SignedCookie struct {
	name      string
	maxAge    time.Duration
	macs      []mac // the first signs, all verify
	errAbsent error
}

// A mac returns the signature of a message. It is a function so that printing it does not
// show the secret.
type mac func(message []byte) []byte

// The value of the cookie is, in base64 for URLs without padding,
//
//	1 byte    version
//	8 bytes   milliseconds since 1970 when it was issued, big endian
//	16 bytes  identifier
//	32 bytes  HMAC-SHA-256 of "headgate cookie\x00", the name, "\x00" and all the above
//
// These are 76 characters without unused bits, so that a cookie has only one spelling.
const (
	signedVersion = 1
	issuedAt      = 1
	idAt          = issuedAt + 8
	macAt         = idAt + 16
	signedSize    = macAt + sha256.Size
	signedLength  = signedSize / 3 * 4
)

const (
	// minSecret is the size of the hash: a shorter secret would be easier to guess than
	// a signature.
	minSecret = sha256.Size

	// maxCookieAge is the longest time for which browsers keep a cookie.
	maxCookieAge = 400 * 24 * time.Hour

	// maxSkew is how far a server's clock may be ahead of another's.
	maxSkew = time.Minute

	// maxSigned is how many cookies of the name are verified.
	maxSigned = 4
)

// NewSignedCookie returns a SignedCookie of the given name that is valid for maxAge, from
// 1 second to 400 days. A limit on the cookie needs another on the address: see
// [SignedCookie]. Prefer a name that begins with "__Host-": browsers do not let
// other hosts set it.
//
// Cookies are not renewed, so that collected ones expire: after maxAge an established
// client is a newcomer again.
//
// The first secret signs, and all verify; at least one is required. A secret must have 32
// random bytes or more:
//
//	openssl rand -base64 32
//
// To replace a secret, take three steps, and complete each on all servers before the next. Add the
// new secret at the end, move it to the front, and remove the old one maxAge later. If the new
// secret is in front at once, servers that do not have it yet treat its cookies as forged and
// replace them.
//
// All faults of the arguments are reported at once. No error contains a secret.
func NewSignedCookie(name string, maxAge time.Duration, secrets ...[]byte) (*SignedCookie, error) {
	var faults []error
	if !isToken(name) {
		faults = append(faults, fmt.Errorf("headgate: keyfuncs: not the name of a cookie: %q", name))
	}
	if maxAge < time.Second || maxAge > maxCookieAge {
		const fault = "headgate: keyfuncs: a cookie that is valid for %v: not for 1s to %v"
		faults = append(faults, fmt.Errorf(fault, maxAge, maxCookieAge))
	}
	if len(secrets) == 0 {
		faults = append(faults, errors.New("headgate: keyfuncs: no secret to sign cookies with"))
	}
	c := &SignedCookie{name: name, maxAge: maxAge, errAbsent: absent("signed cookie " + name)}
	for i, secret := range secrets {
		if len(secret) < minSecret {
			const fault = "headgate: keyfuncs: secret %d to sign cookies with: of %d bytes, fewer than %d"
			faults = append(faults, fmt.Errorf(fault, i+1, len(secret), minSecret))
		}
		c.macs = append(c.macs, newMAC(secret, "headgate cookie\x00"+name+"\x00"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return c, nil
}

// newMAC returns a function that signs messages. The context is part of what is signed,
// so that signatures from other uses of the secret are invalid.
func newMAC(secret []byte, context string) mac {
	secret = slices.Clone(secret)
	pool := sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
	return func(message []byte) []byte {
		sum := pool.Get().(hash.Hash)
		defer pool.Put(sum)
		sum.Reset()
		sum.Write([]byte(context))
		sum.Write(message)
		return sum.Sum(nil)
	}
}

// Key is a [Func] that charges the cookie's identifier:
//
//	nethttp.Rate{Key: cookie.Key, ...}
//
// The identifier is not a secret, because it is useless without the signature. A cookie that is
// missing, forged or too old is [ErrAbsent], and there is no other error. So in [First], clients
// with a forged cookie are charged like clients without one. Of several cookies of the name, the
// first valid one among the first four counts. So another host's cookie does not hide the right
// one.
func (c *SignedCookie) Key(r *http.Request) (string, error) {
	return c.key(r, -maxSkew)
}

// OlderThan returns a [Func] that charges like [SignedCookie.Key], but only cookies that
// are at least of the given age. A newer cookie is [ErrAbsent], so that a client that
// requests a new cookie whenever it reaches its limit is treated as one without.
//
// OlderThan panics if age is negative, or not less than the cookie's maxAge.
func (c *SignedCookie) OlderThan(age time.Duration) Func {
	if age < 0 || age >= c.maxAge {
		panic("headgate: keyfuncs: OlderThan: an age of " + age.String() +
			": not from 0 to less than " + c.maxAge.String())
	}
	return func(r *http.Request) (string, error) { return c.key(r, age) }
}

func (c *SignedCookie) key(r *http.Request, age time.Duration) (string, error) {
	for i, cookie := range r.CookiesNamed(c.name) {
		if i == maxSigned {
			break
		}
		if id, issued, ok := c.verify(cookie.Value); ok {
			old := time.Since(issued)
			if old >= age && old < c.maxAge {
				return id, nil
			}
		}
	}
	return "", c.errAbsent
}

// verify decodes the value of a cookie, if one of the secrets signed it.
func (c *SignedCookie) verify(value string) (id string, issued time.Time, ok bool) {
	if len(value) != signedLength {
		return "", time.Time{}, false
	}
	var room [signedSize]byte
	n, err := base64.RawURLEncoding.Decode(room[:], []byte(value))
	if err != nil || n != signedSize || room[0] != signedVersion {
		return "", time.Time{}, false
	}
	for _, mac := range c.macs {
		if hmac.Equal(mac(room[:macAt]), room[macAt:]) {
			ms := int64(binary.BigEndian.Uint64(room[issuedAt:idAt]))
			return base64.RawURLEncoding.EncodeToString(room[idAt:macAt]), time.UnixMilli(ms), true
		}
	}
	return "", time.Time{}, false
}

// New returns a cookie with a new identifier and the given time of issue. That is usually the
// present. With an earlier time, the cookie counts as old at once. It is for a client that has
// identified itself in another way, such as by signing in. A cookie with a time more than a minute
// in the future is not accepted.
//
// The cookie is for all paths of this host, for HTTPS, and not for scripts (Secure,
// HttpOnly, SameSite=Lax). All but its name and value may be changed before
// [http.SetCookie]. Browsers accept a Secure cookie over plain HTTP only from localhost.
func (c *SignedCookie) New(issued time.Time) *http.Cookie {
	var room [signedSize]byte
	room[0] = signedVersion
	binary.BigEndian.PutUint64(room[issuedAt:], uint64(issued.UnixMilli()))
	rand.Read(room[idAt:macAt])
	copy(room[macAt:], c.macs[0](room[:macAt]))
	seconds := -1 // the browser deletes it
	left := time.Until(issued.Add(c.maxAge))
	if left > 0 {
		seconds = int((left + time.Second - 1) / time.Second)
	}
	return &http.Cookie{
		Name:     c.name,
		Value:    base64.RawURLEncoding.EncodeToString(room[:]),
		Path:     "/",
		MaxAge:   seconds,
		Secure:   true,
		HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	}
}

// Handler returns a handler that sets a new cookie in the response to each request without a valid
// one. It also sets Cache-Control, so that caches do not send the cookie to other clients. Put it
// behind a guard that limits the address, so that refused clients get none.
//
// A browser that starts with several requests at once gets several cookies, and keeps the
// last; the limit of new clients should allow for that.
//
// Handler panics if next is nil.
func (c *SignedCookie) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("headgate: keyfuncs: Handler of cookie " + strconv.Quote(c.name) + ": the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := c.Key(r); err != nil {
			http.SetCookie(w, c.New(time.Now()))
			w.Header().Add("Cache-Control", `no-cache="Set-Cookie"`)
		}
		next.ServeHTTP(w, r)
	})
}
