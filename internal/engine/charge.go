package engine

import (
	"context"
	"net/http"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
)

// Charge charges the rates, all or none. Without a rate that applies there is no call, and the Stage stays Unasked.
func (rs *Rules) Charge(admission *Admission, r *http.Request) bool {
	if admission.chargeCount == 0 {
		return true
	}
	return rs.charge(r.Context(), admission, r)
}

func (rs *Rules) charge(ctx context.Context, admission *Admission, r *http.Request) bool {
	err := backend.Decide(ctx, step.Allow, admission.Charges(), &admission.Decision)
	if err != nil {
		return rs.fail(admission, r, http.StatusServiceUnavailable, "", err)
	}
	// Also an admitted request has a limiter that decided, for observers: the one with the least left.
	totals := admission.Decision.Totals()
	admission.Stage = Answered
	admission.Limiter = totals.Decider.Limiter
	if admission.Decision.Allowed {
		return true
	}
	// A limit of the service is no fault of the client, so the status says that the service is busy.
	admission.Status = http.StatusTooManyRequests
	admission.RetryAfter = backend.Span(totals.RetryAfter)
	if rs.HasService && rs.onlyServiceRefused(admission) {
		admission.Status = http.StatusServiceUnavailable
	}
	return false
}

// onlyServiceRefused reports whether all limits that have refused are of the service.
func (rs *Rules) onlyServiceRefused(admission *Admission) bool {
	for i := range admission.Decision.Len() {
		answer := admission.Decision.At(i)
		if !answer.Allowed && !rs.RateOf(answer.Limiter).Service {
			return false
		}
	}
	return true
}

// Settle corrects the charge to the units that were used, one number for each charge. It waits for a moment, even if
// the client has gone. A charge that was right is no call. After an error nobody knows what was corrected; the store
// has told its observers.
func (a *Admission) Settle(r *http.Request, actual []int64) (err error) {
	if a.Stage != Answered || !a.Decision.Allowed {
		return nil
	}
	for i, charge := range a.Charges() {
		if actual[i] != charge.Units {
			giveBack(r, func(ctx context.Context) { _, err = a.Decision.Settle(ctx, actual...) })
			return err
		}
	}
	return nil
}
