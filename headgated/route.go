package headgated

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/keyfuncs"
)

// maxCharges is how many charges a route has: core takes 64 policies in one call, and a limit has 8 at most.
const maxCharges = 8

// A route says what the requests that it matches are charged.
type route struct {
	name    string // such as routes[0]
	line    int
	hosts   []string // none: any
	methods []string // none: any
	path    *pattern // nil: any
	charges []*routeCharge
}

// A routeCharge is one charge of a route.
type routeCharge struct {
	limit string
	place limits.Fault // where it is named
	parts []string     // of the key, as they are written
	key   keyfuncs.Func
	units int64
	plan  string // the header that has the plan; empty: none
}

// matches reports whether a route is for a request with that path, and sets the path values of the request if so.
func (t *route) matches(r *http.Request, path []string) bool {
	method := r.Method
	if method == http.MethodHead && !slices.Contains(t.methods, method) {
		method = http.MethodGet
	}
	if len(t.methods) > 0 && !slices.Contains(t.methods, method) {
		return false
	}
	if len(t.hosts) > 0 && !slices.Contains(t.hosts, hostOf(r.Host)) {
		return false
	}
	return t.path == nil || t.path.match(r, path)
}

// A meeting is a request that a route is for, as the route reads its path.
type meeting struct {
	*route

	request *http.Request // with the path values
}

// meet returns the first route for each reading of a request's path. Nobody knows which reading the application
// has, so one reading must not be a way around the route of another.
func meet(routes []*route, r *http.Request) (all []meeting) {
	for _, path := range readingsOf(r.URL) {
		as := r.WithContext(r.Context()) // a copy, for path values of its own
		i := slices.IndexFunc(routes, func(t *route) bool { return t.matches(as, path) })
		if i < 0 || routes[i].path == nil && slices.ContainsFunc(all, func(m meeting) bool { return m.route == routes[i] }) {
			continue
		}
		all = append(all, meeting{routes[i], as})
	}
	return all
}

// hostOf returns a host without its port and the dot at its end, in lower case.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

var (
	token      = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, 5.6.2
	hostName   = regexp.MustCompile(`^[0-9A-Za-z_.:-]*[0-9A-Za-z_:-]$`)
	identifier = regexp.MustCompile(`^[A-Za-z_][0-9A-Za-z_]*$`)
)

func validHost(text string) error {
	if !hostName.MatchString(text) {
		return errors.New("it is not the name of a host, without a port")
	}
	return nil
}

func validMethod(text string) error {
	if !token.MatchString(text) || text != strings.ToUpper(text) {
		return errors.New("it is not a method, such as POST")
	}
	return nil
}

// A pattern is the path of a route: segments of which some stand for any.
type pattern struct{ segments []segment }

// A segment is a text, or the name of a path value.
type segment struct {
	text, name string // one is empty
	rest       bool   // it is for all that follows
}

func parsePattern(text string) (*pattern, error) {
	switch {
	case !strings.HasPrefix(text, "/"):
		return nil, errors.New("a path begins with a slash")
	case len(text) > 1 && strings.HasSuffix(text, "/"):
		return nil, errors.New("a path ends without a slash: write {rest...} behind it for all below")
	}
	p := &pattern{}
	for part := range strings.SplitSeq(strings.TrimSuffix(text[1:], "/"), "/") {
		if text == "/" {
			break
		}
		s := segment{text: part}
		if name, ok := strings.CutPrefix(part, "{"); ok {
			name, ok = strings.CutSuffix(name, "}")
			s.text = ""
			s.name, s.rest = strings.CutSuffix(name, "...")
			if !ok || !identifier.MatchString(s.name) {
				return nil, errors.New("what stands for a part of the path is written as {name}, or {name...} for all that follows")
			}
		}
		switch {
		case s.name == "" && (part == "" || part == "." || part == ".." || strings.ContainsAny(part, "{}%?#")):
			return nil, errors.New("a path has no empty parts, dots, queries or escapes, and {name} stands alone between slashes")
		case s.name != "" && p.has(s.name):
			return nil, errors.New("two parts of the path have one name")
		case len(p.segments) > 0 && p.segments[len(p.segments)-1].rest:
			return nil, errors.New("nothing follows {name...}")
		}
		p.segments = append(p.segments, s)
	}
	return p, nil
}

// has reports whether a path value has that name.
func (p *pattern) has(name string) bool {
	return slices.ContainsFunc(p.segments, func(s segment) bool { return s.name == name })
}

// match reports whether a path is one of the pattern, and sets the path values of the request if so.
func (p *pattern) match(r *http.Request, path []string) bool {
	rest := len(p.segments) > 0 && p.segments[len(p.segments)-1].rest
	if !rest && len(path) != len(p.segments) || rest && len(path) < len(p.segments)-1 {
		return false
	}
	for i, s := range p.segments {
		if s.name == "" && s.text != path[i] {
			return false
		}
	}
	for i, s := range p.segments {
		switch {
		case s.rest:
			r.SetPathValue(s.name, strings.Join(path[i:], "/"))
		case s.name != "":
			r.SetPathValue(s.name, path[i])
		}
	}
	return true
}

// readingsOf returns the segments of a path as servers read it: with repeated slashes as one, without dots, decoded.
// Some decode first, so an encoded slash is one. Others split first, and then an encoded dot is a dot or a name. Some
// remove the parameters of segments, take a backslash for a slash, or leave dots as they are. Equal readings are there
// once.
func readingsOf(u *url.URL) (readings [][]string) {
	add := func(path []string) {
		if !slices.ContainsFunc(readings, func(other []string) bool { return slices.Equal(path, other) }) {
			readings = append(readings, path)
		}
	}
	add(segmentsOf(strings.Split(u.Path, "/")))
	if u.RawPath == "" && !strings.ContainsAny(u.Path, `;\`) && !strings.Contains(u.Path, "/.") {
		return readings // all read it so
	}
	raw := u.EscapedPath()
	for _, text := range [...]string{raw, withoutParameters(raw)} {
		split := strings.Split(text, "/")
		names := decoded(split)
		add(segmentsOf(names))
		add(decoded(segmentsOf(split)))
		whole := strings.Join(names, "/")
		for _, text := range [...]string{whole, withoutParameters(whole), strings.ReplaceAll(whole, `\`, "/")} {
			add(segmentsOf(strings.Split(text, "/")))
		}
		add(slices.DeleteFunc(names, func(name string) bool { return name == "" }))
	}
	return readings
}

// withoutParameters returns a path without what follows a semicolon in a segment.
func withoutParameters(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, ";")
	}
	return strings.Join(parts, "/")
}

// decoded returns parts of a path without their escapes.
func decoded(parts []string) []string {
	texts := slices.Clone(parts)
	for i, part := range parts {
		if text, err := url.PathUnescape(part); err == nil {
			texts[i] = text
		}
	}
	return texts
}

// segmentsOf returns the parts of a path without those that are empty or dots.
func segmentsOf(parts []string) []string {
	path := make([]string, 0, len(parts))
	for _, part := range parts {
		switch {
		case part == "" || part == ".":
		case part != "..":
			path = append(path, part)
		case len(path) > 0:
			path = path[:len(path)-1]
		}
	}
	return path
}
