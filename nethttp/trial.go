package nethttp

import (
	"context"
	"slices"

	"github.com/headgate/headgate/core"
)

// A trial is what the shadow policies of a request's rules say.
type trial struct {
	rules    []int // the index of the rule of each charge
	charges  []core.Charge
	decision core.Decision
}

// add adds what a rule charges, and first makes the trial if t is nil.
func (t *trial) add(rule int, c core.Charge) *trial {
	if t == nil {
		t = &trial{}
	}
	t.rules, t.charges = append(t.rules, rule), append(t.charges, c)
	return t
}

// decide decides about the charges of the rules, which it copies, with those of the trial beside
// them.
func (t *trial) decide(ctx context.Context, charges []core.Charge) (d core.Decision, err error) {
	d, t.decision, err = core.AllowBeside(ctx, slices.Clone(charges), t.charges)
	return d, err
}

// settle corrects what the trial was charged, to the costs of the charges of its rules.
func (t *trial) settle(ctx context.Context, charges []charged, actual []int64) {
	cost := make([]int64, len(t.charges))
	for i, c := range t.charges {
		cost[i] = c.N
		for j := range charges {
			if charges[j].rule == t.rules[i] {
				cost[i] = actual[j]
			}
		}
	}
	_, _ = t.decision.Settle(ctx, cost...) // the store's Observer is told of an error
}

// Shadow returns the decision of the shadow policies of a document about the request (see
// [Rule].Limit), and whether it is known. It is not known if other policies refused the request.
// They refuse nothing. The guard settles it as it does the Decision.
func (v Verdict) Shadow() (d core.Decision, ok bool) {
	if v.stay == nil || v.stay.trial == nil || v.stay.trial.decision.Len() == 0 {
		return core.Decision{}, false
	}
	return v.stay.trial.decision, true
}
