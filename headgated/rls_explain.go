package headgated

import (
	"fmt"
	"strings"

	"github.com/headgate/headgate/core"
)

// ExplainDescriptor says which limit a descriptor of Envoy's rate limit service meets. Entries have
// the form key=value. The text is a document, or a configuration of that service. Matched reports
// whether there is a limit. The error has all mistakes in the text. Nothing is charged.
func ExplainDescriptor(text []byte, domain string, entries []string, c Config) (explained string, matched bool, err error) {
	d, err := parseEither(text, false, new(core.MemoryStore).Backend(), c.rls())
	if err != nil {
		return "", false, err
	}
	in := d.domains[domain]
	if in == nil {
		return fmt.Sprintf("there is no domain %q: the request is admitted, and nothing is charged\n", domain), false, nil
	}
	of := make([]entry, len(entries))
	for i, text := range entries {
		of[i].key, of[i].value, _ = strings.Cut(text, "=")
	}
	m := in.match(of, true)
	if m.rule == nil {
		return "no limit is for the descriptor: it is admitted, and nothing is charged\n", false, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, line %d\n", m.path, m.place.Line)
	for _, mode := range []struct {
		is   bool
		text string
	}{{m.unlimited, "unlimited"}, {m.shadow, wordShadowMode}, {m.quota, wordQuotaMode}} {
		if mode.is {
			fmt.Fprintf(&b, "  %s\n", mode.text)
		}
	}
	var rules []string
	switch {
	case m.limit != "" && d.tables[m.limit] == nil: // it is in the document beside this file
		fmt.Fprintf(&b, "  limit %s, of the document\n", m.limit)
	case m.limit != "":
		rules = rulesOf(d.tables[m.limit].Find("", m.key))
		fmt.Fprintf(&b, "  limit %s\n", m.limit)
	case m.limiter != nil:
		ps, _ := m.limiter.Of(m.key)
		rules = rulesOf(ps)
	}
	fmt.Fprintf(&b, "  key %q\n", m.key)
	for _, rule := range rules {
		fmt.Fprintf(&b, "    %s\n", rule)
	}
	return b.String(), true, nil
}
