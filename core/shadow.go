package core

import (
	"context"
	"slices"

	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/ontrial"
)

// AllowBeside is [AllowAll] with shadows: charges of limits on trial, which refuse nothing. The
// shadows are decided in the same call of the store, as if they were enforced too. They are charged
// if all of them and all of the charges admit. If shadows refuse and no charge does, the charges
// are made in a second call.
//
// The shadow decision is of the shadows alone, and is settled separately. It is the zero Decision
// if it is not known what they say, because a charge was refused, or for an error.
//
// Sometimes the shadows are decided after the charges, in a call of their own, whose error is not
// returned. That is so if a policy of the charges has CountDenied, or a charge is Anyway. It is
// also so if there are more charges and shadows than [AllowAll] takes. Shadows that are Anyway are
// counted then, whatever the charges say.
func AllowBeside(ctx context.Context, charges, shadows []Charge) (d, shadow Decision, err error) {
	all := slices.Concat(charges, shadows)
	never := func(c Charge) bool { return c.Limiter != nil && c.never() }
	switch {
	case len(shadows) == 0 || len(charges) == 0:
		d, err = AllowAll(ctx, charges...)
		return d, shadow, err
	case len(all) > maxCharges, policiesOf(all) > store.MaxReadings, slices.ContainsFunc(charges, countsDenied),
		slices.ContainsFunc(all, func(c Charge) bool { return c.Anyway }), slices.ContainsFunc(shadows, never):
		if d, err = AllowAll(ctx, charges...); err != nil {
			return d, shadow, err
		}
		if d.Allowed {
			shadow, _ = AllowAll(ontrial.Mark(ctx), shadows...)
			return d, shadow, nil
		}
		// What was counted anyway counts on trial too.
		if shadows = slices.DeleteFunc(slices.Clone(shadows), func(c Charge) bool { return !c.Anyway }); len(shadows) > 0 {
			_, _ = AllowAll(ontrial.Mark(ctx), shadows...)
		}
		return d, shadow, nil
	case ctx == nil:
		return d, shadow, errContext
	}
	if err := checkCharges(all); err != nil {
		return d, shadow, err
	}
	o := charges[0].Limiter.observer
	start := begin(o)
	q, err := decideAll(ctx, store.Allow, all)
	defer q.free()
	r := &q.Result
	report := func(ctx context.Context, part *store.Result, about []Charge) {
		if o != nil {
			decided(ctx, o, start, part, err, about...)
		}
	}
	if err != nil {
		report(ctx, r, charges)
		return d, shadow, err
	}
	first := 0 // reading of the shadows
	for _, c := range charges {
		first += len(c.Limiter.policies)
	}
	mine, others := partOf(r, 0, first), partOf(r, first, r.Len())
	if !mine.Allowed {
		report(ctx, &mine, charges)
		return decisionOf(&mine, charges...), shadow, nil
	}
	report(ontrial.Mark(ctx), &others, shadows)
	shadow = decisionOf(&others, shadows...)
	if !others.Allowed { // so nothing was charged
		d, err = AllowAll(ctx, charges...)
		return d, shadow, err
	}
	report(ctx, &mine, charges)
	return decisionOf(&mine, charges...), shadow, nil
}

func countsDenied(c Charge) bool {
	return c.Limiter != nil && slices.ContainsFunc(c.Limiter.policies, Policy.CountsDenied)
}

// partOf returns the readings from first to before end as a result of their own.
func partOf(r *store.Result, first, end int) store.Result {
	p := store.Result{At: r.At, Allowed: true, Source: r.Source}
	for i := first; i < end; i++ {
		admitted := r.Allowed || r.Admitted(i)
		p.Allowed = p.Allowed && admitted
		p.Add(admitted, *r.Reading(i))
	}
	return p
}
