package keyfuncs

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/fault"
)

// A Func returns a text of a request: the key under which a rule counts it, or the name of the plan that
// applies to it. A key is one or more arbitrary bytes. A Func must not return an empty text without an
// error, because all requests without a key would then share a limit. It must be safe for concurrent use
// and should not read the body.
type Func func(*http.Request) (string, error)

var (
	// ErrAbsent is wrapped by the error for a request that lacks the value. It is the only error after
	// which [First] tries its next function. A guard refuses a request without a key with status 400; a
	// request without a plan gets the default.
	ErrAbsent error = &fault.Keyless{Text: "headgate: keyfuncs: absent"}

	// ErrProgram is wrapped by errors of the program, for which the request is not to
	// blame. Guards refuse the request with status 500.
	ErrProgram error = &fault.Keyless{Text: "headgate: keyfuncs: error of the program"}
)

// Errors of this package are written by the three functions below. Guards log them, so no text may have what a request
// has: no key, and nothing that a client writes.

func absent(thing string) error { return ofKind(ErrAbsent, thing) }

// ofKind returns an error that wraps ErrAbsent or ErrProgram.
func ofKind(kind error, what string) error {
	return &fault.Keyless{Text: kind.Error() + ": " + what, Kind: kind}
}

// unusable returns an error that wraps neither.
func unusable(what string) error { return &fault.Keyless{Text: "headgate: keyfuncs: " + what} }

// malformed returns the error for a value that cannot be used. It is neither ErrAbsent, after which a
// client could choose the next function of First, nor ErrProgram.
func malformed(thing, why string) error {
	return unusable("malformed: " + thing + ": " + why)
}

// check panics with the faults of arguments, one line each, if there are any.
func check(faults ...error) {
	if err := errors.Join(faults...); err != nil {
		panic(err.Error())
	}
}

// require panics if an argument is nil.
func require(function string, key Func) {
	if key == nil {
		panic("headgate: keyfuncs: " + function + ": the function is nil")
	}
}

// maxValue bounds the keys that come from a header, in bytes.
const maxValue = 4 << 10

// Header charges the value of a header, such as an API key.
//
// Warning: the client chooses the value, unless one of your proxies overwrites the header.
// A client that sends another value with each request has a new limit each time. Charge a
// header only where requests with an unknown value are refused first. For a client's
// address, use [ProxyHeader], which checks that a proxy wrote the header.
//
// Spaces and tabs around the value are ignored; otherwise, the value is charged as it is. If
// several spellings of it are accepted, such as in upper and lower case, each has a limit of
// its own. A header that is missing or empty is [ErrAbsent]. One with
// several lines, or of more than 4 KiB, is another error, because the next reader might use another line.
//
// net/http removes Host from the headers, so the key of Header("Host") is always absent.
// Header panics if name is not a valid name (RFC 9110, section 5.1).
func Header(name string) Func {
	if !isToken(name) {
		panic("headgate: keyfuncs: Header: not the name of a header: " + strconv.Quote(name))
	}
	name = http.CanonicalHeaderKey(name)
	var (
		thing       = "header " + name
		errAbsent   = absent(thing)
		errRepeated = malformed(thing, "more than one line")
		errTooLong  = malformed(thing, "longer than 4 KiB")
	)
	return func(r *http.Request) (string, error) {
		lines := r.Header.Values(name)
		if len(lines) == 0 {
			return "", errAbsent
		}
		if len(lines) > 1 {
			return "", errRepeated
		}
		value := trimSpace(lines[0])
		if value == "" {
			return "", errAbsent
		}
		if len(value) > maxValue {
			return "", errTooLong
		}
		return value, nil
	}
}

// Route charges the pattern of [http.ServeMux] that the request matched, such as
// "GET /items/{id}", for use within [All].
//
// The mux sets the pattern when it has chosen the handler. In a middleware around the
// whole mux, which runs before that, Route is [ErrAbsent]; wrap the registered handlers
// instead. It is ErrAbsent with other routers too, unless they set
// [http.Request.Pattern].
func Route() Func {
	errAbsent := absent("route pattern")
	return func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", errAbsent
		}
		return r.Pattern, nil
	}
}

// PathValue charges the part of the path that matched a wildcard of [http.ServeMux], such
// as the tenant in "/tenants/{tenant}/items", for use within [All].
//
// Warning: the client chooses the value. It identifies the resource, not the client; a
// client with access to many resources has a limit for each.
//
// The mux sets the value when it has chosen the handler. In a middleware around the whole
// mux, which runs before that, PathValue is [ErrAbsent]; wrap the registered handlers
// instead. It is also ErrAbsent if the pattern has no such wildcard, or the wildcard
// matched nothing. A value of more than 4 KiB is another error.
//
// PathValue panics if name is empty.
func PathValue(name string) Func {
	if name == "" {
		panic("headgate: keyfuncs: PathValue: the name is empty")
	}
	var (
		thing      = "path value " + strconv.Quote(name)
		errAbsent  = absent(thing)
		errTooLong = malformed(thing, "longer than 4 KiB")
	)
	return func(r *http.Request) (string, error) {
		value := r.PathValue(name)
		if value == "" {
			return "", errAbsent
		}
		if len(value) > maxValue {
			return "", errTooLong
		}
		return value, nil
	}
}

// Everyone charges all requests under one key, for a limit on the whole service.
func Everyone() Func {
	return func(*http.Request) (string, error) { return "everyone", nil }
}

// trimSpace removes the optional white space of RFC 9110, section 5.6.3.
func trimSpace(text string) string { return strings.Trim(text, " \t") }

// isToken reports whether a text is a token by RFC 9110, section 5.6.2.
func isToken(text string) bool {
	for i := range len(text) {
		if !isTokenByte(text[i]) {
			return false
		}
	}
	return text != ""
}

func isTokenByte(char byte) bool {
	isLetter := 'a' <= char && char <= 'z' || 'A' <= char && char <= 'Z'
	return isLetter || '0' <= char && char <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", char) >= 0
}
