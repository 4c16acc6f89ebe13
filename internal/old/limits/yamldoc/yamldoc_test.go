package yamldoc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
)

const document = `# The limits of the API.
limits:
  api:
    default: free
    plans:
      free:  {minute: sliding-log 60/minute, day: fixed-window 1000/day}
      gold:  {minute: sliding-log 600/minute, day: fixed-window 50000/day}
      staff: unlimited
    overrides:
      - {key: user-42, plan: gold, until: 2099-12-01T00:00:00Z, note: ticket 815}
      - {prefix: "acme:", policies: {minute: sliding-log 6000/minute}}   # over the key's plan
      - {key: user-43, plan: blocked}
slots:
  ws: {plans: {free: 3, gold: 20}}
...
`

const same = `{"slots": {"ws": {"plans": {"gold": 20, "free": 3}}}, "limits": {"api": {"default": "free", "plans": {
	"staff": "unlimited",
	"gold": {"day": "fixed-window 50000/day", "minute": "sliding-log 600/60s"},
	"free": {"day": "fixed-window 1000/day", "minute": "sliding-log 60/minute"}},
	"overrides": [
		{"key": "user-43", "plan": "blocked"},
		{"prefix": "acme:", "policies": {"minute": "sliding-log 6000/minute"}},
		{"key": "user-42", "plan": "gold", "until": "2099-12-01T00:00:00Z", "note": "ticket 815"}]}}}`

// What is wrong is told with its place.
func TestFaults(t *testing.T) {
	plans := "limits:\n  api:\n    plans: "
	for name, c := range map[string]struct{ text, want string }{
		"only the end":  {"...\n", "the document is empty"},
		"only comments": {"# nothing\n...\n", "the document is empty"},
		"null":          {"---\n...\n", "line 2, column 1: the document is null, not a map"},
		"word":          {plans + "{free: sliding-log 60/mintue}\n...", `line 3, column 31: limits.api.plans.free: "sliding-log 60/mintue": "mintue" is not a period`},
		"quoted word":   {plans + "{free: 'sliding-log 60/mintue'}\n...", `line 3, column 32: limits.api.plans.free`},
		"folded":        {plans + "\n      free: >\n        sliding-log 60/mintue\n...", `line 4, column 13: limits.api.plans.free`},
		"twice":         {plans + "{free: unlimited, free: blocked}\n...", `line 3, column 30: limits.api.plans: the name is there twice, here and in line 3`},
		"number":        {plans + "{free: unlimited}\n    overrides: [{key: 42, plan: free}]\n...", `line 4, column 23: limits.api.overrides[0].key: it is a number, not a string: quote it`},
		"yes":           {plans + "{free: unlimited}\n    overrides: [{key: Yes, plan: free}]\n...", `line 4, column 23: limits.api.overrides[0].key: it is a boolean, not a string: quote it`},
		"null key":      {plans + "{free: unlimited}\n    overrides: [{key: ~, plan: free}]\n...", `it is null, not a string: quote it`},
		"name":          {plans + "{429: unlimited}\n...", `line 3, column 13: limits.api.plans: a name is a number, not a string: quote it`},
		"name off":      {plans + "{off: unlimited}\n...", `a name is a boolean, not a string: quote it`},
		"complex name":  {plans + "{[a]: unlimited}\n...", `a name is a list, not a string`},
		"octal":         {"slots:\n  ws: {plans: {a: 0o17}}\n...", `line 2, column 19: slots.ws.plans[0]: it must be a whole number`},
		"underscore":    {"slots:\n  ws: {plans: {a: 1_000}}\n...", `slots.ws.plans[0]: it`},
		"float":         {"slots:\n  ws: {plans: {a: 1e3}}\n...", `slots.ws.plans[0]: it must be a whole number`},
		"alias":         {plans + "{a: &x unlimited, b: *x}\n    default: a\n...", `line 3, column 16: anchors are not allowed`},
		"alias itself":  {plans + "{a: &x unlimited, b: *x}\n    default: a\n...", `line 3, column 33: aliases are not allowed: write what it stands for`},
		"merge":         {plans + "{<<: {a: unlimited}}\n...", `line 3, column 13: merge keys are not allowed`},
		"tag":           {plans + "{a: !!str unlimited}\n...", `line 3, column 16: tags are not allowed`},
		"own tag":       {plans + "!x {a: unlimited}\n...", `line 3, column 12: tags are not allowed`},
		"two documents": {plans + "{a: unlimited}\n---\nlimits: {}\n...", `there is a second document: write one`},
		"deep":          {strings.Repeat("- ", 65) + "a\n...", `line 1, column 129: it is nested deeper than 64 levels`},
		"syntax":        {"limits:\n  api: {\n...\n", `line 3, column 1: `},
		"tab":           {"limits:\n\tapi: 1\n...\n", `line 2, column 1: found character that cannot start any token`},
		"no end":        {plans + "{a: unlimited}\n# ...\n", `line 3, column 1: the last line is not "..."`},
		"not UTF-8":     {"limits: \xff\n...", `invalid leading UTF-8 octet`},
		"JSON":          {`{"limits": `, `line 1, column 12: the document ends before it is whole`},
		"unknown":       {"limits:\n  api:\n    plan: {a: unlimited}\n...", `line 3, column 5: limits[0]: unknown field: one of default, plans, overrides`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := limits.Parse([]byte(c.text), yamldoc.Decode)
			var faults limits.Faults
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &faults) {
				t.Errorf("%v, not %s", err, c.want)
			}
		})
	}
}

// The last line may have a comment, and only comments may follow it.
func TestTheLastLine(t *testing.T) {
	text := strings.TrimSuffix(document, "...\n")
	for end, ok := range map[string]bool{
		"...": true, "...\n": true, "... \t\r\n": true, "...   # the end\n": true, "...\n\n# the end\n": true,
		"....\n": false, "...#\n": false, "... a\n": false, " ...\n": false, "..\n": false, "# ...\n": false, "...\na: 1\n": false,
	} {
		if _, err := limits.Parse([]byte(text+end), yamldoc.Decode); (err == nil) != ok {
			t.Errorf("%q: %v", end, err)
		}
	}
}

// Whatever comes before the last line is a fault if the document is cut off there.
func TestEveryCutIsAFault(t *testing.T) {
	for i := range document[:len(document)-2] {
		if _, err := limits.Parse([]byte(document[:i]), yamldoc.Decode); err == nil {
			t.Errorf("the first %d bytes are a document", i)
		}
	}
}

// Documents that would take much time or memory do not.
func TestBombs(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [" + strings.Repeat("x, ", 8) + "x]\n")
	for i := range 9 {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), ", "))
	}
	for name, text := range map[string]string{
		"laughs":   laughs.String() + "...\n",
		"brackets": strings.Repeat("[", limits.MaxBytes-10) + "\n...",
		"dashes":   strings.Repeat("- ", limits.MaxBytes/2-10) + "\n...",
		"items":    strings.Repeat("-\n", limits.MaxBytes/2-10) + "...",
		"commas":   "[" + strings.Repeat("a,", limits.MaxBytes/2-10) + "]\n...",
		"levels":   strings.Repeat("a:\n ", 1000) + "\n...",
		"quoted":   "a: \"" + strings.Repeat("\\n", limits.MaxBytes/2-20) + "\"\n...",
		"plain":    "a: " + strings.Repeat("x ", limits.MaxBytes/2-20) + "\n...",
		"comments": strings.Repeat("#\n", limits.MaxBytes/2-10) + "...",
		"huge":     strings.Repeat(" ", 100<<20) + "x",
	} {
		if _, err := limits.Parse([]byte(text), yamldoc.Decode); err == nil {
			t.Errorf("%s: no error", name)
		} else if len(err.Error()) > 1<<16 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// Whatever the text, decoding ends without a panic, and within bounds.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(document))
	f.Add([]byte(same))
	f.Add([]byte("a: &b [*b, <<, !!str x, ? {}]\n...\n"))
	f.Add([]byte("%YAML 1.2\n---\n- |\n  a\n- >-\n  b\n...\n# end\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := yamldoc.Decode(text)
		if err != nil {
			return
		}
		if depth, nodes := size(&n); depth > limits.MaxDepth+1 || nodes > limits.MaxNodes {
			t.Errorf("%d levels, %d nodes", depth, nodes)
		}
		if _, err := limits.Parse(text, yamldoc.Decode); err == nil && !strings.HasPrefix(strings.TrimSpace(string(text)), "{") && !strings.Contains(string(text), "...") {
			t.Error("there is no end")
		}
	})
}

func size(n *limits.Node) (depth, nodes int) {
	nodes = 1
	for _, all := range [][]limits.Node{n.Keys, n.Values} {
		for i := range all {
			d, c := size(&all[i])
			depth, nodes = max(depth, d), nodes+c
		}
	}
	return depth + 1, nodes
}
