package document

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
)

// A Change is one thing that changes between two documents.
type Change struct {
	Text  string // without keys
	Key   string // of an override: for the terminal of whoever has the documents, and for no log
	Fresh bool   // keys start fresh: what they have used under the old policy does not count under the new one
}

func (c Change) String() string { return c.Text }

const fresh = "; starts fresh: at most the old and the new limit together"

// Diff returns the changes if one document takes the place of another, which may be nil.
func Diff(from, to *Document) (changes []Change) {
	if from == nil {
		return nil
	}
	for _, kinds := range [][2]map[string]*Limit{{from.Limits, to.Limits}, {from.Slots, to.Slots}} {
		for _, name := range names(kinds[0], kinds[1]) {
			was, is := kinds[0][name], kinds[1][name]
			switch {
			case was == nil:
				changes = append(changes, Change{Text: title(is) + "new, plans " + strings.Join(names(is.Plans, nil), ", ")})
			case is == nil:
				changes = append(changes, Change{Text: title(was) + "gone"})
			default:
				changes = append(append(changes, plansDiff(was, is)...), overridesDiff(was, is)...)
			}
		}
	}
	return changes
}

func title(l *Limit) string {
	if l.Slots {
		return fmt.Sprintf("slots %q: ", l.Name)
	}
	return fmt.Sprintf("limit %q: ", l.Name)
}

// names returns the names of two maps, in order.
func names[T any](a, b map[string]T) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// arrow describes a change of a text, or nothing if there is none.
func arrow(was, is string) string {
	switch {
	case was == is:
		return ""
	case was == "":
		return "new, " + is
	case is == "":
		return "gone, was " + was
	}
	return was + " -> " + is
}

func plansDiff(was, is *Limit) (changes []Change) {
	add := func(what, text string, isFresh bool) {
		if text != "" {
			changes = append(changes, Change{Text: title(is) + what + ": " + text, Fresh: isFresh})
		}
	}
	add("default", arrow(was.Default, is.Default), false)
	for _, name := range names(was.Plans, is.Plans) {
		a, b := was.Plans[name], is.Plans[name]
		if is.Slots || a == nil || b == nil {
			add("plan "+name, arrow(planText(was, a), planText(is, b)), false)
			continue
		}
		before, after := byName(a.Policies), byName(b.Policies)
		for _, p := range names(before, after) {
			what := "plan " + name
			if p != "" {
				what += ", " + p
			}
			x, had := before[p]
			y, has := after[p]
			text, isFresh := arrow(policyText(x, had), policyText(y, has)), had && has && starts(x, y)
			if isFresh {
				text += fresh
			}
			add(what, text, isFresh)
		}
	}
	return changes
}

func byName(all []backend.Policy) map[string]backend.Policy {
	m := make(map[string]backend.Policy, len(all))
	for _, p := range all {
		m[p.Name] = p
	}
	return m
}

// starts reports whether usage under one policy is none under another of that name.
func starts(was, is backend.Policy) bool {
	return !was.Constant() && !is.Constant() && was.Identity() != is.Identity()
}

func policyText(p backend.Policy, is bool) string {
	if !is {
		return ""
	}
	return p.String()
}

func planText(l *Limit, p *Plan) string {
	switch {
	case p == nil:
		return ""
	case l.Slots && p.Slots == step.MaxInt:
		return "unlimited"
	case l.Slots:
		return fmt.Sprint(p.Slots)
	}
	var all []string
	for _, q := range p.Policies {
		text := q.String()
		if q.Name != "" {
			text = q.Name + ": " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// overridesDiff compares overrides. One that is new, or gone, is compared with the default plan.
func overridesDiff(was, is *Limit) (changes []Change) {
	index := func(l *Limit) map[string]*Override {
		m := make(map[string]*Override, len(l.Overrides))
		for _, o := range l.Overrides {
			m[o.Kind+" "+o.Value] = o
		}
		return m
	}
	before, after := index(was), index(is)
	ids := maps.Clone(before)
	maps.Copy(ids, after)
	for _, o := range slices.SortedFunc(maps.Values(ids), func(a, b *Override) int {
		return cmp.Or(int(a.place.Line-b.place.Line), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Value, b.Value))
	}) {
		a, b := before[o.Kind+" "+o.Value], after[o.Kind+" "+o.Value]
		text := arrow(overrideText(was, a), overrideText(is, b))
		if text == "" {
			continue
		}
		c := Change{Text: fmt.Sprintf("%soverride of a %s (line %d): %s", title(is), o.Kind, o.place.Line, text), Key: o.Value}
		x, y := was.Plans[was.Default], is.Plans[is.Default]
		if a != nil {
			x = a.Is
		}
		if b != nil {
			y = b.Is
		}
		old := byName(x.Policies)
		if c.Fresh = slices.ContainsFunc(y.Policies, func(p backend.Policy) bool {
			q, had := old[p.Name]
			return had && starts(q, p)
		}); c.Fresh {
			c.Text += fresh
		}
		changes = append(changes, c)
	}
	return changes
}

func overrideText(l *Limit, o *Override) string {
	if o == nil {
		return ""
	}
	text := "plan " + o.Plan
	if o.Plan == "" {
		text = planText(l, o.Is)
	}
	if !o.From.IsZero() {
		text += ", from " + o.From.Format(time.RFC3339)
	}
	if !o.Until.IsZero() {
		text += ", until " + o.Until.Format(time.RFC3339)
	}
	if o.Note != "" {
		text += fmt.Sprintf(", note %q", o.Note)
	}
	return text
}
