package engine

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/headgate/headgate/internal/backend"
)

// The places of Admission.held.
const (
	heldAtOnce = iota // of the claims without a queue
	heldByLine        // of the one with a queue
)

// Acquire takes the slots. Those without a queue come first, at once or not at all. Then the request waits in the one
// line that a guard has, and holds the others. If there is no slot, the charge is given back.
func (rs *Rules) Acquire(admission *Admission, r *http.Request) bool {
	charged := admission.Stage == Answered
	if len(admission.Claims) == 0 || rs.acquire(r.Context(), admission, r) {
		return true
	}
	admission.Release()
	if charged {
		giveBack(r, func(ctx context.Context) { _ = admission.Decision.Refund(ctx) }) // observers are told of an error
	}
	return false
}

// acquire takes the slots of all claims. If it does not, the caller releases those that it took.
func (rs *Rules) acquire(ctx context.Context, admission *Admission, r *http.Request) bool {
	// The claim with a queue is the last. Who waits in line holds the other slots meanwhile, so that they are there at
	// the end; the other way around, the first in line could be refused.
	atOnce := len(admission.Claims)
	last := &admission.Claims[atOnce-1]
	if last.Queue > 0 {
		atOnce--
	}
	if atOnce > 0 && !rs.take(ctx, admission, r, heldAtOnce, admission.Claims[:atOnce]) {
		return false
	}
	if atOnce == len(admission.Claims) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, rs.SlotsOf(last.Slots.Name()).MaxWait)
	defer cancel()
	return rs.take(ctx, admission, r, heldByLine, admission.Claims[atOnce:])
}

// take takes the slots of some claims, or refuses the request. Without rates, the first of the slots are the limiter
// that decided.
func (rs *Rules) take(
	ctx context.Context, admission *Admission, r *http.Request, place int, claims []backend.Claim,
) bool {
	slot := new(backend.Slot)
	err := slot.Take(ctx, claims)
	if err == nil {
		admission.held[place] = slot
		admission.Decision.AddSlots(slot.Answers()...)
		if admission.Stage != Answered {
			admission.Limiter = claims[0].Slots.Name()
		}
		return true
	}
	// Those that were taken before are given back, so they have no answer either. Who has gone while it waited was not
	// refused: that nobody reads the answer is why there is no decision.
	admission.Decision.ClearSlots()
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
	admission.Decision.AddSlots(answer)
}

// Refuse refuses a request that the steps have admitted so far, for want of a slot of the i-th claim, and gives
// everything back. It is for a socket that was granted one slot more, as it was to evict another, and has found none.
func (rs *Rules) Refuse(admission *Admission, i int) {
	admission.Release()
	answer := admission.Decision.Slots()[i] // it has one more than it should
	answer.Allowed = false
	answer.Remaining = 0
	admission.Decision.ClearSlots()
	rs.full(admission, answer)
	admission.RetryAfter = rs.Pause()
}

// Pause returns the Retry-After of who is refused for want of a slot: nobody knows when one is free, and not all are to
// come back at once.
func (rs *Rules) Pause() time.Duration {
	return time.Duration(rs.LeastPause+rand.IntN(rs.MostPause-rs.LeastPause+1)) * time.Second
}

// Held returns the slot of the claims without a queue, or nil.
func (a *Admission) Held() *backend.Slot { return a.held[heldAtOnce] }

// Release releases the slots, also those of rules that only observe. If an observer of the store panics, it releases
// the others even so.
func (a *Admission) Release() {
	held := a.held
	a.held = [2]*backend.Slot{} // so that a second call does nothing
	defer releaseAll(a.Observed)
	defer release(held[heldByLine])
	release(held[heldAtOnce])
}

func release(slot *backend.Slot) {
	if slot != nil {
		slot.Release()
	}
}

func releaseAll(all []Admission) {
	if len(all) > 0 {
		defer releaseAll(all[1:])
		all[0].Release()
	}
}
