package keyfuncs

import (
	"net/netip"
	"strings"
)

// lastCommaUnquoted returns the index of the last comma of a text outside quoted strings, or
// -1.
//
// It is safe because it reads from the right. From the left, a quotation mark that a
// client wrote and never closed would include the element that a proxy appended to the
// same line. From the right, the proxy's well-formed element is read first, and nothing
// to the left of it can change that: its quoted strings are closed; within one, a
// quotation mark follows an odd number of backslashes, and the one that opens it follows
// the equals sign.
func lastCommaUnquoted(text string) int {
	quoted := false
	for i := len(text) - 1; i >= 0; i-- {
		switch text[i] {
		case ',':
			if !quoted {
				return i
			}
		case '"':
			if !escaped(text, i) {
				quoted = !quoted
			}
		}
	}
	return -1
}

// escaped reports whether an odd number of backslashes stands before s[i].
func escaped(text string, i int) bool {
	before := strings.TrimRight(text[:i], `\`)
	return (i-len(before))%2 == 1
}

// forwardedFor returns the address in the "for" parameter of a forwarded-element
// (RFC 7239, section 4):
//
//	forwarded-element = [ forwarded-pair ] *( ";" [ forwarded-pair ] )
//	forwarded-pair    = token "=" ( token / quoted-string )
//
// White space around pairs, and colons and brackets without quotes, are tolerated.
func forwardedFor(element string) (netip.Addr, bool) {
	node := ""
	found := false
	for {
		element = strings.TrimLeft(element, " \t;")
		if element == "" {
			return parseNode(node) // without "for" it is "", which is not an address
		}
		name, value, rest, ok := cutPair(element)
		if !ok {
			return netip.Addr{}, false
		}
		if strings.EqualFold(name, "for") {
			if found { // the RFC allows one
				return netip.Addr{}, false
			}
			node = value
			found = true
		}
		element = rest
	}
}

// cutPair parses the forwarded-pair that a text begins with. The rest is empty or begins with
// a semicolon.
func cutPair(text string) (name, value, rest string, ok bool) {
	name, text, ok = strings.Cut(text, "=")
	if !ok || !isToken(name) {
		return "", "", "", false
	}
	if strings.HasPrefix(text, `"`) {
		value, rest, ok = cutQuoted(text)
	} else {
		end := 0
		for end < len(text) && (isTokenByte(text[end]) || strings.IndexByte(":[]", text[end]) >= 0) {
			end++
		}
		value = text[:end]
		rest = text[end:]
		ok = end > 0
	}
	rest = strings.TrimLeft(rest, " \t")
	if !ok || rest != "" && rest[0] != ';' {
		return "", "", "", false
	}
	return name, value, rest, true
}

// cutQuoted parses the quoted-string that a text begins with (RFC 9110, section 5.6.4).
func cutQuoted(text string) (value, rest string, ok bool) {
	end := 1
	for end < len(text) && text[end] != '"' {
		if text[end] == '\\' {
			end++ // and what it escapes
		}
		end++
	}
	if end >= len(text) {
		return "", "", false
	}
	return unescape(text[1:end]), text[end+1:], true
}

func unescape(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text // nearly always
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			i++ // cutQuoted has seen that something follows
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
