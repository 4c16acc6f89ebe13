package routes

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// readings returns the segments of a path as servers read it. Nobody knows which server the application has, and
// clients choose the spelling. So there is a reading for each way in which a server may understand it, but equal ones
// only once:
//
//   - What separates segments: a slash, also one that is encoded, where servers decode first; and a backslash.
//   - What is no part of a segment's name: parameters behind a semicolon, before or after it is decoded; or all behind
//     the first semicolon, which begins the query, as in Fastify 4.
//   - What dots do: they go up, before or after they are decoded, or are names.
//   - What empty segments are: nothing, or segments.
//   - What a line break at the end is: nothing, where "$" of a regular expression ends the path.
//   - What bytes that are not UTF-8 are: nothing, as in Bottle.
func readings(uri *url.URL) [][]string {
	if isPlain(uri) {
		path := strings.Trim(uri.Path, "/")
		if path == "" {
			return [][]string{nil}
		}
		return [][]string{strings.Split(path, "/")}
	}
	var all readingSet
	// RawPath is what was sent, unless that is how Path is always written. EscapedPath alone would write a path anew in
	// which something is not escaped that should be, and lose its encoded slashes.
	sent := cmp.Or(uri.RawPath, uri.EscapedPath())
	beforeQuery, _, _ := strings.Cut(sent, ";")
	for _, text := range distinct(sent, withoutParameters(sent), beforeQuery) {
		split := strings.Split(strings.TrimPrefix(text, "/"), "/")
		names := decoded(split)
		all.addEach(names)
		all.add(decoded(resolved(split)))
		all.add(decoded(resolvedEmpty(split)))
		whole := strings.Join(names, "/")
		slashes := strings.ReplaceAll(whole, `\`, "/")
		for _, text := range distinct(whole, withoutParameters(whole), slashes, withoutParameters(slashes)) {
			all.addEach(strings.Split(text, "/"))
		}
	}
	return all
}

// distinct returns texts, each once: most paths have no parameters and no backslash.
func distinct(texts ...string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// isPlain reports whether all servers read a path alike, but for empty segments at its end.
func isPlain(uri *url.URL) bool {
	path := uri.Path
	odd := strings.ContainsAny(path, ";\\\n") || strings.Contains(path, "/.") || strings.Contains(path, "//")
	return uri.RawPath == "" && !odd && utf8.ValidString(path)
}

// A readingSet is readings, each once.
type readingSet [][]string

// add adds a reading, and those of servers to which a line break at its end, or bytes that are not UTF-8, are nothing.
func (s *readingSet) add(path []string) {
	if slices.ContainsFunc(*s, func(other []string) bool { return slices.Equal(path, other) }) {
		return
	}
	*s = append(*s, path)
	last := len(path) - 1
	if last >= 0 && strings.HasSuffix(path[last], "\n") {
		shorter := slices.Clone(path)
		shorter[last] = strings.TrimSuffix(path[last], "\n")
		s.add(shorter)
	}
	valid := slices.Clone(path)
	for i, name := range path {
		valid[i] = strings.ToValidUTF8(name, "")
	}
	s.add(valid)
}

// addEach adds names as they are, and with what empty ones and dots may mean.
func (s *readingSet) addEach(names []string) {
	s.add(names)
	s.add(withoutEmpty(names))
	s.add(resolved(names))
	s.add(resolvedEmpty(names))
}

// withoutEmpty returns segments without those that are empty.
func withoutEmpty(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
}

// parameters are what follows a semicolon in a segment.
var parameters = regexp.MustCompile(`;[^/]*`)

// withoutParameters returns a path without them.
func withoutParameters(path string) string { return parameters.ReplaceAllLiteralString(path, "") }

// decoded returns segments without their escapes. One whose escapes are not valid stays as it is.
func decoded(names []string) []string {
	texts := slices.Clone(names)
	for i, name := range names {
		text, err := url.PathUnescape(name)
		if err == nil {
			texts[i] = text
		}
	}
	return texts
}

// resolved returns segments without those that are empty or dots. Two dots take the one before away.
func resolved(names []string) []string { return resolvedEmpty(withoutEmpty(names)) }

// resolvedEmpty is resolved, where an empty segment is one.
func resolvedEmpty(names []string) []string {
	path := make([]string, 0, len(names))
	for _, name := range names {
		switch {
		case name == ".":
		case name != "..":
			path = append(path, name)
		case len(path) > 0:
			path = path[:len(path)-1]
		}
	}
	return path
}
