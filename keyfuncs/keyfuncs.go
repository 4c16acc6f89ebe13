package keyfuncs

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// A Func derives from a request the key that is charged: any bytes, but at least
// one. It must not give an empty key without an error, for all the requests it
// knows nothing about would then share a limit. It must be safe for concurrent
// use, and should not read the body.
type Func func(*http.Request) (string, error)

var (
	// ErrAbsent is the error, by [errors.Is], of a request that does not have
	// the thing that is charged. It is the only error after which [First] goes on.
	ErrAbsent = errors.New("headgate: keyfuncs: absent")

	// ErrMalformed is the error, by [errors.Is], of a request that has the thing
	// in a form that cannot be charged: repeated, or too long.
	ErrMalformed = errors.New("headgate: keyfuncs: malformed")
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
// Beware: the value is what the client wrote, unless a proxy of yours overwrites
// the header. A client that sends another value with each request has a new limit
// each time. Charge a header only where requests with an unknown value are refused
// first; and for a client's address use [ProxyHeader], which asks who wrote it.
//
// Spaces and tabs around the value are not part of it. A header that is missing or
// empty is [ErrAbsent]. One of several lines, or of more than 4 KiB, is
// [ErrMalformed]: whoever reads it next might take another line than this.
//
// net/http takes Host out of the headers, so Header("Host") never applies. Header
// panics if name is not a valid name (RFC 9110, section 5.1).
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

// Method charges the request's method, for use within [All]. Methods that RFC 9110
// and RFC 5789 do not define are charged together as "other", for a client may
// invent as many as it likes.
func Method() Func {
	return func(r *http.Request) (string, error) {
		switch r.Method {
		case "": // as net/http reads it
			return http.MethodGet, nil
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method, nil
		}
		return "other", nil
	}
}

// Route charges the pattern of [http.ServeMux] that the request matched, such as
// "GET /items/{id}", for use within [All].
//
// The mux sets the pattern when it has chosen the handler. A middleware around the
// whole mux runs before that, and Route is [ErrAbsent] there: wrap the handlers that
// are registered in the mux instead. It is ErrAbsent under other routers too, unless
// they set [http.Request.Pattern].
func Route() Func {
	errAbsent := absent("route pattern")
	return func(r *http.Request) (string, error) {
		if r.Pattern == "" {
			return "", errAbsent
		}
		return r.Pattern, nil
	}
}

// PathValue charges the part of the path that matched a wildcard of [http.ServeMux], as
// the tenant in "/tenants/{tenant}/items", for use within [All].
//
// Beware: the value is what the client wrote. It says which resource is used and not who
// uses it; a client that may ask for any has a new limit for each.
//
// The mux sets the value when it has chosen the handler. A middleware around the whole
// mux runs before that, and PathValue is [ErrAbsent] there: wrap the handlers that are
// registered in the mux instead. It is ErrAbsent too if the pattern has no such wildcard,
// or it matched nothing. A value of more than 4 KiB is [ErrMalformed].
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

// Everyone charges all requests together, for a limit on the whole service.
func Everyone() Func {
	return func(*http.Request) (string, error) { return "everyone", nil }
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
