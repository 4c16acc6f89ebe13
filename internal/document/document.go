// Package document reads documents of limits: what they say, what is wrong with them, and what changes between two.
package document

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/plans"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/yamltree"
)

// A Document is a valid document. It does not change.
type Document struct {
	Version  string // of its text
	Limits   map[string]*Limit
	Slots    map[string]*Limit // whose plans have numbers
	Warnings Faults
}

// A Limit is a limit, or slots.
type Limit struct {
	Name      string
	Slots     bool
	Default   string
	Plans     map[string]*Plan
	Overrides []*Override

	place yamltree.Place
	own   map[string]*Plan // by their texts, each once: large documents repeat few
}

// A Plan is what a plan, or an override of its own, gives: policies, or a number of slots.
type Plan struct {
	Policies []backend.Policy
	Prepared *backend.Policies // as they are asked
	Slots    int64

	place yamltree.Place
}

// An Override gives some keys another plan, or one of their own.
type Override struct {
	Kind        string // key, prefix or network
	Value       string
	Plan        string // "" if it is of its own
	Is          *Plan
	From, Until time.Time
	Note        string

	network netip.Prefix
	place   yamltree.Place
}

// Version returns the version of a text: the first 12 digits of its SHA-256.
func Version(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// Faults are all mistakes in a document, each at its place.
type (
	Fault  = yamltree.Fault
	Faults = yamltree.Faults
)

// MaxBytes is the size of the largest text.
const MaxBytes = yamltree.MaxBytes

// A reader collects what is wrong.
type reader struct{ *yamltree.Reader }

// Parse reads a text in YAML or JSON. The error is Faults, with all mistakes.
func Parse(text []byte) (*Document, error) {
	r := &reader{new(yamltree.Reader)}
	d := new(Document)
	if root := r.Load(text); root != nil {
		fields := r.Fields(root, "the document", "limits", "slots", "$schema")
		d = Parts(r.Reader, fields["limits"], fields["slots"])
		r.Text(fields["$schema"], "the schema")
		if len(d.Limits)+len(d.Slots)+len(r.Faults) == 0 {
			r.Fault(root, "the document has no limits and no slots")
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	d.Version, d.Warnings = Version(text), r.Warnings
	return d, nil
}

// Parts reads the limits and slots of a document that also has other fields. Either may be nil. What is wrong is in the
// reader.
func Parts(from *yamltree.Reader, limits, slots *yaml.Node) *Document {
	r := &reader{from}
	d := &Document{Limits: map[string]*Limit{}, Slots: map[string]*Limit{}}
	r.Each(limits, "limits", "a name", func(k, v *yaml.Node) { d.Limits[k.Value] = r.limit(k, v, false) })
	r.Each(slots, "slots", "a name", func(k, v *yaml.Node) { d.Slots[k.Value] = r.limit(k, v, true) })
	return d
}

// limit reads one limit, or slots of one name.
func (r *reader) limit(k, n *yaml.Node, slots bool) *Limit {
	l := &Limit{Name: k.Value, Slots: slots, Plans: map[string]*Plan{}, place: yamltree.PlaceOf(k), own: map[string]*Plan{}}
	if err := backend.CheckName(l.Name); err != nil {
		r.Fault(k, "%v", err)
	}
	fields := r.Fields(n, "a limit", "default", "plans", "overrides")
	r.Each(fields["plans"], "plans", "the name of a plan", func(k, v *yaml.Node) {
		if !plain(k.Value) {
			r.Fault(k, "the name of a plan has 1 to 64 letters, digits, - and _")
		}
		l.Plans[k.Value] = r.plan(l, v)
	})
	switch v := fields["default"]; {
	case v != nil:
		if l.Default = r.Text(v, "default"); l.Default != "" && l.Plans[l.Default] == nil {
			r.Fault(v, "there is no such plan")
		}
	case len(l.Plans) == 1:
		for l.Default = range l.Plans {
		}
	case len(l.Plans) > 1:
		r.Fault(k, "it needs a default: the plan of requests that name none, usually the smallest")
	case n.Kind == yaml.MappingNode:
		r.Fault(k, "it has no plans")
	}
	if r.Is(fields["overrides"], "overrides", "a list") {
		r.overrides(l, fields["overrides"])
	}
	r.strangers(l)
	l.own = nil
	return l
}

// plain reports whether a name can be one of a plan.
func plain(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// plan reads the policies of a plan, or its number of slots.
func (r *reader) plan(l *Limit, n *yaml.Node) *Plan {
	p := &Plan{place: yamltree.PlaceOf(n)}
	if n.Kind == 0 {
		return p
	}
	if l.Slots {
		p.Slots = r.slots(n)
		return p
	}
	places, before := []*yaml.Node{n}, len(r.Faults)
	switch yamltree.Kind(n) {
	case "a string":
		p.Policies = []backend.Policy{r.policy(n, "")}
	case "a map":
		places = places[:0]
		r.Each(n, "policies", "the name of a policy", func(k, v *yaml.Node) {
			if err := backend.CheckName(k.Value); err != nil {
				r.Fault(k, "%v", err)
			}
			p.Policies, places = append(p.Policies, r.policy(v, k.Value)), append(places, v)
		})
	default:
		r.Fault(n, "it is %s, not a policy, such as sliding-log 60/minute, nor a map of them", yamltree.Kind(n))
	}
	if len(r.Faults) > before {
		return p
	}
	text := planText(l, p)
	if same := l.own[text]; same != nil {
		return same
	}
	p.Prepared = backend.Prepare(l.Name, p.Policies, func(i int, err error) {
		at := n
		if i >= 0 {
			at = places[i]
		}
		r.Fault(at, "%v", err)
	})
	if len(r.Faults) == before {
		l.own[text] = p
	}
	return p
}

func (r *reader) slots(n *yaml.Node) int64 {
	i, err := strconv.ParseInt(n.Value, 10, 64)
	switch {
	case yamltree.Kind(n) == "a string" && n.Value == "unlimited":
		return step.MaxInt
	case yamltree.Kind(n) == "a string" && n.Value == "blocked":
		return 0
	case yamltree.Kind(n) != "a number":
		r.Fault(n, "it is %s, not a number of slots, unlimited or blocked", yamltree.Kind(n))
	case err != nil || i < 0 || i > step.MaxInt || strconv.FormatInt(i, 10) != n.Value:
		r.Fault(n, "it must be a whole number from 0 to 2^53-1")
	}
	return i
}

// policy reads one policy. What does not begin with an algorithm is not repeated: it may be a key.
func (r *reader) policy(n *yaml.Node, name string) backend.Policy {
	if !r.Is(n, "a policy", "a string") {
		return backend.Policy{}
	}
	numbers, err := step.Parse(n.Value)
	words := strings.Fields(n.Value)
	switch {
	case len(words) == 0 || !slices.Contains(step.Words(), words[0]):
		r.Fault(n, "it does not begin with an algorithm: one of %s", strings.Join(step.Words(), ", "))
	case err != nil:
		r.Fault(n, "%s: %v", yamltree.Short(n.Value), err)
	}
	return backend.Policy{Name: name, Numbers: numbers}
}

// strangers warns of plans of which no policy counts what one of the default plan counts, so that a key which
// changes its plan starts fresh.
func (r *reader) strangers(l *Limit) {
	standard := l.Plans[l.Default]
	for name, p := range l.Plans {
		if standard == nil || p == standard || constant(p.Policies) || constant(standard.Policies) {
			continue
		}
		if !slices.ContainsFunc(p.Policies, func(p backend.Policy) bool {
			return slices.ContainsFunc(standard.Policies, func(q backend.Policy) bool {
				return p.Name == q.Name && p.Kind == q.Kind && p.Period == q.Period &&
					(p.Kind != step.Calendar || p.Identity() == q.Identity())
			})
		}) {
			r.Warn(p.place, "plan %s has no policy that counts as one of the default plan does, with its name, algorithm, "+
				"period, first day and zone: keys that change between them start fresh", name)
		}
	}
}

// constant reports whether policies count nothing.
func constant(all []backend.Policy) bool { return len(all) == 0 || all[0].Constant() }

// Prepare asks a store about all policies. The error is Faults.
func (d *Document) Prepare(ask func([]step.Policy) error) error {
	r := &reader{new(yamltree.Reader)}
	for _, l := range d.Limits {
		given := map[*Plan]bool{} // each once
		for _, p := range l.Plans {
			given[p] = true
		}
		for _, o := range l.Overrides {
			given[o.Is] = true
		}
		for p := range given {
			if err := ask(p.Prepared.List); err != nil {
				r.At(p.place, "%v", err)
			}
		}
	}
	return r.Err()
}

// Tables returns the document as limiters and slots look it up.
func (d *Document) Tables() (limits map[string]*plans.Table[*backend.Policies], slots map[string]*plans.Table[int64]) {
	limits, slots = map[string]*plans.Table[*backend.Policies]{}, map[string]*plans.Table[int64]{}
	for name, l := range d.Limits {
		limits[name] = table(l, func(p *Plan) *backend.Policies { return p.Prepared })
	}
	for name, l := range d.Slots {
		slots[name] = table(l, func(p *Plan) int64 { return p.Slots })
	}
	return limits, slots
}

func table[T any](l *Limit, value func(*Plan) T) *plans.Table[T] {
	all := make(map[string]T, len(l.Plans))
	for name, p := range l.Plans {
		all[name] = value(p)
	}
	t := plans.NewTable(all[l.Default], all)
	for _, o := range l.Overrides {
		v, from, until := value(o.Is), micros(o.From), micros(o.Until)
		switch o.Kind {
		case "key":
			t.Key(o.Value, v, from, until)
		case "network":
			t.Network(o.network, v, from, until)
		case "prefix":
			t.Prefix(o.Value, v, from, until)
		}
	}
	return t
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
