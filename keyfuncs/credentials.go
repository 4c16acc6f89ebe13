package keyfuncs

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
)

// maxToken bounds the bearer tokens that are hashed, in bytes. Those of some issuers,
// which list groups, are longer than maxValue.
const maxToken = 16 << 10

// Hashed charges what f charges, under a hash of its key, so that a secret can be read
// neither in a store nor in what is logged of one:
//
//	keyfuncs.Hashed(keyfuncs.Header("X-Api-Key"))
//
// The key is 22 characters: the first 128 bits of the SHA-256 of f's key, in base64 for
// URLs. It is the key to give to [core.Limiter.Reset] and the like. Whoever reads it can
// try guesses against it, so what is easily guessed, such as an address, is not hidden.
//
// The errors are those of f. Hashed panics if f is nil.
//
// [core.Limiter.Reset]: https://pkg.go.dev/github.com/headgate/headgate/core#Limiter.Reset
func Hashed(f Func) Func {
	if f == nil {
		panic("headgate: keyfuncs: Hashed: the function is nil")
	}
	return func(r *http.Request) (string, error) {
		key, err := call(f, r)
		if err != nil {
			return "", err
		}
		return digest(key), nil
	}
}

func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Cookie charges the value of a cookie, which is taken for a secret: the key is the
// value's hash, as by [Hashed].
//
// Beware: the value is what the client wrote. A client that sends another value with
// each request has a new limit each time. Charge a cookie only where requests with an
// unknown value are refused first; otherwise take [Session], which asks who knows the
// session, or a [SignedCookie].
//
// A cookie that is missing, empty, or of bytes that no cookie may have, is [ErrAbsent].
// Several of the name, or one of more than 4 KiB, are [ErrMalformed]: whoever reads them
// next might take another than this.
//
// Cookie panics if name is not a valid name (RFC 6265, section 4.1.1).
func Cookie(name string) Func {
	if !isToken(name) {
		panic("headgate: keyfuncs: Cookie: not the name of a cookie: " + strconv.Quote(name))
	}
	var (
		thing       = "cookie " + name
		errAbsent   = absent(thing)
		errRepeated = malformed(thing, "more than one")
		errTooLong  = malformed(thing, "longer than 4 KiB")
	)
	return func(r *http.Request) (string, error) {
		cookies := r.CookiesNamed(name)
		if len(cookies) > 1 {
			return "", errRepeated
		}
		if len(cookies) == 0 || cookies[0].Value == "" {
			return "", errAbsent
		}
		if len(cookies[0].Value) > maxValue {
			return "", errTooLong
		}
		return digest(cookies[0].Value), nil
	}
}

// Session charges the session that a session library found for the request. The given
// function returns the session's identifier, and whether there is a session that the
// library has verified: in its store, or by a signature. The identifier is taken for a
// secret: the key is its hash, as by [Hashed].
//
// With github.com/alexedwards/scs/v2, behind LoadAndSave, which must run first:
//
//	keyfuncs.Session(func(r *http.Request) (string, bool) {
//		token := sessions.Token(r.Context())
//		return token, token != "" // "": unknown, or made by this request
//	})
//
// With github.com/gorilla/sessions and a store that keeps sessions on the server:
//
//	keyfuncs.Session(func(r *http.Request) (string, bool) {
//		s, err := store.Get(r, "session")
//		return s.ID, err == nil && !s.IsNew
//	})
//
// Its CookieStore leaves the ID empty: put a random one among the session's values, and
// return that. It must not be one that the client can choose, nor one that changes with
// each response.
//
// A hostile client can leave its session out, and begin as many as the service gives
// it: limit those too, as the package's description shows.
//
// No session, or an empty identifier, is [ErrAbsent]. The function must be safe for
// concurrent use. Session panics if it is nil.
func Session(id func(*http.Request) (string, bool)) Func {
	if id == nil {
		panic("headgate: keyfuncs: Session: the function is nil")
	}
	errAbsent := absent("session")
	return func(r *http.Request) (string, error) {
		s, ok := id(r)
		if !ok || s == "" {
			return "", errAbsent
		}
		return digest(s), nil
	}
}

// Bearer charges the token of the header "Authorization: Bearer ..." (RFC 6750). The key
// is its hash, as by [Hashed].
//
// Beware: the token is what the client wrote. A client that sends another with each
// request has a new limit each time. Charge it only behind what refuses unknown tokens;
// and if one user can have many tokens, charge the user, by [Context] or [ContextFunc].
//
// Another scheme, no token or no header is [ErrAbsent]. A header of several lines, or a
// token of more than 16 KiB or of other bytes than visible ASCII, is [ErrMalformed]:
// written in another way, a token must not have another limit.
func Bearer() Func {
	const thing = "bearer token"
	var (
		errAbsent   = absent(thing)
		errRepeated = malformed(thing, "more than one line of Authorization")
		errTooLong  = malformed(thing, "longer than 16 KiB")
		errBytes    = malformed(thing, "not of visible ASCII characters")
	)
	return func(r *http.Request) (string, error) {
		token, lines := authorization(r, "Bearer")
		switch {
		case lines > 1:
			return "", errRepeated
		case token == "":
			return "", errAbsent
		case len(token) > maxToken:
			return "", errTooLong
		case !isVisible(token):
			return "", errBytes
		}
		return digest(token), nil
	}
}

// BasicUser charges the user name of HTTP's basic authentication (RFC 7617). The key is
// the name as it is; the password is no part of it.
//
// Beware: nothing here asks whether the password is right. A client that sends another
// name with each request has a new limit each time, and one that sends another's name
// uses up that user's limit. Charge it behind what verifies the password; to limit the
// attempts themselves, charge the address too.
//
// Another scheme, an empty name or no header is [ErrAbsent]. A header of several lines,
// credentials that cannot be decoded, or a name of more than 4 KiB, is [ErrMalformed].
func BasicUser() Func {
	const thing = "user name of basic authentication"
	var (
		errAbsent   = absent(thing)
		errRepeated = malformed(thing, "more than one line of Authorization")
		errDecode   = malformed(thing, "the credentials cannot be decoded")
		errTooLong  = malformed(thing, "longer than 4 KiB")
	)
	return func(r *http.Request) (string, error) {
		credentials, lines := authorization(r, "Basic")
		if lines > 1 {
			return "", errRepeated
		}
		if credentials == "" {
			return "", errAbsent
		}
		user, _, ok := r.BasicAuth()
		switch {
		case !ok:
			return "", errDecode
		case user == "":
			return "", errAbsent
		case len(user) > maxValue:
			return "", errTooLong
		}
		return user, nil
	}
}

// authorization returns what stands after the scheme in the first line of the header
// Authorization, or "" if the scheme is another, and the number of lines.
func authorization(r *http.Request, scheme string) (credentials string, lines int) {
	all := r.Header.Values("Authorization")
	if len(all) == 0 {
		return "", 0
	}
	line := trimSpace(all[0])
	end := strings.IndexAny(line, " \t")
	if end < 0 || !strings.EqualFold(line[:end], scheme) {
		return "", len(all)
	}
	return trimSpace(line[end:]), len(all)
}

// isVisible reports whether s is of visible ASCII characters: no space either.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
