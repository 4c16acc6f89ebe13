package nethttp

import (
	"context"
	"net/http"

	"github.com/headgate/headgate/internal/old/core"
)

// checkAndCharge decides about the charges of rules, of which those with Report have 0 units. It
// checks that these have a unit left, and then charges the others. There the former are asked again, so
// that the decision has all answers.
func (v *Verdict) checkAndCharge(ctx context.Context, charges []core.Charge) (d core.Decision, err error) {
	checks := checksOf(charges)
	if len(checks) == 0 {
		return core.AllowAll(ctx, charges...)
	}
	d, err = core.CheckAll(ctx, len(checks) < len(charges), checks...)
	if err != nil || !d.Allowed || len(checks) == len(charges) {
		if len(checks) < len(charges) {
			v.sheet = nil // the others have not answered
		}
		return d, err
	}
	return core.AllowAll(ctx, charges...)
}

// checkAgain checks the rules with Report for a request that has waited for its slot, as others may have
// reported since. If they refuse, it releases the slot, gives the charges back and concludes the verdict.
func (v *Verdict) checkAgain(r *http.Request, slot *core.Slot) (admits bool) {
	var asked []core.Charge
	for _, c := range v.stay.charges {
		if c.check != nil {
			asked = append(asked, *c.check)
		}
	}
	if len(asked) == 0 {
		return true
	}
	d, err := core.CheckAll(r.Context(), true, checksOf(asked)...)
	if err == nil && d.Allowed {
		return true
	}
	slot.Release()
	v.stay.giveBack(&v.Decision, r)
	v.sheet = nil // these rules alone answer
	v.Decision, v.Err = d, err
	v.conclude(r)
	return false
}

// checksOf returns the charges of rules with Report, for the unit that must be left.
func checksOf(charges []core.Charge) (checks []core.Charge) {
	for _, c := range charges {
		if c.N == 0 {
			c.N = 1
			checks = append(checks, c)
		}
	}
	return checks
}

// reports returns what is to be counted, of the units that the rules with Report have used.
func (s *stay) reports(used []int64) (reports []core.Charge) {
	for i, n := range used {
		if n > 0 {
			c := *s.charges[i].check
			c.N = n
			reports = append(reports, c)
		}
	}
	return reports
}
