package headgated

import (
	"strconv"
	"strings"
)

// A matched rule is what applies to a descriptor of a request.
type matched struct {
	*rule

	key  string   // that is charged
	keys []string // for metrics: of each entry, the text of what matched it
	free bool     // keys have texts that are not of the configuration
}

// match returns the rule for the entries of a descriptor of a request, or none. The limit of a level
// counts only for the last entry. A limit that a request brings is not shared by the values of a wildcard.
func (d *domain) match(entries []entry, shared bool) (m matched) {
	at, n := &d.level, len(entries)
	texts := make([]string, 3*n)
	parts, whole, keys := texts[:n], texts[n:2*n], texts[2*n:]
	m.keys = keys
	exact := true // whole is of the configuration
	for i, e := range entries {
		whole[i] = e.key + "_" + e.value
		var next *descriptor
		parts[i], keys[i] = e.value, e.key
		if at != nil {
			next, keys[i] = at.find(e, whole[i])
		}
		if next == nil {
			at, m.free, exact = nil, true, false
			continue
		}
		m.free, exact = m.free || keys[i] != next.text, exact && whole[i] == next.text
		if next.share && shared {
			parts[i] = strings.TrimPrefix(next.text, e.key+"_")
		}
		if next.key != e.key { // a text key_value may be of several keys and values
			parts[i] = joined([]string{e.key, parts[i]})
		}
		if i == n-1 {
			m.rule = next.rule
		}
		at = &next.level
	}
	if m.rule != nil && m.detailed {
		m.keys, m.free = whole, !exact
	}
	m.key = joined(parts)
	return m
}

// An entry is a key and a value of a descriptor of a request.
type entry struct{ key, value string }

// find returns the descriptor that matches an entry, whose text is key_value: that of its key and value; else
// the first wildcard; else that of its key. The second is how metrics show it.
func (l *level) find(e entry, text string) (d *descriptor, metric string) {
	if d = l.byText[text]; d != nil {
		return d, text
	}
	for _, w := range l.wildcards {
		if strings.HasPrefix(text, strings.TrimSuffix(w.text, "*")) {
			if w.valueToMetric && !w.share {
				return w, text
			}
			return w, w.text
		}
	}
	if d = l.byText[e.key]; d != nil && d.valueToMetric && e.value != "" {
		return d, text
	}
	return d, e.key
}

// joined returns one key of several, none of which is that of others. One alone is charged as it is.
func joined(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	var b strings.Builder
	for _, part := range parts { // as keyfuncs.All
		b.WriteString(strconv.Itoa(len(part)))
		b.WriteByte(':')
		b.WriteString(part)
		b.WriteByte(',')
	}
	return b.String()
}
