package headgated

import (
	"errors"
	"fmt"
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
			return keyfuncs.XForwardedFor(trusted...)
		case "bearer":
			return keyfuncs.Bearer(), nil
		case "basic":
			return keyfuncs.BasicUser(), nil
		case "method":
			return keyfuncs.Method(), nil
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
