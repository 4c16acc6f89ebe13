package routes

import (
	"slices"

	"github.com/headgate/headgate/internal/yamltree"
)

// reached adds a fault if no request gets to a route, because one before it takes them all.
func (r *reader) reached(one *Route, before []*Route) {
	// Routes that have it all together are not looked for: one alone is the mistake that people make.
	for _, first := range before {
		if first.faulty || one.faulty || !first.covers(one) {
			continue
		}
		r.At(one.Place, "it never applies: %s, in line %d, is for all its requests, and the first route that matches "+
			"counts: write it before that one", first.Name, first.Place.Line)
		return
	}
}

// last notes that requests may have no route.
func (r *reader) last(all []*Route, at yamltree.Place) {
	everything := new(Route)
	if slices.ContainsFunc(all, func(of *Route) bool { return of.faulty || of.covers(everything) }) {
		return
	}
	r.Warnings = append(r.Warnings, at.Fault("no route is for everything: requests that match none are charged "+
		"nothing. Write a last one without host, method and path: {charge: [...]}"))
}

// covers reports whether a route is for all requests of another.
func (t *Route) covers(other *Route) bool {
	return holds(t.hosts, other.hosts) && holds(withHead(t.methods), other.methods) && t.path.covers(other.path)
}

// holds reports whether a list has all of another. None stands for any.
func holds(list, other []string) bool {
	if len(list) == 0 {
		return true
	}
	missing := func(text string) bool { return !slices.Contains(list, text) }
	return len(other) > 0 && !slices.ContainsFunc(other, missing)
}

// withHead adds HEAD to methods with GET.
func withHead(methods []string) []string {
	if slices.Contains(methods, "GET") {
		return append(slices.Clip(methods), "HEAD")
	}
	return methods
}

// covers reports whether all paths of another pattern are of this one. A nil one is any path.
func (p *pattern) covers(other *pattern) bool {
	if p == nil {
		return true
	}
	if other == nil {
		other = &pattern{{name: "rest", rest: true}}
	}
	own, theirs := len(*p), len(*other)
	switch {
	case p.rest():
		// The other has at least the segments before the rest, if its own rest does not begin before.
		own--
		if theirs < own || other.rest() && theirs-1 < own {
			return false
		}
	case other.rest() || own != theirs:
		return false
	}
	// A name matches each part, and a text only itself. Case makes no difference: such a route would be met as well.
	for i := range own {
		of := (*p)[i]
		if of.name == "" && of.text != (*other)[i].text {
			return false
		}
	}
	return true
}
