package yamldoc_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
)

// A line of a document, in which each word in angle brackets is a scalar that may be replaced.
// The names of limits, plans and policies are not: faults show them if they look like these.
var canaryLines = []string{
	`<limits>:`,
	`  api:`,
	`    <default>: <free>`,
	`    <plans>:`,
	`      free: {minute: <sliding-log 60/minute>, day: <fixed-window 1000/day>}`,
	`      gold: {minute: <sliding-log 600/minute>, day: <fixed-window 9000/day>}`,
	`    <overrides>:`,
	`      - {<key>: <anna>, <plan>: <gold>, <until>: <2020-12-01T00:00:00Z>, <note>: <ticket 815>}`,
	`      - <key>: <bob>`,
	`        <plan>: <blocked>`,
	`        <from>: <2030-12-01T00:00:00Z>`,
	`      - <prefix>: <acme:>`,
	`        <policies>: {minute: <sliding-log 6000/minute>}`,
	`      - {<key>: <carl>, <policies>: <unlimited>}`,
	`<slots>:`,
	`  ws:`,
	`    <plans>: {free: 3, gold: 30}`,
	`    <overrides>:`,
	`      - {<key>: <eve>, <slots>: 4}`,
	`      - {<prefix>: <team:>, <plan>: <gold>}`,
	`...`,
}

// canaries are keys as they are, also some that YAML or JSON make something else of.
var canaries = []string{"canary", "canary@example.org", "canary: x", "*canary", "&canary", "!canary", "<<canary", "{canary", "[canary", "\"canary", "canary\"", "'canary", "%canary", "canary\\q", "- canary", "canary #", "@canary", "`canary", "canary\t:", "!!canary x", "? canary"}

// plant returns the document with the canary in the place of one scalar.
func plant(r *rand.Rand) []string {
	text := strings.Join(canaryLines, "\n")
	places := strings.Count(text, "<") // none of the scalars has one
	at := r.IntN(places)
	canary := canaries[r.IntN(len(canaries))]
	var b strings.Builder
	for i := 0; ; i++ {
		before, rest, found := strings.Cut(text, "<")
		b.WriteString(before)
		if !found {
			return strings.Split(b.String(), "\n")
		}
		word, after, _ := strings.Cut(rest, ">")
		if i == at {
			word = canary
		}
		switch {
		case !strings.ContainsAny(word, " @:#{[*&!%`\"'\\\t") || i == at && r.IntN(2) == 0:
			b.WriteString(word)
		case r.IntN(2) == 0:
			b.WriteString("'" + strings.ReplaceAll(word, "'", "''") + "'")
		default:
			b.WriteString(quoted(word))
		}
		text = after
	}
}

// mutate makes a mistake in the lines.
func mutate(r *rand.Rand, lines []string) []string {
	i := r.IntN(len(lines))
	edit := func(old, with string) { lines[i] = strings.Replace(lines[i], old, with, 1) }
	switch r.IntN(15) {
	case 0:
		lines[i] = strings.Repeat(" ", r.IntN(9)) + strings.TrimLeft(lines[i], " ")
	case 1: // all below too
		by := 1 + r.IntN(4)
		for j := i; j < len(lines)-1; j++ {
			if strings.HasPrefix(lines[j], strings.Repeat(" ", by)) {
				lines[j] = lines[j][by:]
			}
		}
	case 2:
		lines[i] = "  " + lines[i]
	case 3:
		lines = slices.Delete(lines, i, i+1)
	case 4:
		lines = slices.Insert(lines, r.IntN(len(lines)), lines[i])
	case 5:
		edit("- ", "")
	case 6:
		edit("- {", "{")
	case 7:
		edit("{", "[")
		edit("}", "]")
	case 8:
		edit(": ", ":")
	case 9:
		edit(": ", " ")
	case 10:
		edit(", ", " ")
	case 11:
		edit(": ", ": *")
	case 12:
		edit(": ", ": &a ")
	case 13:
		edit(": ", ": {<<: ")
	default: // a key without its field: - anna: gold
		for _, field := range []string{"key: ", "prefix: ", "plan: "} {
			edit(field, "")
		}
	}
	if len(lines) == 0 {
		return []string{"..."}
	}
	return lines
}

// FuzzKeysInFaults plants a key anywhere in a document, then makes mistakes in it.
func FuzzKeysInFaults(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		for range 50 {
			lines := plant(r)
			for range r.IntN(4) {
				lines = mutate(r, lines)
			}
			text := strings.Join(lines, "\n")
			look(t, text, yamldoc.Decode)
			if asJSON, ok := jsonOf(text); ok {
				look(t, asJSON, nil)
				cut := r.IntN(len(asJSON))
				look(t, asJSON[:cut]+asJSON[min(cut+1+r.IntN(3), len(asJSON)):], nil)
			}
		}
	})
}

// look looks for the canary in all that is told of a document.
func look(t *testing.T, text string, decode limits.Decoder) {
	t.Helper()
	d, err := limits.Parse([]byte(text), decode)
	if err != nil {
		for _, verb := range []string{"%v", "%+v", "%#v", "%q"} {
			if told := fmt.Sprintf(verb, err); strings.Contains(told, "canary") {
				t.Fatalf("%s\nof\n%s", told, text)
			}
		}
		return
	}
	if told := d.Notes().Error(); strings.Contains(told, "canary") {
		t.Fatalf("a note: %s\nof\n%s", told, text)
	}
}

// jsonOf returns the JSON of what YAML makes of a text.
func jsonOf(text string) (string, bool) {
	n, err := yamldoc.Decode([]byte(text))
	if err != nil {
		return "", false
	}
	var b strings.Builder
	writeJSON(&b, &n)
	return b.String(), true
}

func writeJSON(b *strings.Builder, n *limits.Node) {
	switch n.Kind {
	case limits.List, limits.Map:
		b.WriteByte("[{"[n.Kind-limits.List])
		for i := range n.Values {
			if i > 0 {
				b.WriteByte(',')
			}
			if n.Kind == limits.Map {
				k := n.Keys[i]
				k.Kind = limits.String
				writeJSON(b, &k)
				b.WriteByte(':')
			}
			writeJSON(b, &n.Values[i])
		}
		b.WriteByte("]}"[n.Kind-limits.List])
	case limits.Number:
		b.WriteString(n.Text)
	default:
		b.WriteString(quoted(n.Text))
	}
}

func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}
