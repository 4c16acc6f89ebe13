package engine

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/headgate/headgate/internal/backend"
)

// Acquire takes the slots. Those without a queue come first, at once or not at all. Then the request waits in the one
// line that a guard has, and holds the others, so that they are there at the end; the other way around, the first in
// line could be refused. If there is no slot, the charge is given back.
func (rs *Rules) Acquire(admission *Admission, r *http.Request) bool {
	charged := admission.Stage == Answered
	atOnce := len(admission.Claims)
	if atOnce == 0 {
		return true
	}
	if admission.Claims[atOnce-1].Queue > 0 {
		atOnce--
	}
	ctx := r.Context()
	if rs.take(ctx, admission, r, admission.Claims[:atOnce]) && rs.take(ctx, admission, r, admission.Claims[atOnce:]) {
		return true
	}
	admission.Release()
	if charged {
		giveBack(r, func(ctx context.Context) { _ = admission.Decision.Refund(ctx) }) // observers are told of an error
	}
	return false
}

// take takes the slots of some claims, or of one with a queue, or refuses the request; the caller releases what was
// taken before. Without rates, the first of the slots are the limiter that decided.
func (rs *Rules) take(ctx context.Context, admission *Admission, r *http.Request, claims []backend.Claim) bool {
	if len(claims) == 0 {
		return true
	}
	if claims[0].Queue > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rs.SlotsOf(claims[0].Slots.Name()).MaxWait)
		defer cancel()
	}
	if admission.Slot == nil {
		admission.Slot = new(backend.Slot)
	}
	err := admission.Slot.Take(ctx, claims)
	if err == nil {
		admission.Decision.SetSlots(admission.Slot.Answers()...)
		if admission.Stage != Answered {
			admission.Limiter = claims[0].Slots.Name()
		}
		return true
	}
	// Those that were taken before are given back, so they have no answer either. Who has gone while it waited was not
	// refused: that nobody reads the answer is why there is no decision.
	admission.Decision.SetSlots()
	full, isFull := backend.Full(err)
	gone := r.Context().Err()
	switch {
	case gone != nil:
		rs.undecided(admission, r, gone)
	case !isFull:
		rs.undecided(admission, r, err)
	default:
		rs.full(admission, full)
		if rs.SlotsOf(full.Limiter).Service {
			admission.Status = http.StatusServiceUnavailable
		}
	}
	admission.RetryAfter = rs.Pause()
	return false
}

// undecided refuses a request about whose slots nobody has decided.
func (rs *Rules) undecided(admission *Admission, r *http.Request, err error) {
	rs.fail(admission, r, http.StatusServiceUnavailable, "", err)
	admission.Stage = SlotsUndecided
}

// full refuses a request because of slots that are full.
func (rs *Rules) full(admission *Admission, answer backend.PolicyAnswer) {
	admission.Stage = SlotsFull
	admission.Limiter = answer.Limiter
	admission.Status = http.StatusTooManyRequests
	admission.Decision.SetSlots(answer)
}

// Refuse refuses a request that the steps have admitted so far, for want of a slot of the i-th claim, and gives
// everything back. It is for a socket that was granted one slot more, as it was to evict another, and has found none.
func (rs *Rules) Refuse(admission *Admission, i int) {
	admission.Release()
	answer := admission.Decision.Slots()[i]
	answer.Allowed = false
	rs.full(admission, answer)
	admission.RetryAfter = rs.Pause()
}

// Pause returns the Retry-After of who is refused for want of a slot: nobody knows when one is free, and not all are to
// come back at once.
func (rs *Rules) Pause() time.Duration {
	return time.Duration(rs.LeastPause+rand.IntN(rs.MostPause-rs.LeastPause+1)) * time.Second
}

// Release releases the slots, also those of rules that only observe. If an observer of the store panics, it releases
// the others even so. Further calls do nothing.
func (a *Admission) Release() {
	defer releaseAll(a.Observed)
	if a.Slot != nil {
		a.Slot.Release()
	}
}

func releaseAll(all []Admission) {
	if len(all) > 0 {
		defer releaseAll(all[1:])
		all[0].Release()
	}
}
