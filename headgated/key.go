package headgated

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/headgate/headgate/keyfuncs"
)

// combined returns the key of several parts, which are valid. One alone is charged as it is.
func combined(parts, trusted []string, path *pattern) keyfuncs.Func {
	all := make([]keyfuncs.Func, len(parts))
	for i, text := range parts {
		all[i], _ = keyOf(text, trusted, path)
	}
	if len(all) == 1 {
		return all[0]
	}
	return keyfuncs.All(all...)
}

// keyOf returns a part of a key.
func keyOf(text string, trusted []string, path *pattern) (keyfuncs.Func, error) {
	kind, name, named := strings.Cut(text, ":")
	switch kind {
	case "header", "cookie":
		if !token.MatchString(name) {
			return nil, fmt.Errorf("a name is missing, as in %s:name", kind)
		}
		if kind == "cookie" {
			return keyfuncs.Cookie(name), nil
		}
		if strings.EqualFold(name, "Host") {
			return nil, errors.New("no request has its host in a header: give each host a route")
		}
		return keyfuncs.Header(name), nil
	case wordPath:
		if path == nil || !path.has(name) {
			return nil, errors.New("the path of the route has no part of that name, such as {tenant} for path:tenant")
		}
		return keyfuncs.PathValue(name), nil
	}
	if !named {
		switch kind {
		case "address":
			return keyfuncs.XForwardedFor(trusted...), nil
		case "bearer":
			return keyfuncs.Bearer(), nil
		case "basic":
			return basicUser, nil
		case "method":
			return method, nil
		case "everyone":
			return keyfuncs.Everyone(), nil
		}
	}
	return nil, errors.New("it is none of address, header:NAME, cookie:NAME, bearer, basic, path:NAME, method, everyone")
}

// headerName returns the name of a header that is written as header:NAME.
func headerName(text string) (string, error) {
	name, ok := strings.CutPrefix(text, "header:")
	if !ok || !token.MatchString(name) {
		return "", errors.New("it has not the form header:NAME")
	}
	return name, nil
}

var (
	errNoBasic       = fmt.Errorf("%w: user name of basic authentication", keyfuncs.ErrAbsent)
	errRepeatedBasic = errors.New("headgated: basic authentication: more than one line of Authorization")
	errDecodeBasic   = errors.New("headgated: basic authentication: the credentials cannot be decoded")
	errLongBasic     = errors.New("headgated: basic authentication: the name is longer than 4 KiB")
)

// basicUser is the key "basic": the name of basic authentication (RFC 7617), as it is encoded.
func basicUser(r *http.Request) (string, error) {
	lines := r.Header.Values("Authorization")
	if len(lines) > 1 {
		return "", errRepeatedBasic
	}
	if len(lines) == 0 {
		return "", errNoBasic
	}
	scheme, credentials, _ := strings.Cut(strings.Trim(lines[0], " \t"), " ")
	if !isBasic(scheme) || strings.Trim(credentials, " \t") == "" {
		return "", errNoBasic
	}
	user, _, ok := r.BasicAuth()
	switch {
	case !ok:
		return "", errDecodeBasic
	case user == "":
		return "", errNoBasic
	case len(user) > 4<<10:
		return "", errLongBasic
	}
	return user, nil
}

// isBasic compares in ASCII: by strings.EqualFold, "Baſic" is Basic, too.
func isBasic(scheme string) bool {
	return len(scheme) == len("Basic") && strings.EqualFold(scheme, "Basic")
}

// method is the key "method". Methods that RFC 9110 and RFC 5789 do not define are charged together,
// because a client can invent any number of them.
func method(r *http.Request) (string, error) {
	switch r.Method {
	case "": // as net/http reads it
		return http.MethodGet, nil
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return r.Method, nil
	}
	return "other", nil
}

// trustedPeer returns a function that reports whether the peer of a request is a proxy of these networks, which
// are valid, and has read the request, so that the fields that it writes can be believed. It asks
// keyfuncs whether it would believe such a field: the address in it is that of no peer.
func trustedPeer(networks []string) func(*http.Request) bool {
	const field, nobody = "X-Peer", "0.0.0.0"
	key := keyfuncs.ProxyHeader(field, networks...)
	believed := http.Header{field: {nobody}}
	return func(r *http.Request) bool {
		asked := r.WithContext(r.Context()) // a copy
		asked.Header = believed
		address, err := key(asked)
		return err == nil && address == nobody
	}
}
