package limits

import (
	"maps"
	"slices"
	"strings"

	"github.com/headgate/headgate/core"
)

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

// fitOverrides asks about the policies of each override by themselves, and then about what each
// makes of the plans that it meets. There may be millions of these pairs. So plans whose policies
// have the same names are one, with the largest policy of each name, and so are overrides: what is
// taken of these is taken of all, as a store refuses no smaller limit than one that it takes.
// Otherwise each pair is tried.
func (r *reader) fitOverrides(s *section, ask, try func([]policy) error) {
	plans, everywhere, seen := make(shapes), make(shapes), make(map[string]bool)
	for _, name := range s.planNames() {
		plans.add(s, nil, s.plans[name].policies)
	}
	for i := range s.overrides {
		o := &s.overrides[i]
		id := o.plan + "\n" + o.id
		if len(o.policies) == 0 || seen[id] {
			continue
		}
		seen[id] = true
		if err := ask(o.policies); err != nil {
			r.configFaults(err, o.place, o.policies)
			continue
		}
		if o.plan != "" {
			if err := try(s.over(o.plan, o.policies)); err != nil {
				r.configFaults(err, o.place, nil)
			}
			continue
		}
		everywhere.add(s, o, o.policies)
	}
	for _, id := range slices.Sorted(maps.Keys(everywhere)) {
		above, faulty := everywhere[id], make(map[*override]bool)
		for _, id := range slices.Sorted(maps.Keys(plans)) {
			below := plans[id]
			if try(s.merged(below.worst, above.worst)) != nil {
				r.fitEach(s, below, above, faulty, try)
			}
		}
	}
}

// fitEach tries the pairs of two shapes. An override has the fault of one plan.
func (r *reader) fitEach(s *section, below, above *shape, faulty map[*override]bool, try func([]policy) error) {
	for _, o := range above.members {
		for _, plan := range below.members {
			if faulty[o.override] {
				break
			}
			if err := try(s.merged(plan.policies, o.policies)); err != nil {
				faulty[o.override] = true
				r.configFaults(err, o.override.place, nil)
			}
		}
	}
}

// shapes are lists of policies by the names of these.
type shapes map[string]*shape

// A shape is lists of policies of the same names.
type shape struct {
	worst   []policy // the largest of each name
	members []member
}

// A member is the policies of a plan, or of an override.
type member struct {
	policies []policy
	override *override // nil: of a plan
}

func (all shapes) add(s *section, o *override, policies []policy) {
	var names []string
	for _, p := range policies {
		names = append(names, nameOf(s, p))
	}
	slices.Sort(names)
	if alone(policies[0]) {
		names = []string{""} // it is not merged
	}
	id := strings.Join(names, "\x00") // names are printable
	known := all[id]
	if known == nil {
		known = &shape{worst: slices.Clone(policies)}
		all[id] = known
	}
	known.members = append(known.members, member{policies, o})
	for i, p := range known.worst {
		for _, q := range policies {
			if nameOf(s, p) == nameOf(s, q) && q.Limit() > p.Limit() {
				known.worst[i] = q
			}
		}
	}
}
