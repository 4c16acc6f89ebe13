package keyfuncs

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/carried"
)

// A Func returns the key that a request is charged under: one or more arbitrary bytes. It
// must not return an empty key without an error, because all requests without a key would
// then share a limit. It must be safe for concurrent use and should not read the body.
type Func func(*http.Request) (string, error)

var (
	// ErrAbsent is wrapped by the error for a request that lacks the charged value. It is the only
	// error after which [First] tries its next function.
	ErrAbsent = errors.New("headgate: keyfuncs: absent")

	// ErrMalformed is wrapped by the error for a request whose charged value cannot be used: it is
	// repeated, too long, or badly encoded.
	ErrMalformed = errors.New("headgate: keyfuncs: malformed")

	// ErrProgram is wrapped by errors of the program, for which the request is not to
	// blame. Guards refuse the request with status 500.
	ErrProgram = errors.New("headgate: keyfuncs: error of the program")
)

func absent(thing string) error {
	return fmt.Errorf("%w: %s", ErrAbsent, thing)
}

func malformed(thing, why string) error {
	return fmt.Errorf("%w: %s: %s", ErrMalformed, thing, why)
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
// its own. A header that is missing or empty is [ErrAbsent]. One with several lines, or of more than 4 KiB, is [ErrMalformed], because
// the next reader might use another line.
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
	return carried.Unused(Func(func(r *http.Request) (string, error) {
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
	}))
}

// Method charges the request's method, for use within [All]. Methods that RFC 9110
// and RFC 5789 do not define are charged together as "other", because a client can
// invent any number of them.
func Method() Func {
	return carried.Unused(Func(func(r *http.Request) (string, error) {
		switch r.Method {
		case "": // as net/http reads it
			return http.MethodGet, nil
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method, nil
		}
		return "other", nil
	}))
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
	return carried.Unused(Func(func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", errAbsent
		}
		return r.Pattern, nil
	}))
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
// matched nothing. A value of more than 4 KiB is [ErrMalformed].
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
	return carried.Unused(Func(func(r *http.Request) (string, error) {
		value := r.PathValue(name)
		if value == "" {
			return "", errAbsent
		}
		if len(value) > maxValue {
			return "", errTooLong
		}
		return value, nil
	}))
}

// Everyone charges all requests under one key, for a limit on the whole service.
func Everyone() Func {
	return carried.Unused(Func(func(*http.Request) (string, error) { return "everyone", nil }))
}

// trimSpace removes the optional white space of RFC 9110, section 5.6.3.
func trimSpace(s string) string { return strings.Trim(s, " \t") }

// isToken reports whether s is a token by RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		if !isTokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
