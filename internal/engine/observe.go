package engine

import (
	"context"
	"net/http"

	"github.com/headgate/headgate/internal/backend"
)

// Observe asks the rules that only observe, each in a call of its own. None refuses the request, whatever it answers.
// In one call, a refusal by one of them would keep the others from counting; so it would in the call of the rules in
// force.
func (rs *Rules) Observe(admission *Admission, r *http.Request) {
	ctx := backend.Observed(r.Context())
	for i := range rs.Rates {
		if rs.Rates[i].ObserveOnly {
			admission.addObserved(rs.observeRate(ctx, r, i))
		}
	}
	for i := range rs.Slots {
		if rs.Slots[i].ObserveOnly {
			admission.addObserved(rs.observeSlots(ctx, r, i))
		}
	}
}

// observeRate asks a rate. It charges, and its Settle corrects that: a limit on trial counts as it would in force.
func (rs *Rules) observeRate(ctx context.Context, r *http.Request, i int) Admission {
	observed := Admission{Rules: rs, observeOnly: true}
	if rs.addCharge(&observed, r, i) && observed.chargeCount > 0 {
		rs.charge(ctx, &observed, r)
	}
	return observed
}

// observeSlots asks slots. It holds what it is granted until the request ends, as it would in force.
func (rs *Rules) observeSlots(ctx context.Context, r *http.Request, i int) Admission {
	observed := Admission{Rules: rs, observeOnly: true}
	if rs.addClaim(&observed, r, i) {
		rs.take(ctx, &observed, r, observed.Claims)
	}
	return observed
}

// addObserved adds what a rule says that only observes, if it applies.
func (a *Admission) addObserved(observed Admission) {
	if observed.Status != 0 || observed.chargeCount > 0 || len(observed.Claims) > 0 {
		a.Observed = append(a.Observed, observed)
	}
}
