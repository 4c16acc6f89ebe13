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

// Hashed charges a hash of f's key, so that a secret cannot be read in a store or its
// logs:
//
//	keyfuncs.Hashed(keyfuncs.Header("X-Api-Key"))
//
// The key is 22 characters: the first 128 bits of the SHA-256 of f's key, in base64 for
// URLs. Use it as the key for [core.Limiter.Reset] and similar methods. It does not hide
// values that are easily guessed, such as addresses, because guesses can be compared with
// it.
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

// Cookie charges the value of a cookie, which is treated as a secret: the key is the
// value's hash, as by [Hashed].
//
// Warning: the client chooses the value. A client that sends another value with each
// request has a new limit each time. Charge a cookie only where requests with an unknown
// value are refused first; otherwise use [Session], which calls the library that verifies
// the session, or a [SignedCookie].
//
// A cookie that is missing, empty, or contains bytes that cookies must not contain, is
// [ErrAbsent]. Several cookies of the name, or one of more than 4 KiB, are [ErrMalformed],
// because the next reader might use another one.
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
// function returns the session's identifier, and whether the library has verified the
// session, in its store or by a signature. The identifier is treated as a secret: the key
// is its hash, as by [Hashed].
//
// With github.com/alexedwards/scs/v2, whose LoadAndSave must run first:
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
// Its CookieStore leaves the ID empty: store a random one among the session's values, and
// return that. The client must not be able to choose it, and it must not change with each
// response.
//
// A hostile client can omit its session, and start as many as the service allows: limit
// those too, as the package documentation shows.
//
// No session or an empty identifier is [ErrAbsent]. The function must be safe for
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
// Warning: the client chooses the token. A client that sends another one with each request
// has a new limit each time. Charge it only behind a middleware that refuses unknown
// tokens; if one user can have many tokens, charge the user, by [Context] or
// [ContextFunc].
//
// Another scheme, no token or no header is [ErrAbsent]. A header with several lines, or a
// token of more than 16 KiB or with other bytes than visible ASCII, is [ErrMalformed], so
// that no second spelling of a token has a limit of its own.
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

// BasicUser charges the user name of basic authentication (RFC 7617). The key is the name
// unchanged, without the password.
//
// Warning: BasicUser does not verify the password. A client that sends another name with
// each request has a new limit each time, and one that sends the name of another user
// exhausts that user's limit. Charge it behind a middleware that verifies the password; to
// limit the attempts themselves, charge the address too.
//
// Another scheme, an empty name or no header is [ErrAbsent]. A header with several lines,
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

// authorization returns the part after the scheme of the first line of the header
// Authorization, or "" if it has another scheme, and the number of lines.
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

// isVisible reports whether s consists of visible ASCII characters, without spaces.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
