package keyfuncs

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"
)

// maxToken bounds the bearer tokens that are hashed, in bytes. Those of some issuers,
// which list groups, are longer than maxValue.
const maxToken = 16 << 10

// Hashed charges a hash of next's key, so that a secret cannot be read in a store or its
// logs:
//
//	keyfuncs.Hashed(keyfuncs.Header("X-Api-Key"))
//
// The key is 22 characters: the first 128 bits of the SHA-256 of next's key, in base64 for
// URLs. Use it as the key for [core.Limiter.Reset] and similar methods. It does not hide
// values that are easily guessed, such as addresses, because guesses can be compared with
// it.
//
// The errors of next are returned. Hashed panics if next is nil.
//
// [core.Limiter.Reset]: https://pkg.go.dev/github.com/headgate/headgate/core#Limiter.Reset
func Hashed(next Func) Func {
	require("Hashed", next)
	return func(r *http.Request) (string, error) {
		key, err := call(next, r)
		if err != nil {
			return "", err
		}
		return digest([]byte(key)), nil
	}
}

func digest(secret []byte) string {
	sum := sha256.Sum256(secret)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Cookie charges the value of a cookie, which is treated as a secret: the key is the
// value's hash, as by [Hashed].
//
// Warning: the client chooses the value. A client that sends another value with each request has a
// new limit each time. Charge a cookie only where requests with an unknown value are refused first.
// Otherwise use a [SignedCookie], or [From], which calls the library that verifies the session.
// The value is charged as net/http parses it, without quotation marks around it. If its reader
// accepts several spellings, each has a limit of its own. For example, the Context.Cookie of Gin
// decodes "%61" to "a".
//
// A cookie that is missing, empty, or contains bytes that cookies must not contain, is
// [ErrAbsent]. Several cookies of the name, or one of more than 4 KiB, are another error,
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
		return digest([]byte(cookies[0].Value)), nil
	}
}

// Bearer charges the token of the header "Authorization: Bearer ..." (RFC 6750). The key
// is a hash of it, of 22 characters.
//
// Warning: the client chooses the token. A client that sends another one with each request
// has a new limit each time. Charge it only behind a middleware that refuses unknown
// tokens. One user can usually get many tokens; charge the user, such as the subject of
// the verified token, by [Context] or [From], where you can.
//
// A JWT has several spellings that all pass verification. The last character of its signature has
// bits that do not count. Anyone can make a second signature from an ES256 one. So a JWT is charged
// by its decoded parts. A signed one (RFC 7515, compact form) is charged by its header, its payload
// and the first half of the signature. An encrypted one (RFC 7516) is charged by all but the
// encrypted key. Any other token is charged as it is, as by [Hashed]. A service may accept several
// texts of such a token, as with base64. Then each has a limit of its own: charge the user instead.
//
// Another scheme, no token or no header is [ErrAbsent]. These are other errors: a header with
// several lines, a JWT that is not in base64 for URLs, and a token of more than 16 KiB, with
// other bytes than visible ASCII, or in JSON (it begins with a brace).
func Bearer() Func {
	const thing = "bearer token"
	var (
		errAbsent   = absent(thing)
		errRepeated = malformed(thing, "more than one line of Authorization")
		errTooLong  = malformed(thing, "longer than 16 KiB")
		errBytes    = malformed(thing, "not of visible ASCII characters")
		errJSON     = malformed(thing, "in JSON")
		errBase64   = malformed(thing, "a JWT that is not in base64 for URLs")
	)
	return func(r *http.Request) (string, error) {
		token, lines := bearer(r)
		switch {
		case lines > 1:
			return "", errRepeated
		case token == "":
			return "", errAbsent
		case len(token) > maxToken:
			return "", errTooLong
		case !isVisible(token):
			return "", errBytes
		case token[0] == '{':
			return "", errJSON
		}
		credential, ok := credentialOf([]byte(token))
		if !ok {
			return "", errBase64
		}
		return digest(credential), nil
	}
}

// credentialOf returns what is the same for all spellings of a token: of a JWT in compact
// form, the bytes that make it another one; of any other token, all of it. It is not ok if
// a part of a JWT is not in base64 for URLs.
func credentialOf(token []byte) (credential []byte, ok bool) {
	parts := bytes.Count(token, []byte(".")) + 1
	if parts != 3 && parts != 5 {
		return token, true
	}
	credential = make([]byte, 1, len(token)+8*parts) // it begins with a zero byte, as no token does
	rest := token
	for i := range parts {
		var part []byte
		part, rest, _ = bytes.Cut(rest, []byte("."))
		begin := len(credential)
		var err error
		credential, err = base64.RawURLEncoding.AppendDecode(credential, bytes.TrimRight(part, "=")) // some issuers pad
		size := len(credential) - begin
		switch {
		case i == 0 && (err != nil || !isJOSE(credential[begin:])):
			return token, true
		case err != nil:
			return nil, false
		case i == 2 && parts == 3:
			// Of an ECDSA signature (r, s), (r, n-s) is another one of the same text
			// (FIPS 186-5, section 6.4.2). The first half is r. Of other algorithms
			// too it says with which key the text was signed.
			size /= 2
		case i == 1 && parts == 5:
			// The tag of a JWE authenticates all parts but the encrypted key, which some
			// algorithms do not use.
			size = 0
		}
		credential = binary.BigEndian.AppendUint64(credential[:begin+size], uint64(size))
	}
	return credential, true
}

// isJOSE reports whether the first part of a token is the header of a JWT: a JSON object
// with the required member "alg" (RFC 7515, section 4.1.1; RFC 7516, section 4.1.1).
func isJOSE(header []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(header, " \t\r\n"), []byte("{")) && bytes.Contains(header, []byte(`"alg"`))
}

// bearer returns the part after the scheme of the first line of the header Authorization, or "" if it
// has another scheme, and the number of lines.
func bearer(r *http.Request) (token string, lines int) {
	all := r.Header.Values("Authorization")
	if len(all) == 0 {
		return "", 0
	}
	line := trimSpace(all[0])
	end := strings.IndexAny(line, " \t")
	if end < 0 || !isToken(line[:end]) || !strings.EqualFold(line[:end], "Bearer") {
		return "", len(all)
	}
	return trimSpace(line[end:]), len(all)
}

// isVisible reports whether a text consists of visible ASCII characters, without spaces.
func isVisible(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
