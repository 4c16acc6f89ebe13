package descriptors

import "github.com/headgate/headgate/internal/yamltree"

// note adds what the reference takes, and may be a mistake.
func (r *Reader) note(at yamltree.Place, format string, args ...any) {
	r.Warnings = append(r.Warnings, at.Fault(format, args...))
}

// noteWildcard notes a wildcard that nothing reaches. One before it matches all that it matches, if it matches its
// text, in which an asterisk can only be within one of its own.
func (r *Reader) noteWildcard(at yamltree.Place, found *descriptor, before []*descriptor) {
	for _, first := range before {
		if matches(first.between, found.text) {
			r.note(at, "it never applies: a wildcard before it, in line %d, is for all that it matches, and the first "+
				"counts: write it before that one", first.place.Line)
			return
		}
	}
}

// Notes notes names that limits replace, and that no limit of the domain has. All texts are read.
func (c *Config) Notes() {
	// A request has one domain, so limits of others are not among those that it meets.
	type name struct{ domain, name string }
	known := make(map[name]bool)
	for _, limit := range c.Limits {
		known[name{limit.Series.Domain, limit.Name}] = true
	}
	for _, limit := range c.Limits {
		for i, replaced := range limit.Replaces {
			if !known[name{limit.Series.Domain, replaced}] {
				limit.text.Warnings = append(limit.text.Warnings,
					limit.replacesAt[i].Fault("it replaces nothing: no limit of the domain has this name"))
			}
		}
	}
}
