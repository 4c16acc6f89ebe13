// Package document reads documents of limits: what they say, what is wrong with them, and what changes between two.
//
//	document.go  a text ─▶ a tree (package yamltree) ─▶ limits with plans ─▶ tables, for package plans
//	override.go  the overrides of a limit, and a hint for each that can never apply
//	diff.go      what changes if one document takes the place of another
//
// All mistakes of a document are found together, each with its place and with what to write. So a function that reads a
// part leaves its faults in the reader and goes on; whoever needs a part without faults counts them before and after.
//
// What a document is made into:
//
//	Document ─ Limits, Slots ─▶ Limit ─┬ Plans ─▶ Plan: policies, or a number of slots
//	           by their names          └ Overrides ─▶ Override: whom, when, and a plan
//
// A Document serves people: checks, comparisons, lists. Decisions look into the tables that Tables makes of it.
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

// A Document is a valid document. Only Attach changes it, before it is in force. Limits and slots are two spaces of
// names: a limit and slots may share one.
type Document struct {
	Version  string // of its text
	Limits   map[string]*Limit
	Slots    map[string]*Limit // whose plans have numbers
	Warnings Faults
}

// A Limit is a limit, or slots. It has a plan at least, of which one is the default.
type Limit struct {
	Name      string
	IsSlots   bool
	Default   string
	Plans     map[string]*Plan
	Overrides []*Override

	place       yamltree.Place
	plansByText map[string]*Plan // while it is read: large documents repeat few
}

// A Plan is what a plan, or an override of its own, gives: policies, or a number of slots.
type Plan struct {
	Policies []backend.Policy
	Prepared *backend.Policies // as they are asked
	Number   int64             // of slots

	place yamltree.Place
}

// An Override gives some keys another plan, or one of their own. From is the first instant at which it applies, and
// Until the first at which it does not any more; the zero time is no bound.
type Override struct {
	Kind        string // key, prefix or network
	Value       string
	PlanName    string // "" if the plan is of its own
	Plan        *Plan
	From, Until time.Time
	Note        string

	network netip.Prefix
	place   yamltree.Place
}

// Version returns the version of a text: the first 12 digits of its SHA-256. So two texts that say the same have two
// versions, and the same text pushed again is no change.
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
	// Where the tree itself is at fault there is no root, and nothing more to say.
	d := new(Document)
	root := r.Load(text)
	if root != nil {
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
	d.Version = Version(text)
	d.Warnings = r.Warnings
	return d, nil
}

// Parts reads the limits and slots of a document that also has other fields. Either may be nil. What is wrong is in the
// reader.
func Parts(from *yamltree.Reader, limits, slots *yaml.Node) *Document {
	r := &reader{from}
	d := &Document{Limits: map[string]*Limit{}, Slots: map[string]*Limit{}}
	r.Each(limits, "limits", "a name", func(name, value *yaml.Node) {
		d.Limits[name.Value] = r.limit(name, value, false)
	})
	r.Each(slots, "slots", "a name", func(name, value *yaml.Node) {
		d.Slots[name.Value] = r.limit(name, value, true)
	})
	return d
}

// limit reads one limit, or slots of one name.
func (r *reader) limit(name, node *yaml.Node, slots bool) *Limit {
	limit := &Limit{
		Name: name.Value, IsSlots: slots, Plans: map[string]*Plan{},
		place: yamltree.PlaceOf(name), plansByText: map[string]*Plan{},
	}
	if err := backend.CheckName(limit.Name); err != nil {
		r.Fault(name, "%v", err)
	}
	fields := r.Fields(node, "a limit", "default", "plans", "overrides")
	r.Each(fields["plans"], "plans", "the name of a plan", func(name, value *yaml.Node) {
		if !isPlanName(name.Value) {
			r.Fault(name, "the name of a plan has 1 to 64 letters, digits, - and _")
		}
		limit.Plans[name.Value] = r.plan(limit, value)
	})
	r.standard(limit, name, node, fields["default"])
	// Overrides name plans, so they come last.
	if r.Is(fields["overrides"], "overrides", "a list") {
		r.overrides(limit, fields["overrides"])
	}
	r.warnOfFreshStarts(limit)
	limit.plansByText = nil
	return limit
}

// standard reads which plan is the default. The only plan need not be named.
func (r *reader) standard(limit *Limit, name, node, standard *yaml.Node) {
	switch {
	case standard != nil:
		limit.Default = r.Text(standard, "default")
		if limit.Default != "" && limit.Plans[limit.Default] == nil {
			r.Fault(standard, "there is no such plan")
		}
	case len(limit.Plans) == 1:
		for only := range limit.Plans {
			limit.Default = only
		}
	case len(limit.Plans) > 1:
		r.Fault(name, "it needs a default: the plan of requests that name none, usually the smallest")
	case node.Kind == yaml.MappingNode:
		r.Fault(name, "it has no plans")
	}
}

// isPlanName reports whether a name can be one of a plan. Plans are in headers and in labels of metrics.
func isPlanName(name string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	return name != "" && len(name) <= 64 && strings.Trim(name, allowed) == ""
}

// plan reads the policies of a plan, or its number of slots. Equal plans of a limit are one, at the place where they
// stand first.
func (r *reader) plan(limit *Limit, node *yaml.Node) *Plan {
	plan := &Plan{place: yamltree.PlaceOf(node)}
	if node.Kind == 0 { // it was at fault
		return plan
	}
	if limit.IsSlots {
		plan.Number = r.slots(node)
		return plan
	}
	// A policy with a fault cannot be prepared, and would only give faults that follow from it.
	before := len(r.Faults)
	places := r.policies(plan, node)
	if len(r.Faults) > before {
		return plan
	}
	// To prepare policies takes time and memory, so equal ones of a limit are one plan.
	text := planText(limit, plan)
	same := limit.plansByText[text]
	if same != nil {
		return same
	}
	plan.Prepared = backend.Prepare(limit.Name, plan.Policies, func(i int, err error) {
		place := node
		if i >= 0 {
			place = places[i]
		}
		r.Fault(place, "%v", err)
	})
	if len(r.Faults) == before {
		limit.plansByText[text] = plan
	}
	return plan
}

// policies reads the policies of a plan: one as a text, or a map of them by their names. It returns where each is. The
// policy of a text has no name here: it gets that of the limit when it is prepared.
func (r *reader) policies(plan *Plan, node *yaml.Node) (places []*yaml.Node) {
	switch yamltree.Kind(node) {
	case "a string":
		plan.Policies = []backend.Policy{r.policy(node, "")}
		return []*yaml.Node{node}
	case "a map":
		r.Each(node, "policies", "the name of a policy", func(name, value *yaml.Node) {
			if err := backend.CheckName(name.Value); err != nil {
				r.Fault(name, "%v", err)
			}
			plan.Policies = append(plan.Policies, r.policy(value, name.Value))
			places = append(places, value)
		})
		return places
	}
	r.Fault(node, "it is %s, not a policy, such as sliding-log 60/minute, nor a map of them", yamltree.Kind(node))
	return nil
}

// slots reads a number of slots. Other ways to write it, such as 007 and 1e2, are read differently by others.
func (r *reader) slots(node *yaml.Node) int64 {
	// The number that is written again must be the same text: that leaves one way to write each.
	number, err := strconv.ParseInt(node.Value, 10, 64)
	isWhole := err == nil && number >= 0 && number <= step.MaxInt && strconv.FormatInt(number, 10) == node.Value
	kind := yamltree.Kind(node)
	switch {
	case kind == "a string" && node.Value == "unlimited":
		return step.MaxInt
	case kind == "a string" && node.Value == "blocked":
		return 0
	case kind != "a number":
		r.Fault(node, "it is %s, not a number of slots, unlimited or blocked", kind)
	case !isWhole:
		r.Fault(node, "it must be a whole number from 0 to 2^53-1")
	}
	return number
}

// policy reads one policy. What does not begin with an algorithm is not repeated: it may be a key.
func (r *reader) policy(node *yaml.Node, name string) backend.Policy {
	if !r.Is(node, "a policy", "a string") {
		return backend.Policy{}
	}
	// People paste a key to the wrong line, and faults are printed and logged.
	numbers, err := step.Parse(node.Value)
	words := strings.Fields(node.Value)
	switch {
	case len(words) == 0 || !slices.Contains(step.Words(), words[0]):
		r.Fault(node, "it does not begin with an algorithm: one of %s", strings.Join(step.Words(), ", "))
	case err != nil:
		r.Fault(node, "%s: %v", yamltree.Short(node.Value), err)
	}
	return backend.Policy{Name: name, Numbers: numbers}
}

// warnOfFreshStarts warns of plans of which no policy counts what one of the default plan counts, so that a key which
// changes its plan starts fresh. People hardly expect that: who is moved to a larger plan in the middle of a day would
// have the whole of it. It is a warning, since another algorithm may be what is wanted.
func (r *reader) warnOfFreshStarts(limit *Limit) {
	standard := limit.Plans[limit.Default]
	if standard == nil || isConstant(standard.Policies) {
		return
	}
	for _, name := range names(limit.Plans, nil) {
		plan := limit.Plans[name]
		if plan == standard || isConstant(plan.Policies) {
			continue
		}
		countsOn := slices.ContainsFunc(plan.Policies, func(policy backend.Policy) bool {
			return slices.ContainsFunc(standard.Policies, func(other backend.Policy) bool {
				return countAlike(policy, other)
			})
		})
		if !countsOn {
			r.Warn(plan.place, "plan %s has no policy that counts as one of the default plan does, with its name, "+
				"algorithm, period, first day and zone: keys that change between them start fresh", name)
		}
	}
}

// countAlike reports whether two policies count the same, as far as people see: a burst that differs is one that they
// want.
func countAlike(policy, other backend.Policy) bool {
	if policy.Name != other.Name || policy.Kind != other.Kind || policy.Period != other.Period {
		return false
	}
	return policy.Kind != step.Calendar || policy.Identity() == other.Identity()
}

// isConstant reports whether policies count nothing.
func isConstant(all []backend.Policy) bool { return len(all) == 0 || all[0].Constant() }

// Attach has a store prepare all policies, by its Prepare, which writes into them what it needs for its decisions. The
// error is Faults. The store may refuse a valid policy, as one under FailLocal whose share cannot be counted in memory:
// so the document is put in force only afterwards.
func (d *Document) Attach(prepare func([]step.Policy) error) error {
	r := &reader{new(yamltree.Reader)}
	for _, limit := range d.Limits {
		// Many overrides may have one plan.
		given := map[*Plan]bool{}
		for _, plan := range limit.Plans {
			given[plan] = true
		}
		for _, override := range limit.Overrides {
			given[override.Plan] = true
		}
		for plan := range given {
			if err := prepare(plan.Prepared.List); err != nil {
				r.At(plan.place, "%v", err)
			}
		}
	}
	return r.Err()
}

// Tables returns the document as limiters and slots look it up. They share nothing that changes with the document, so
// many goroutines may use both.
func (d *Document) Tables() (
	limits map[string]*plans.Table[*backend.Policies], slots map[string]*plans.Table[int64],
) {
	limits = map[string]*plans.Table[*backend.Policies]{}
	for name, limit := range d.Limits {
		limits[name] = table(limit, func(plan *Plan) *backend.Policies { return plan.Prepared })
	}
	slots = map[string]*plans.Table[int64]{}
	for name, limit := range d.Slots {
		slots[name] = table(limit, func(plan *Plan) int64 { return plan.Number })
	}
	return limits, slots
}

// table returns the table of one limit, with what a function says of each plan.
func table[T any](limit *Limit, valueOf func(*Plan) T) *plans.Table[T] {
	// The table has values of its own type, so that a request needs no look at plans.
	values := make(map[string]T, len(limit.Plans))
	for name, plan := range limit.Plans {
		values[name] = valueOf(plan)
	}
	found := plans.NewTable(values[limit.Default], values)
	for _, override := range limit.Overrides {
		value := valueOf(override.Plan)
		from := micros(override.From)
		until := micros(override.Until)
		switch override.Kind {
		case "key":
			found.Key(override.Value, value, from, until)
		case "network":
			found.Network(override.network, value, from, until)
		case "prefix":
			found.Prefix(override.Value, value, from, until)
		}
	}
	return found
}

// micros returns an instant in microseconds since 1970, or 0 for the zero time. That with which 1970 began is 1, as 0
// is no bound.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(t.UnixMicro(), 1)
}
