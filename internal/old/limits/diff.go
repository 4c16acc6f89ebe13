package limits

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/hidden"
)

// A Diff has the changes when a document takes the place of another.
type Diff struct {
	From, To string   // versions
	Changes  []Change // in the order of the names
}

// A Change is one thing that changes.
type Change struct {
	Limit string // the name of the limit, or of the slots
	Slots bool

	// What names the change, such as "plan gold, minute". Was and Is are the old and the new value:
	// empty for an addition or a removal. None of them has a key: that is in Key.
	What, Was, Is string

	// Lost reports that usage is lost: from then on, each key is counted anew.
	Lost bool

	// Key is the key or the prefix of an override that changes. Line is its line in the
	// new document, or in the old one if it is gone.
	Key  string `json:"-"`
	Line int
}

// Format implements [fmt.Formatter]: all verbs print the change without the Key, and %v and %s its
// String.
func (c Change) Format(s fmt.State, verb rune) {
	type plain Change
	if c.Key != "" {
		c.Key = hidden.Mark
	}
	if verb == 's' || verb == 'v' && !s.Flag('#') {
		_, _ = fmt.Fprint(s, c.String())
		return
	}
	hidden.Print(s, verb, plain(c))
}

// String describes the change, without the key.
func (c Change) String() string {
	kind := "limit"
	if c.Slots {
		kind = "slots"
	}
	s := fmt.Sprintf("%s %s: %s", kind, short(c.Limit), c.What)
	switch {
	case c.Was == "" && c.Is != "":
		s += ": new, " + c.Is
	case c.Was != "" && c.Is == "":
		s += ": gone, was " + c.Was
	case c.Was != "":
		s += ": " + c.Was + " -> " + c.Is
	}
	if c.Line > 0 {
		s += fmt.Sprintf(" (line %d)", c.Line)
	}
	if c.Lost {
		s += "; usage is lost"
	}
	return s
}

// String lists the changes, a line each, without keys.
func (d Diff) String() string {
	var b strings.Builder
	for _, c := range d.Changes {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

// Lost returns the changes that lose usage.
func (d Diff) Lost() []Change {
	var lost []Change
	for _, c := range d.Changes {
		if c.Lost {
			lost = append(lost, c)
		}
	}
	return lost
}

// Compare returns the changes when a document takes the place of another. It judges losses for each
// plan and each override. Usage is lost if a policy of a key ends and another begins. A policy with
// another algorithm or another name is another one. Overrides that are over do not count.
func Compare(from, to *Document) Diff {
	d := differ{now: time.Now()}
	d.sections(from.limits, to.limits)
	d.sections(from.slots, to.slots)
	return Diff{from.version, to.version, d.changes}
}

// A differ collects changes.
type differ struct {
	changes []Change
	now     time.Time
}

func (d *differ) sections(from, to map[string]*section) {
	names := slices.Collect(maps.Keys(from))
	for name := range to {
		if from[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		was, is := from[name], to[name]
		switch {
		case was == nil:
			d.add(is, Change{What: "all", Is: plansText(is)})
		case is == nil:
			d.add(was, Change{What: "all", Was: plansText(was)})
		default:
			d.section(was, is)
		}
	}
}

func (d *differ) add(s *section, c Change) {
	c.Limit, c.Slots = s.name, s.slots
	d.changes = append(d.changes, c)
}

// plansText names the plans of a section.
func plansText(s *section) string { return "plans " + strings.Join(s.planNames(), ", ") }

func (d *differ) section(was, is *section) {
	if was.standard != is.standard {
		d.add(is, Change{What: wordDefault, Was: was.standard, Is: is.standard})
	}
	names := slices.Collect(maps.Keys(was.plans))
	for name := range is.plans {
		if was.plans[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		d.plan(was, is, "plan "+name, was.plans[name], is.plans[name])
	}
	d.overrides(was, is)
	if !is.slots {
		d.lost(was, is)
	}
}

// plan compares two plans, of which one may be nil.
func (d *differ) plan(was, is *section, what string, a, b *plan) {
	switch {
	case a == nil && b == nil:
	case a == nil || b == nil:
		d.add(is, Change{What: what, Was: planText(was, a), Is: planText(is, b)})
	case is.slots:
		if a.slots != b.slots {
			d.add(is, Change{What: what, Was: slotsText(a.slots), Is: slotsText(b.slots)})
		}
	default:
		before, after := texts(was, a.policies), texts(is, b.policies)
		for _, name := range slices.Sorted(maps.Keys(merged(before, after))) {
			if before[name] != after[name] {
				d.add(is, Change{What: what + ", " + name, Was: before[name], Is: after[name]})
			}
		}
	}
}

// texts returns the texts of policies by their names.
func texts(s *section, policies []policy) map[string]string {
	all := make(map[string]string, len(policies))
	for _, p := range policies {
		all[nameOf(s, p)] = p.Named("").String()
	}
	return all
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func planText(s *section, p *plan) string {
	switch {
	case p == nil:
		return ""
	case s.slots:
		return slotsText(p.slots)
	}
	return policiesText(p.policies)
}

func slotsText(n int64) string {
	var w writer
	w.number(n)
	return strings.Trim(w.String(), `"`)
}

func policiesText(policies []policy) string {
	var all []string
	for _, p := range policies {
		text := p.Named("").String()
		if p.Name() != "" {
			text = p.Name() + ": " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// overrides compares the overrides of two sections.
func (d *differ) overrides(was, is *section) {
	before, after := inOrder(was.overrides), inOrder(is.overrides)
	for len(before) > 0 || len(after) > 0 {
		var order int
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			a, b := before[0], after[0]
			if order = strings.Compare(a.kind, b.kind); order == 0 {
				order = strings.Compare(a.value, b.value)
			}
		}
		var c Change
		if order <= 0 {
			o := before[0]
			before = before[1:]
			c = Change{What: "override of a " + o.kind, Key: o.value, Line: o.place.line, Was: overrideText(o)}
		}
		if order >= 0 {
			o := after[0]
			after = after[1:]
			c = Change{What: "override of a " + o.kind, Key: o.value, Line: o.place.line, Was: c.Was, Is: overrideText(o)}
		}
		if c.Was != c.Is {
			d.add(is, c)
		}
	}
}

// overrideText describes what an override does.
func overrideText(o *override) string {
	var all []string
	if o.plan != "" {
		all = append(all, "plan "+o.plan)
	}
	if o.slots >= 0 {
		all = append(all, slotsText(o.slots))
	}
	if len(o.policies) > 0 {
		all = append(all, policiesText(o.policies))
	}
	if !o.from.IsZero() {
		all = append(all, "from "+o.from.Format(time.RFC3339Nano))
	}
	if !o.until.IsZero() {
		all = append(all, "until "+o.until.Format(time.RFC3339Nano))
	}
	if o.note != "" {
		all = append(all, fmt.Sprintf("note %q", o.note))
	}
	return strings.Join(all, ", ")
}
