package limits

import (
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// maxPolicies is how many policies a limiter has, as core.New says.
const maxPolicies = 8

// onPaper returns what package core says of policies, whatever the store.
func onPaper(s *section) func([]policy) error {
	return func(policies []policy) error {
		_, err := core.New(paper{}, s.name, bare(policies)...)
		return err
	}
}

// fitPlans asks about the policies of each plan.
func (r *reader) fitPlans(s *section, ask func([]policy) error) {
	for _, name := range append(s.planNames(), planBlocked, planUnlimited) {
		policies := s.policiesOf(name)
		if err := ask(policies); err != nil {
			r.configFaults(err, s.planPlace(name), policies)
		}
	}
}

// fitOverrides asks about the policies of each override by themselves, and tries what it makes of
// the plan that it names. It returns the overrides that meet all plans, each kind once.
func (r *reader) fitOverrides(s *section, ask, try func([]policy) error) (everywhere []*override) {
	seen := make(map[string]bool)
	for i := range s.overrides {
		o := &s.overrides[i]
		id := o.plan + "\n" + o.id
		if len(o.policies) == 0 || seen[id] {
			continue
		}
		seen[id] = true
		if err := ask(o.policies); err != nil {
			r.configFaults(err, o.place, o.policies)
		} else if o.plan == "" {
			everywhere = append(everywhere, o)
		} else if err := try(s.over(o.plan, o.policies)); err != nil {
			r.configFaults(err, o.place, nil)
		}
	}
	return everywhere
}

// fitCounts checks how many policies overrides have together with those of each plan. As there may
// be millions of pairs, those whose policies have the same names are one.
func (r *reader) fitCounts(s *section, everywhere []*override) {
	largest, plans := 0, make(map[string][]string)
	for _, p := range s.plans {
		if names := s.names(p.policies); !alone(p.policies[0]) {
			plans[strings.Join(names, "\x00")] = names
			largest = max(largest, len(names))
		}
	}
	worst := make(map[string]int) // by the names of an override's policies
	for _, o := range everywhere {
		own := s.names(o.policies)
		if alone(o.policies[0]) || len(own)+largest <= maxPolicies {
			continue
		}
		id := strings.Join(own, "\x00")
		if worst[id] == 0 {
			for _, names := range plans {
				beside := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(own, name) })
				worst[id] = max(worst[id], len(own)+len(beside))
			}
		}
		if worst[id] > maxPolicies {
			r.add(o.place.fault("a limiter has 1 to %d policies, not %d", maxPolicies, worst[id]))
		}
	}
}

// names returns the names under which policies count, in order.
func (s *section) names(policies []policy) []string {
	names := make([]string, len(policies))
	for i, p := range policies {
		names[i] = nameOf(s, p)
	}
	slices.Sort(names)
	return names
}

// A member is the policies of a plan or of an override, which are merged.
type member struct {
	override *override // nil: of a plan
	policies []policy
	prepared []store.Policy
}

// A fitter finds what overrides make of plans that a store does not take although it takes each by
// itself. It asks about many at once: if a store takes all policies together, with the largest of each
// name, it takes each pair, as it refuses no fewer policies and no smaller limits than those it takes.
type fitter struct {
	store  core.Store
	name   string
	fault  func(plan, override member) bool // reports whether this pair is at fault, and says so
	faulty map[*override]bool
}

// fit tries what these overrides make of these plans. An override has the fault of one plan.
func (f *fitter) fit(plans, overrides []member) {
	switch p, o := len(plans), len(overrides); {
	case p == 0 || o == 0 || o == 1 && f.faulty[overrides[0].override]:
	case p == 1 && o == 1:
		f.faulty[overrides[0].override] = f.fault(plans[0], overrides[0])
	case f.together(plans, overrides):
	case p > o:
		f.fit(plans[:p/2], overrides)
		f.fit(plans[p/2:], overrides)
	default:
		f.fit(plans, overrides[:o/2])
		f.fit(plans, overrides[o/2:])
	}
}

// together reports whether the store takes all policies at once. Only a [store.Kinded] is asked about
// more than a limiter has.
func (f *fitter) together(plans, overrides []member) bool {
	spec, index := store.Spec{Name: f.name}, make(map[string]int)
	for _, all := range [][]member{plans, overrides} {
		for _, m := range all {
			for _, p := range m.prepared {
				i, known := index[p.Name]
				switch {
				case !known:
					index[p.Name] = len(spec.Policies)
					spec.Policies = append(spec.Policies, p)
				case p.Step.Max() > spec.Policies[i].Step.Max():
					spec.Policies[i] = p
				}
			}
		}
	}
	if len(spec.Policies) > maxPolicies && store.KindOf(f.store) == "" {
		return false
	}
	return f.store.Prepare(store.NewLimiter(spec)) == nil
}
