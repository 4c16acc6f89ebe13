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
	Text        string `json:"text"`            // without keys
	Key         string `json:"key,omitempty"`   // of an override: for whoever has the documents, and for no log
	StartsFresh bool   `json:"fresh,omitempty"` // what keys have used under the old policy is none under the new one
}

func (c Change) String() string { return c.Text }

// freshNote is the end of a text about keys that start fresh.
const freshNote = "; starts fresh: at most the old and the new limit together"

// Diff returns the changes if one document takes the place of another, which may be nil. The first document changes
// nothing: there is nothing that anybody has used. The changes are in the order of names, limits first; those of
// overrides in the order of the document. They say what changes for keys: an order of plans, or another spelling of a
// policy, is no change.
func Diff(from, to *Document) (changes []Change) {
	if from == nil {
		return nil
	}
	// Limits and slots may have the same names.
	changes = limitsDiff(from.Limits, to.Limits)
	return append(changes, limitsDiff(from.Slots, to.Slots)...)
}

// limitsDiff compares limits, or slots, by their names.
func limitsDiff(before, after map[string]*Limit) (changes []Change) {
	for _, name := range names(before, after) {
		was := before[name]
		is := after[name]
		switch {
		case was == nil:
			plans := strings.Join(names(is.Plans, nil), ", ")
			changes = append(changes, Change{Text: title(is) + "new, plans " + plans})
		case is == nil:
			changes = append(changes, Change{Text: title(was) + "gone"})
		default:
			changes = append(changes, plansDiff(was, is)...)
			changes = append(changes, overridesDiff(was, is)...)
		}
	}
	return changes
}

// title begins the text of a change.
func title(limit *Limit) string {
	if limit.IsSlots {
		return fmt.Sprintf("slots %q: ", limit.Name)
	}
	return fmt.Sprintf("limit %q: ", limit.Name)
}

// names returns the names of two maps, in order.
func names[T any](some, others map[string]T) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(some)), maps.Keys(others))
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

// plansDiff compares the plans of a limit. Of one that stays, the policies are compared by their names: a whole plan in
// one line would hide which of them changes.
func plansDiff(was, is *Limit) (changes []Change) {
	add := func(what, text string, startsFresh bool) {
		if text != "" {
			changes = append(changes, Change{Text: title(is) + what + ": " + text, StartsFresh: startsFresh})
		}
	}
	add("default", arrow(was.Default, is.Default), false)
	// Numbers of slots have no policies, and nothing that starts fresh: what is held is held under any number.
	for _, name := range names(was.Plans, is.Plans) {
		oldPlan := was.Plans[name]
		newPlan := is.Plans[name]
		what := "plan " + name
		// A plan that is new or gone is told as a whole. Its keys change their plan, and no policy changes, so nothing
		// is said of a fresh start.
		if is.IsSlots || oldPlan == nil || newPlan == nil {
			add(what, arrow(planText(was, oldPlan), planText(is, newPlan)), false)
			continue
		}
		before := byName(oldPlan.Policies)
		after := byName(newPlan.Policies)
		for _, policy := range names(before, after) {
			which := what
			if policy != "" {
				which += ", " + policy
			}
			text := arrow(policyText(before, policy), policyText(after, policy))
			startsFresh := startsFresh(before, after, policy)
			if startsFresh {
				text += freshNote
			}
			add(which, text, startsFresh)
		}
	}
	return changes
}

// byName returns policies by their names. The only one of a plan may have the name "".
func byName(all []backend.Policy) map[string]backend.Policy {
	policies := make(map[string]backend.Policy, len(all))
	for _, policy := range all {
		policies[policy.Name] = policy
	}
	return policies
}

// startsFresh reports whether usage under a policy is none under the one that has its name afterwards. Stores find a
// state by the identity of its policy: under another, they do not find it.
func startsFresh(before, after map[string]backend.Policy, name string) bool {
	was, had := before[name]
	is, has := after[name]
	// A constant policy counts nothing, so nothing is lost with it.
	counts := had && has && !was.Constant() && !is.Constant() // both do
	return counts && was.Identity() != is.Identity()
}

// policyText returns the text of the policy of a name, or "" if there is none.
func policyText(policies map[string]backend.Policy, name string) string {
	policy, has := policies[name]
	if !has {
		return ""
	}
	return policy.String()
}

// planText returns what a plan gives, or "" if there is none.
func planText(limit *Limit, plan *Plan) string {
	switch {
	case plan == nil:
		return ""
	case limit.IsSlots && plan.Number == step.MaxInt:
		return "unlimited"
	case limit.IsSlots:
		return fmt.Sprint(plan.Number)
	}
	var texts []string
	for _, policy := range plan.Policies {
		text := policy.String()
		if policy.Name != "" {
			text = policy.Name + ": " + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// overridesDiff compares overrides. One that is new, or gone, is compared with the default plan.
func overridesDiff(was, is *Limit) (changes []Change) {
	// An override is the same if it is for the same key, prefix or network, wherever it stands: people sort such lists.
	before := overridesByID(was)
	after := overridesByID(is)
	all := maps.Clone(before)
	maps.Copy(all, after)
	// They are told in the order of the document.
	inOrder := slices.SortedFunc(maps.Values(all), func(a, b *Override) int {
		byLine := int(a.place.Line - b.place.Line)
		return cmp.Or(byLine, strings.Compare(a.Kind, b.Kind), strings.Compare(a.Value, b.Value))
	})
	for _, override := range inOrder {
		oldOne := before[override.id()]
		newOne := after[override.id()]
		text := arrow(overrideText(was, oldOne), overrideText(is, newOne))
		if text == "" {
			continue
		}
		change := Change{
			Text: fmt.Sprintf("%soverride of a %s (line %d): %s", title(is), override.Kind, override.place.Line, text),
			Key:  override.Value,
		}
		// A key that gets an override leaves the default plan for it, and comes back to that later.
		oldPolicies := byName(planOf(was, oldOne).Policies)
		newPolicies := byName(planOf(is, newOne).Policies)
		for name := range newPolicies {
			change.StartsFresh = change.StartsFresh || startsFresh(oldPolicies, newPolicies, name)
		}
		if change.StartsFresh {
			change.Text += freshNote
		}
		changes = append(changes, change)
	}
	return changes
}

// id tells overrides of a limit from each other.
func (o *Override) id() string {
	if o.Kind == "network" { // which has several spellings
		return o.Kind + " " + o.network.String()
	}
	return o.Kind + " " + o.Value
}

// overridesByID returns the overrides of a limit by what tells them apart.
func overridesByID(limit *Limit) map[string]*Override {
	all := make(map[string]*Override, len(limit.Overrides))
	for _, override := range limit.Overrides {
		all[override.id()] = override
	}
	return all
}

// planOf returns what applies to the keys of an override, which may be nil.
func planOf(limit *Limit, override *Override) *Plan {
	if override == nil {
		return limit.Plans[limit.Default]
	}
	return override.Plan
}

// overrideText returns what an override gives and when, without the key.
func overrideText(limit *Limit, override *Override) string {
	if override == nil {
		return ""
	}
	text := "plan " + override.PlanName
	if override.PlanName == "" {
		text = planText(limit, override.Plan)
	}
	if !override.From.IsZero() {
		text += ", from " + override.From.Format(time.RFC3339)
	}
	if !override.Until.IsZero() {
		text += ", until " + override.Until.Format(time.RFC3339)
	}
	if override.Note != "" {
		text += fmt.Sprintf(", note %q", override.Note)
	}
	return text
}
