package limits

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// A Document is a valid document: limits, slots, and their plans and overrides. It does not
// change, and is safe for concurrent use.
type Document struct {
	limits, slots map[string]*section
	version       string
	notes         Faults
}

// A section is one limit, or slots of one name.
type section struct {
	name      string
	slots     bool
	standard  string // the plan that is the default
	plans     map[string]*plan
	overrides []override
	place     place
}

// A place is where something stands in a document.
type place struct {
	line, column int
	path         string
}

func (p place) fault(format string, args ...any) *Fault {
	return &Fault{p.line, p.column, p.path, fmt.Errorf(format, args...)}
}

// A plan is what applies to a key: policies, or how many slots.
type plan struct {
	policies []policy
	slots    int64
	place    place
}

// A policy stands at a place, also if core.Policy says what is wrong with it.
type policy struct {
	core.Policy

	place place
}

// What an override is for.
const (
	forKey    = "key"
	forPrefix = "prefix"
)

// An override applies to a key, or to all with a prefix.
type override struct {
	kind        string // forKey or forPrefix
	value       string
	plan        string // if not empty: instead of the request's
	policies    []policy
	id          string // the fingerprint of the policies
	slots       int64  // instead of the plan's; -1: none
	from, until time.Time
	note        string
	place       place
}

// The plans that every limit has. For slots, they are 0 and core.NoLimit.
const (
	planBlocked   = "blocked"
	planUnlimited = "unlimited"
)

// The names of a document.
const (
	wordLimits    = "limits"
	wordSlots     = "slots"
	wordSchema    = "$schema"
	wordDefault   = "default"
	wordPlans     = "plans"
	wordOverrides = "overrides"
	wordPlan      = "plan"
	wordPolicies  = "policies"
	wordFrom      = "from"
	wordUntil     = "until"
	wordNote      = "note"
)

// maxName is the length of the longest name of a limiter.
const maxName = 64

// Parse returns the document of a text, whose language the Decoder knows; nil is [DecodeJSON]. The
// error is [Faults], with all mistakes.
func Parse(text []byte, decode Decoder) (*Document, error) {
	if decode == nil {
		decode = DecodeJSON
	}
	switch {
	case len(text) > MaxBytes:
		return nil, Faults{{Err: fmt.Errorf("the document has %d bytes, more than %d", len(text), MaxBytes)}}
	case len(bytes.TrimSpace(text)) == 0:
		return nil, Faults{{Err: errors.New("the document is empty: a file that is missing or being written is not a document without limits")}}
	case bytes.HasPrefix(text, []byte("\xef\xbb\xbf")):
		return nil, Faults{{Line: 1, Column: 1, Err: errors.New("the document begins with a byte order mark: save it without")}}
	}
	root, err := decode(text)
	if err != nil {
		return nil, faultsOf(err)
	}
	r := reader{now: time.Now()}
	d := r.document(&root)
	if err := r.err(); err != nil {
		return nil, err
	}
	canonical, _ := d.MarshalJSON()
	sum := sha256.Sum256(canonical)
	d.version = hex.EncodeToString(sum[:6])
	d.notes = r.notes
	return d, nil
}

// Version returns 12 hexadecimal digits that are the same for documents which say the same,
// in whatever language and order.
func (d *Document) Version() string { return d.version }

// Format implements [fmt.Formatter]: it prints the version, not the content, which has keys.
// MarshalJSON is for that.
func (d *Document) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprintf(s, "limits of version %s", d.version)
}

// LogValue implements [slog.LogValuer], so that no log gets the text of MarshalJSON.
func (d *Document) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(d)) }

// Limits returns the names of the limits, in order.
func (d *Document) Limits() []string { return slices.Sorted(maps.Keys(d.limits)) }

// Slots returns the names of the slots, in order.
func (d *Document) Slots() []string { return slices.Sorted(maps.Keys(d.slots)) }

// Notes list the overrides of a valid document that are over, which are no faults, since a document
// does not become invalid while nobody touches it, and those whose key is a network, which apply to no address in it.
func (d *Document) Notes() Faults { return slices.Clone(d.notes) }

// A reader collects what is wrong.
type reader struct {
	now    time.Time
	faults Faults
	more   int // faults beyond maxFaults
	notes  Faults
}

func (r *reader) err() error {
	if len(r.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults, func(a, b *Fault) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	if r.more > 0 {
		r.faults = append(r.faults, &Fault{Err: fmt.Errorf("there are %d more faults", r.more)})
	}
	return r.faults
}

func (r *reader) fault(n *Node, path, format string, args ...any) {
	r.add(&Fault{n.Line, n.Column, path, fmt.Errorf(format, args...)})
}

func (r *reader) add(f *Fault) {
	if len(r.faults) == maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, f)
}

func placeOf(n *Node, path string) place { return place{n.Line, n.Column, path} }

// is reports whether the node is of that kind, which is otherwise a fault.
func (r *reader) is(n *Node, path string, kind Kind) bool {
	if n.Kind == kind {
		return true
	}
	hint := ""
	if kind == String && n.Kind < String {
		hint = ": quote it"
	}
	r.fault(n, path, "it is %v, not %v%s", n.Kind, kind, hint)
	return false
}

// each calls f for each entry of a map, with its index. A key that is there twice is a fault.
func (r *reader) each(n *Node, path string, f func(i int, k, v *Node)) {
	if !r.is(n, path, Map) {
		return
	}
	seen := make(map[string]int, len(n.Keys))
	for i := range n.Keys {
		k := &n.Keys[i]
		if k.Kind != String {
			r.fault(k, path, "a name is %v, not a string: quote it", k.Kind)
			continue
		}
		if line, twice := seen[k.Text]; twice {
			r.fault(k, path, "the name is there twice, here and in line %d", line)
			continue
		}
		seen[k.Text] = k.Line
		f(i, k, &n.Values[i])
	}
}

// short quotes a name, or the beginning of a long one.
func short(name string) string {
	if len(name) > maxName {
		return strconv.Quote(name[:maxName]) + "..."
	}
	return strconv.Quote(name)
}

// fields returns the values of a map whose keys must be among those known.
func (r *reader) fields(n *Node, path string, known ...string) map[string]*Node {
	fields := make(map[string]*Node, len(known))
	r.each(n, path, func(_ int, k, v *Node) {
		if !slices.Contains(known, k.Text) {
			r.fault(k, path, "unknown field: one of %s", strings.Join(known, ", "))
			return
		}
		fields[k.Text] = v
	})
	return fields
}

func (r *reader) document(n *Node) *Document {
	d := &Document{limits: make(map[string]*section), slots: make(map[string]*section)}
	if n.Kind != Map {
		r.fault(n, "", "the document is %v, not a map with %s or %s", n.Kind, wordLimits, wordSlots)
		return d
	}
	fields := r.fields(n, "", wordLimits, wordSlots, wordSchema)
	for _, all := range []struct {
		word  string
		into  map[string]*section
		slots bool
	}{{wordLimits, d.limits, false}, {wordSlots, d.slots, true}} {
		if v := fields[all.word]; v != nil {
			r.each(v, all.word, func(i int, k, v *Node) {
				path := within(all.word, k, i, isSection(v))
				if s := r.section(k, v, path, all.slots); s != nil {
					all.into[k.Text] = s
				}
			})
		}
	}
	if v := fields[wordSchema]; v != nil {
		r.is(v, wordSchema, String)
	}
	if len(d.limits)+len(d.slots) == 0 && len(r.faults) == 0 {
		r.fault(n, "", "the document has no limits and no slots")
	}
	return d
}

// within returns the path of an entry of a map. The entry has a name there only if it looks like
// what belongs there: a name that is wrongly indented, say, may be the key of an override.
func within(path string, k *Node, i int, belongs bool) string {
	switch {
	case !belongs:
		return path + "[" + strconv.Itoa(i) + "]"
	case plain(k.Text):
		return path + "." + k.Text
	}
	return path + "." + short(k.Text)
}

// isSection reports whether a value looks like a limit, or slots.
func isSection(n *Node) bool {
	return slices.ContainsFunc(n.Keys, func(k Node) bool { return k.Text == wordPlans })
}

// isPolicy reports whether a value looks like a policy: its first word is an algorithm.
func isPolicy(n *Node) bool {
	for first := range strings.FieldsSeq(n.Text) {
		return n.Kind == String && slices.Contains(firstWords(), first)
	}
	return false
}

// isPolicies reports whether a value looks like a policy, or a map of them.
func isPolicies(n *Node) bool {
	return isPolicy(n) || len(n.Keys) > 0 && !slices.ContainsFunc(n.Values, func(v Node) bool { return !isPolicy(&v) })
}

// plain reports whether a name can stand in a path without quotes.
func plain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// section reads one limit, or slots of one name.
func (r *reader) section(k, n *Node, path string, slots bool) *section {
	s := &section{name: k.Text, slots: slots, plans: make(map[string]*plan), place: placeOf(k, path)}
	before := len(r.faults) + r.more
	if err := core.CheckName(s.name); err != nil {
		r.add(s.place.fault("%v", err))
	}
	fields := r.fields(n, path, wordDefault, wordPlans, wordOverrides)
	if v := fields[wordPlans]; v == nil {
		if n.Kind == Map {
			r.fault(k, path, "it has no %s", wordPlans)
		}
	} else {
		r.each(v, path+"."+wordPlans, func(i int, k, v *Node) {
			r.plan(s, k, v, within(path+"."+wordPlans, k, i, !slots && plain(k.Text) && isPolicies(v)))
		})
		if v.Kind == Map && len(v.Keys) == 0 {
			r.fault(v, path+"."+wordPlans, "there is no plan")
		}
	}
	s.standard = r.standard(s, fields[wordDefault], path)
	if len(r.faults)+r.more == before && !slots {
		r.compatible(s)
	}
	if v := fields[wordOverrides]; v != nil {
		r.overrides(s, v, path+"."+wordOverrides)
		if len(r.faults)+r.more == before && !slots {
			r.fitCounts(s, r.fitOverrides(s, onPaper(s), onPaper(s)))
		}
	}
	if len(r.faults)+r.more > before {
		return nil
	}
	return s
}

// plan reads one plan of a section.
func (r *reader) plan(s *section, k, n *Node, path string) {
	if !plain(k.Text) {
		r.fault(k, path, "the name of a plan has 1 to %d letters, digits, - and _", maxName)
		return
	}
	if k.Text == planBlocked || k.Text == planUnlimited {
		r.fault(k, path, "every limit has a plan %s: give this one another name", k.Text)
		return
	}
	p := &plan{place: placeOf(n, path)}
	if s.slots {
		p.slots = r.number(n, path)
	} else {
		p.policies = r.policies(n, path)
	}
	s.plans[k.Text] = p
}

// standard returns the plan that applies to requests of none.
func (r *reader) standard(s *section, n *Node, path string) string {
	if n != nil {
		name := path + "." + wordDefault
		if !r.is(n, name, String) {
			return ""
		}
		if !s.has(n.Text) {
			r.fault(n, name, "there is no such plan")
		}
		return n.Text
	}
	least := ""
	for name, p := range s.plans {
		if least == "" || p.slots < s.plans[least].slots || p.slots == s.plans[least].slots && name < least {
			least = name
		}
	}
	if len(s.plans) > 1 && !s.slots {
		r.add(s.place.fault("it needs a %s: the plan of requests that name no plan, usually the smallest", wordDefault))
	}
	return least
}

// has reports whether there is such a plan.
func (s *section) has(name string) bool {
	return s.plans[name] != nil || name == planBlocked || name == planUnlimited
}

// number reads a number of slots.
func (r *reader) number(n *Node, path string) int64 {
	switch {
	case n.Kind == String && n.Text == planUnlimited:
		return core.NoLimit
	case n.Kind == String && n.Text == planBlocked:
		return 0
	case n.Kind == Number:
		if i, err := strconv.ParseInt(n.Text, 10, 64); err == nil && strconv.FormatInt(i, 10) == n.Text && 0 <= i && i <= core.NoLimit {
			return i
		}
		r.fault(n, path, "it must be a whole number from 0 to 2^53-1")
	default:
		r.fault(n, path, "it is %v, not a number of slots, %s or %s", n.Kind, planUnlimited, planBlocked)
	}
	return 0
}

// policies reads a policy, or several by their names. They are ordered by their windows,
// the shortest first.
func (r *reader) policies(n *Node, path string) []policy {
	if n.Kind == String {
		if p, ok := r.policy(n, path); ok {
			return []policy{p}
		}
		return nil
	}
	if n.Kind != Map {
		r.fault(n, path, "it is %v, not a policy, such as sliding-log 60/minute, nor a map of them", n.Kind)
		return nil
	}
	var all []policy
	ok := true
	r.each(n, path, func(i int, k, v *Node) {
		p, valid := r.policy(v, within(path, k, i, isPolicy(v)))
		p.Policy = p.Named(k.Text)
		if k.Text == "" {
			r.fault(k, path, "the name of a policy is empty")
			valid = false
		}
		all = append(all, p)
		ok = ok && valid
	})
	if len(n.Keys) == 0 {
		r.fault(n, path, "there is no policy: write %s or %s, or a policy", planUnlimited, planBlocked)
	}
	slices.SortFunc(all, func(a, b policy) int {
		return cmp.Or(cmp.Compare(a.Window(), b.Window()), strings.Compare(a.Name(), b.Name()))
	})
	if !ok {
		return nil
	}
	return all
}

// policy reads one policy. Its fault is where the word is that is wrong.
func (r *reader) policy(n *Node, path string) (policy, bool) {
	p := policy{place: placeOf(n, path)}
	if !r.is(n, path, String) {
		return p, false
	}
	if !isPolicy(n) { // what it is may be a key
		r.add(&Fault{n.Line, n.column(0), path, fmt.Errorf("it does not begin with an algorithm: one of %s", strings.Join(firstWords(), ", "))})
		return p, false
	}
	if err := p.UnmarshalText([]byte(n.Text)); err != nil {
		f := &Fault{n.Line, n.Column, path, err}
		var e *core.TextError
		if errors.As(err, &e) {
			f.Column, f.Err = n.column(e.Offset), fmt.Errorf("%q: %w", e.Text, e.Err)
		}
		r.add(f)
		return p, false
	}
	return p, true
}

// bare returns the policies as package core takes them.
func bare(all []policy) []core.Policy {
	policies := make([]core.Policy, len(all))
	for i, p := range all {
		policies[i] = p.Policy
	}
	return policies
}

// configFaults adds the faults that package core has found, at the places of the policies.
func (r *reader) configFaults(err error, at place, policies []policy) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			r.configFaults(e, at, policies)
		}
		return
	}
	var e *core.ConfigError
	if errors.As(err, &e) {
		err = e.Err
		found := e.Policy == ""
		for _, p := range policies {
			if e.Policy == strconv.Quote(p.Name()) {
				at, found = p.place, true
			}
		}
		if !found {
			err = fmt.Errorf("policy %s: %w", e.Policy, err)
		}
	}
	r.add(at.fault("%w", err))
}

// compatible checks that the usage of a key carries over from each plan to each other.
func (r *reader) compatible(s *section) {
	words := make(map[string]policy) // the first of each name
	standard := s.policiesOf(s.standard)
	r.fitPlans(s, onPaper(s))
	for _, name := range s.planNames() {
		p := s.plans[name]
		if strangers(s, standard, p.policies) {
			var names []string
			for _, q := range standard {
				names = append(names, strconv.Quote(nameOf(s, q)))
			}
			r.add(p.place.fault("none of the policies is named %s, so existing usage would be lost: give one that name", strings.Join(names, " or ")))
			continue
		}
		r.sameWords(s, p.policies, words)
	}
}

// strangers reports whether two plans have no policy's name in common although one has several, so
// that its names were chosen deliberately.
func strangers(s *section, a, b []policy) bool {
	if alone(a[0]) || alone(b[0]) || len(a) == 1 && len(b) == 1 {
		return false
	}
	return !slices.ContainsFunc(b, func(p policy) bool { return has(s, a, nameOf(s, p)) })
}

// has reports whether one of the policies has that name.
func has(s *section, policies []policy, name string) bool {
	return slices.ContainsFunc(policies, func(p policy) bool { return nameOf(s, p) == name })
}

// sameWords checks that policies of one name have one algorithm. words has those that came
// before.
func (r *reader) sameWords(s *section, policies []policy, words map[string]policy) {
	for _, p := range policies {
		name := nameOf(s, p)
		if alone(p) {
			continue
		}
		first, known := words[name]
		switch {
		case !known:
			words[name] = p
		case algorithm(p.Policy) != algorithm(first.Policy):
			r.add(p.place.fault("existing usage would be lost, as it counts otherwise than the %s in line %d: keep the algorithm, or give it another name",
				algorithm(first.Policy), first.place.line))
		}
	}
}

// nameOf returns the name under which usage is stored.
func nameOf(s *section, p policy) string {
	if p.Name() == "" {
		return s.name
	}
	return p.Name()
}

// algorithm returns the first word of a policy.
func algorithm(p core.Policy) string {
	word, _, _ := strings.Cut(p.Named("").String(), " ")
	return word
}

// firstWords returns the words that policies begin with.
var firstWords = sync.OnceValue(func() (words []string) {
	second := core.PerSecond(1)
	for _, p := range []core.Policy{
		core.TokenBucket(second, 1), core.SlidingLog(second), core.SlidingWindow(second), core.FixedWindow(second),
		core.MinInterval(time.Second), core.Unlimited(), core.Blocked(),
	} {
		words = append(words, algorithm(p))
	}
	return words
})

// alone reports whether a policy counts nothing.
func alone(p policy) bool {
	a := algorithm(p.Policy)
	return a == planBlocked || a == planUnlimited
}

// planNames returns the names of the plans in order, the default first.
func (s *section) planNames() []string {
	names := make([]string, 0, len(s.plans))
	for name := range s.plans {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if (a == s.standard) != (b == s.standard) {
			return map[bool]int{true: -1, false: 1}[a == s.standard]
		}
		return strings.Compare(a, b)
	})
	return names
}

// policiesOf returns the policies of a plan, also of one that every limit has.
func (s *section) policiesOf(name string) []policy {
	switch name {
	case planBlocked:
		return []policy{{Policy: core.Blocked()}}
	case planUnlimited:
		return []policy{{Policy: core.Unlimited()}}
	}
	return s.plans[name].policies
}

func (s *section) planPlace(name string) place {
	if p := s.plans[name]; p != nil {
		return p.place
	}
	return s.place
}

// slotsOf returns the number of slots of a plan.
func (s *section) slotsOf(name string) int64 {
	switch name {
	case planBlocked:
		return 0
	case planUnlimited:
		return core.NoLimit
	}
	return s.plans[name].slots
}

// over returns the policies of a plan with those of an override in their place.
func (s *section) over(plan string, policies []policy) []policy {
	return s.merged(s.policiesOf(plan), policies)
}

// merged returns policies with others in their place: policy by policy, and instead of all if one of the two counts
// nothing. But one with a name that is unlimited takes only that policy away, which a plan that is blocked does not have.
func (s *section) merged(below, policies []policy) []policy {
	switch {
	case len(policies) == 0 || lifts(policies) && algorithm(below[0].Policy) == planBlocked:
		return below
	case alone(below[0]) || alone(policies[0]) && !lifts(policies):
		return policies
	}
	var all []policy
	for _, p := range below {
		if !has(s, policies, nameOf(s, p)) {
			all = append(all, p)
		}
	}
	if !lifts(policies) || len(all) == 0 {
		all = append(all, policies...)
	}
	if len(all) > 1 {
		for i := range all { // one that has the limit's name must say so beside others
			all[i].Policy = all[i].Named(nameOf(s, all[i]))
		}
	}
	return all
}

// lifts reports whether an override's policies take the policy of that name away, and no other.
func lifts(policies []policy) bool {
	return len(policies) == 1 && policies[0].Name() != "" && algorithm(policies[0].Policy) == planUnlimited
}
