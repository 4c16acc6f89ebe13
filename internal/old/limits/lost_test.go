package limits_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
)

// What a change of one plan loses is said, and nothing else is.
func TestLost(t *testing.T) {
	const plan = `limit "api": plan free, what counts: `
	for _, c := range []struct {
		from, to string
		want     string // the change that loses, if any
	}{
		{`"sliding-log 60/minute"`, `"sliding-log 6/hour"`, ""},
		{`"sliding-log 60/minute"`, `"unlimited"`, ""},
		{`"blocked"`, `"sliding-log 60/minute"`, ""},
		{`"sliding-log 60/minute"`, `{"api": "sliding-log 6/hour"}`, ""},
		{`{"a": "sliding-log 60/minute"}`, `{"a": "sliding-log 60/minute", "b": "min-interval 1s"}`, ""},
		{`{"a": "sliding-log 60/minute", "b": "min-interval 1s"}`, `{"a": "sliding-log 60/minute"}`, ""},
		{`"sliding-log 60/minute"`, `"sliding-window 60/minute"`, plan + "api (sliding-log) -> api (sliding-window); usage is lost"},
		{`"sliding-log 60/minute"`, `{"m": "sliding-log 60/minute"}`, plan + "api (sliding-log) -> m (sliding-log); usage is lost"},
		{`{"a": "sliding-log 60/minute", "b": "min-interval 1s"}`, `{"a": "sliding-log 60/minute", "c": "min-interval 1s"}`, plan + "b (min-interval) -> c (min-interval); usage is lost"},
	} {
		if got := lost(t, free(c.from), free(c.to)); got != c.want {
			t.Errorf("%s -> %s: %q, not %q", c.from, c.to, got, c.want)
		}
	}
}

// lost returns the changes that lose usage.
func lost(t *testing.T, from, to string) string {
	t.Helper()
	var all []string
	for _, change := range limits.Compare(parse(t, from), parse(t, to)).Lost() {
		all = append(all, change.String())
	}
	return strings.Join(all, "; ")
}

// The shapes in which usage is lost although the name, or the policy, is still there elsewhere.
func TestLostSomewhere(t *testing.T) {
	document := func(standard, plans, overrides string) string {
		return `{"limits": {"api": {"default": "` + standard + `", "plans": {` + plans + `}, "overrides": [` + overrides + `]}}}`
	}
	const (
		one     = `"free": {"minute": "sliding-log 60/minute", "day": "fixed-window 9/day"}`
		renamed = `"free": {"mintue": "sliding-log 60/minute", "day": "fixed-window 9/day"}`
		gold    = `"gold": {"minute": "sliding-log 600/minute", "day": "fixed-window 90/day"}`
		trial   = `"trial": {"hour": "sliding-log 10/hour", "day": "fixed-window 9/day"}`
		own     = `{"key": "k", "policies": {"minute": "sliding-log 70/minute"}}`
	)
	for name, c := range map[string]struct {
		from, to string
		want     string // what of the change that loses, if any
	}{
		"a plan beside another": {document("free", one+","+gold, ""), document("free", renamed+","+gold, ""), "plan free, what counts"},
		"another plan":          {document("gold", one+","+gold, ""), document("gold", renamed+","+gold, ""), "plan free, what counts"},
		"beside an override":    {document("free", one, own), document("free", renamed, own), "plan free, what counts"},
		"an override": {document("free", one, own), document("free", one, strings.Replace(own, `{"minute"`, `{"mintue"`, 1)),
			"override of a key, what counts"}, // of requests of the plan unlimited
		"an override of its own": {document("free", one, `{"key": "k", "policies": {"x": "min-interval 1s"}}`), document("free", one, `{"key": "k", "policies": {"y": "min-interval 1s"}}`),
			"override of a key, what counts"},
		"of a prefix": {document("free", one, `{"prefix": "k", "policies": {"x": "min-interval 1s"}}`), document("free", one, `{"prefix": "k", "policies": {"y": "min-interval 1s"}}`),
			"override of a prefix, what counts"},
		"an override that counts otherwise": {document("free", one, `{"key": "k", "policies": {"x": "min-interval 1s"}}`), document("free", one, `{"key": "k", "policies": {"x": "fixed-window 1/hour"}}`),
			"override of a key, what counts"},
		"an override that falls back to a prefix": {document("free", one, `{"key": "kk", "policies": {"x": "min-interval 1s"}}, {"prefix": "k", "policies": {"y": "min-interval 1s"}}`),
			document("free", one, `{"prefix": "k", "policies": {"y": "min-interval 1s"}}`), "override of a key, what counts"},
		"a longer prefix": {document("free", one, `{"prefix": "k", "policies": {"x": "min-interval 1s"}}`),
			document("free", one, `{"prefix": "k", "policies": {"x": "min-interval 1s"}}, {"prefix": "kk", "policies": {"y": "min-interval 1s"}}`), "override of a prefix, what counts"},
		"to another plan":             {document("free", one+","+trial, ""), document("free", one+","+trial, `{"key": "k", "plan": "trial"}`), "override of a key, what counts"},
		"to a plan of the same names": {document("free", one+","+gold, ""), document("free", one+","+gold, `{"key": "k", "plan": "gold"}`), ""},
		"from nothing that counts":    {document("free", one+","+trial, `{"key": "k", "plan": "unlimited"}`), document("free", one+","+trial, ""), ""},
		"to nothing that counts":      {document("free", one+","+trial, ""), document("free", one+","+trial, `{"key": "k", "plan": "blocked"}`), ""},
		"an override that is gone":    {document("free", one, own), document("free", one, ""), ""},
		"that was over":               {document("free", one+","+trial, `{"key": "k", "plan": "trial", "until": "1999-01-01T00:00:00Z"}`), document("free", one+","+trial, ""), ""},
		"that was not":                {document("free", one+","+trial, `{"key": "k", "plan": "trial", "until": "2001-01-01T00:00:00Z"}`), document("free", one+","+trial, ""), "override of a key, what counts"},
		"another default":             {document("free", one+","+trial, ""), document("trial", one+","+trial, ""), "default, what counts"},
		"a plan that is gone":         {document("free", one+","+trial, ""), document("free", one, ""), "plan trial, what counts"},
		"a plan that is new":          {document("free", one, ""), document("free", one+","+trial, ""), ""},
		"together": {document("free", one, ""), document("free", `"free": {"day": "fixed-window 9/day"}`, `{"key": "k", "policies": {"x": "min-interval 1s"}}`),
			"override of a key, what counts"}, // the plan loses nothing, nor does the override
		"over blocked":              {document("blocked", one, own), document("blocked", one, strings.Replace(own, `{"minute"`, `{"x"`, 1)), "override of a key, what counts"}, // over free
		"of a plan that is blocked": {document("free", `"free": "blocked"`, `{"key": "k", "policies": {"x": "min-interval 1s"}}`), document("free", one, ""), "override of a key, what counts"},
		"that takes another policy away": {document("free", one, `{"key": "k", "policies": {"minute": "unlimited"}}`), document("free", one, `{"key": "k", "policies": {"day": "unlimited"}}`),
			"override of a key, what counts"},
		"that takes a policy away": {document("free", one, ""), document("free", one, `{"key": "k", "policies": {"day": "unlimited"}}`), ""},
		"a plan that only gains":   {document("free", one, own), document("free", strings.Replace(one, `"}`, `", "x": "min-interval 1s"}`, 1), own), ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { // it is the year 2000
				var got []string
				for _, change := range limits.Compare(parse(t, c.from), parse(t, c.to)).Lost() {
					got = append(got, change.What)
				}
				if s := strings.Join(got, "; "); s != c.want {
					t.Errorf("%q, not %q", s, c.want)
				}
				source := newBoard(c.from)
				store := memstore.New(memstore.Config{})
				b := openIn(t, store, false, source, limits.Config{})
				source.write(c.to)
				if err := b.Reload(t.Context()); (err != nil) != (c.want != "") {
					t.Errorf("a book says %v", err)
				}
			})
		})
	}
}

// Under a limit of 60, no 120 are admitted by a change of the name: without an Accept, the document
// does not apply, whatever other plans have the name.
func TestARenamedPolicyAdmitsNoMore(t *testing.T) {
	document := func(name string) string {
		return fmt.Sprintf(`{"limits": {"api": {"default": "free", "plans": {"free": {%q: "sliding-log 60/36500d", "day": "fixed-window 1000/36500d"},
			"gold": {"minute": "sliding-log 600/36500d", "day": "fixed-window 1000/36500d"}}}}}`, name)
	}
	source := newBoard(document("minute"))
	b := open(t, source, limits.Config{})
	admitted := 0
	for range 2 {
		for range 100 {
			if allow(t, limit(t, b, "api").For("free", "k"), "k").Allowed {
				admitted++
			}
		}
		source.write(document("mintue"))
		if err := b.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "minute (sliding-log) -> mintue (sliding-log); usage is lost") {
			t.Error(err)
		}
	}
	if admitted != 60 {
		t.Errorf("%d were admitted of 60", admitted)
	}
}

// Thousands of overrides that change over thousands of plans are compared in seconds.
func TestManyMovesAreCompared(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	n := 3000
	if testing.Short() {
		n /= 10
	}
	document := func(more string, override func(i int) string) *limits.Document {
		var plans, overrides []string
		for i := range n {
			plans = append(plans, fmt.Sprintf(`"p%d": {"c": "fixed-window 9/day", "a%d": "fixed-window 9/day"%s}`, i, i, strings.ReplaceAll(more, "I", fmt.Sprint(i))))
			overrides = append(overrides, fmt.Sprintf(`{"key": "k%d", %s}`, i, override(i)))
		}
		return parse(t, `{"limits": {"api": {"default": "p0", "plans": {`+strings.Join(plans, ", ")+`}, "overrides": [`+strings.Join(overrides, ", ")+`]}}}`)
	}
	plan := func(i int) string { return fmt.Sprintf(`"plan": "p%d"`, i) }
	both := func(i int) string {
		return fmt.Sprintf(`"plan": "p%d", "policies": {"z%d": "fixed-window 9/day"}`, i, i)
	}
	policies := func(i int) string { return fmt.Sprintf(`"policies": {"z%d": "fixed-window 9/day"}`, i) }
	named := func(i int) string { return fmt.Sprintf(`"policies": {"a%d": "fixed-window 9/day"}`, i) }
	for name, c := range map[string]struct {
		more     string
		from, to func(i int) string
	}{
		"plans":             {"", plan, both},
		"plans to policies": {"", plan, named},
		"policies to plans": {"", named, plan},
		"policies":          {`, "b": "fixed-window 9/day"`, func(int) string { return `"policies": {"c": "fixed-window 9/day"}` }, policies},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := document("", c.from), document(c.more, c.to)
			begin := time.Now()
			limits.Compare(from, to)
			t.Log(time.Since(begin))
			if d := time.Since(begin); d > 8*time.Second {
				t.Errorf("it takes %v", d)
			}
		})
	}
}
