package nethttp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/holds"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/ontrial"
)

// Pauses are the range of Retry-After for slots, in seconds. When one is released cannot be
// predicted. So it is random, for clients not to come back all at once.
type pauses struct{ least, most int }

func (p pauses) random() int {
	return p.least + rand.IntN(p.most-p.least+1)
}

// claim returns what a rule claims for a request, or sets the verdict's Err. The view is that of all
// rules.
func (g *Guard) claim(v *Verdict, r *http.Request, i int, view *limits.View) (c core.Claim) {
	if c.Key = g.key(v, r, i); v.Err != nil {
		return c
	}
	rule := &g.config.Rules[i]
	c.OneMore, c.Queue = rule.WhenFull == EvictOldest, rule.Queue
	slots, err := rule.chooseSlots(view, r, c.Key)
	if err != nil {
		g.fail(v, r, i, http.StatusInternalServerError, err)
	}
	c.Slots = slots
	return c
}

// take takes the slots for a request that the rates have admitted, or gives their units back.
func (g *Guard) take(v *Verdict, r *http.Request, a holds.Attempt, claims []core.Claim) {
	v.admitted = false
	s := v.staying()
	var slot *core.Slot
	defer func() {
		if !v.admitted { // also if a function of a rule panics
			if slot != nil {
				slot.Release()
			}
			s.giveBack(&v.Decision, r)
		}
	}()
	start := time.Now()
	slot, waited, err := g.acquire(r, claims)
	if g.config.Wait > 0 {
		v.Waited = time.Since(start)
	}
	if err == nil && waited && g.reports && !v.checkAgain(r, slot) {
		return
	}
	if err == nil && a != nil {
		if s.held, err = a.Hold(claims, slot); err != nil {
			slot.Release()
		}
	}
	if err != nil {
		v.refuse(r, err, claims)
		if a != nil {
			a.Refused(claims, err)
		}
		return
	}
	s.slot, s.occupied = slot, occupancies(slot)
	v.admitted = true
}

// acquire takes the slots, and waits for them if requests may wait. The slots of the claims become
// those that apply when the wait is over. It reports whether the request has waited.
func (g *Guard) acquire(r *http.Request, claims []core.Claim) (slot *core.Slot, waited bool, err error) {
	switch {
	case len(claims) == 0:
		return new(core.Slot), false, nil
	case g.config.ObserveOnly:
		slot, err = core.AcquireAll(ontrial.Mark(r.Context()), claims...)
		return slot, false, err
	case g.config.Wait == 0:
		slot, err = core.AcquireAll(r.Context(), claims...)
		return slot, false, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.config.Wait)
	defer cancel()
	chosen := true // just now
	slot, err = core.AcquireAllWaitFunc(ctx, func() []core.Claim {
		if !chosen {
			waited = true
			g.chooseAgain(r, claims)
		}
		chosen = false
		return slices.Clone(claims)
	})
	return slot, waited, err
}

// chooseAgain sets the slots of claims that have keys, all of one instant. An error changes none.
func (g *Guard) chooseAgain(r *http.Request, claims []core.Claim) {
	var view limits.View
	again := slices.Clone(claims)
	for n, i := range g.slots {
		var err error
		if again[n].Slots, err = g.config.Rules[i].chooseSlots(&view, r, again[n].Key); err != nil {
			return
		}
	}
	copy(claims, again)
}

// refuse fills in v for an error of acquire.
func (v *Verdict) refuse(r *http.Request, err error, claims []core.Claim) {
	v.retry = v.guard.retry.random()
	var full *core.FullError
	switch gone := r.Context().Err(); {
	case gone != nil: // nobody reads the answer
		v.Err, v.status = gone, http.StatusServiceUnavailable
	case errors.As(err, &full):
		v.status = http.StatusTooManyRequests
		if v.guard.config.Rules[v.guard.slots[full.Claim]].Service {
			v.status = http.StatusServiceUnavailable
		}
		v.stay.occupied = refusedBy(full, claims)
	case errors.Is(err, core.ErrQuestion):
		v.guard.fail(v, r, -1, http.StatusInternalServerError, err)
	default:
		v.guard.fail(v, r, -1, http.StatusServiceUnavailable, err)
	}
}

// occupancies returns those of a slot, with Held -1 if nothing was counted.
func occupancies(slot *core.Slot) []core.Occupancy {
	all := slot.Occupancies()
	if slot.Source() == core.SourceOpen {
		for i := range all {
			all[i].Held = -1
		}
	}
	return all
}

// refusedBy returns the occupancies of claims of which one was full: only that one is known.
func refusedBy(full *core.FullError, claims []core.Claim) (all []core.Occupancy) {
	for i, c := range claims {
		o := core.Occupancy{Slots: c.Slots.Name(), Limit: c.Slots.Limit(c.Key), Held: -1}
		if i == full.Claim {
			o = full.Occupancy
		}
		all = append(all, o)
	}
	return all
}
