package headgated

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
)

// An Explanation says how a document treats a request.
type Explanation struct {
	// Routes has the first route that matches the request. If its path can be read in several ways,
	// it may have several, and the request is charged for all of them. What these have in common is
	// charged once.
	Routes []ExplainedRoute

	Err error // why the request is refused with 400 for its path, or its plans
}

// An ExplainedRoute is a route of an [Explanation].
type ExplainedRoute struct {
	Name    string // such as routes[0]
	Line    int
	Charges []Explained
}

// Explained is a charge of an [ExplainedRoute].
type Explained struct {
	Limit string
	Plan  string // that the request names; empty: none
	From  []string
	Key   string // empty if Err is not nil
	Err   error  // why the request has no key, and is refused with 400
	Units int64
	Rules []string // what applies to the key
}

// Refused reports whether the request is refused with 400: because it lacks a key, or for Err.
func (e *Explanation) Refused() bool {
	if e.Err != nil {
		return true
	}
	for _, t := range e.Routes {
		if slices.ContainsFunc(t.Charges, func(c Explained) bool { return c.Err != nil }) {
			return true
		}
	}
	return false
}

// String returns the explanation as the command prints it. It shows keys.
func (e *Explanation) String() string {
	if len(e.Routes) == 0 {
		return "no route matches: the request is admitted, and nothing is charged\n"
	}
	var b strings.Builder
	for _, t := range e.Routes {
		fmt.Fprintf(&b, "%s, line %d\n", t.Name, t.Line)
		if len(t.Charges) == 0 {
			b.WriteString("  it charges nothing\n")
		}
		for _, c := range t.Charges {
			c.write(&b)
		}
	}
	if e.Err != nil {
		fmt.Fprintf(&b, "refused with 400: %v\n", e.Err)
	}
	return b.String()
}

func (c *Explained) write(b *strings.Builder) {
	fmt.Fprintf(b, "  limit %s", c.Limit)
	if c.Plan != "" {
		fmt.Fprintf(b, ", plan %q", c.Plan)
	}
	fmt.Fprintf(b, ", %d units\n    key of %s: ", c.Units, strings.Join(c.From, ", "))
	if c.Err != nil {
		fmt.Fprintf(b, "none: %v\n", c.Err)
		return
	}
	fmt.Fprintf(b, "%q\n", c.Key)
	for _, rule := range c.Rules {
		fmt.Fprintf(b, "    %s\n", rule)
	}
}

// Explain says how the text of a document treats a request that a client makes to a proxy. The
// server gets it from there by /v1/auth. The client is the RemoteAddr. The error has all mistakes in
// the document. Nothing is charged.
func Explain(text []byte, r *http.Request, c Config) (*Explanation, error) {
	d, err := parse(text, false, new(core.MemoryStore).Backend(), rlsDefaults{})
	if err != nil {
		return nil, err
	}
	e, met := &Explanation{}, meet(d.routes, r)
	if _, at, err := asksOf(met); at == nil {
		e.Err = err
	}
	for _, m := range met {
		t := ExplainedRoute{Name: m.name, Line: m.line}
		for _, charge := range m.charges {
			one := Explained{Limit: charge.limit, From: charge.parts, Units: charge.units}
			if charge.plan != "" {
				one.Plan = r.Header.Get(charge.plan)
			}
			if one.Key, one.Err = charge.key(m.request); one.Err == nil {
				one.Rules = rulesOf(d.tables[charge.limit].Find(one.Plan, one.Key))
			}
			t.Charges = append(t.Charges, one)
		}
		e.Routes = append(e.Routes, t)
	}
	return e, nil
}

// rulesOf returns policies as they are printed.
func rulesOf(ps *backend.Policies) (rules []string) {
	for i := range ps.List {
		p := &ps.List[i]
		rules = append(rules, fmt.Sprintf("%s: %v", p.Name, p.Numbers))
	}
	return rules
}
