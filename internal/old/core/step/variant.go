package step

import (
	"cmp"
	"slices"
)

// A Variant is the state of a key under one of several sets of parameters in use for it at the same
// time. That is so under plans of one limiter, or while a release with other parameters is rolled
// out.
//
// Each of them has a state of its own, because none can serve another. A count of seconds does not
// show the usage of an hour, nor a count of an hour the usage of the last second. A charge under
// one is counted in all. So each decides as if everything had been charged under it, from its first
// call on. It adopts earlier usage from the state that shows most, see [Step.Adopt]. A token bucket
// is an exception: see its Count.
//
// A state is dropped when its parameters have not been used for two of their windows. In addition,
// no unit that counted at their last use counts any more, under any parameters. So long after an
// upgrade a key has only the state of the new parameters. Two windows are needed because a server
// answers refusals from memory. That is a use for as long as a window, but nobody sees it here.
type Variant struct {
	Step  Step
	State []int64
	Until int64 // the instant from which it is not kept
}

// MaxVariants is the most states that a key has. Of more, those that were used longest ago are
// dropped.
const MaxVariants = 8

// keep returns a state that was used now. It is kept for at least as long as those beside
// it: without it, its parameters would adopt from one of them, which dates at a later
// instant what the state had counted earlier, and a wait that was promised would not do.
func keep(p Step, s []int64, now int64, others []Variant) Variant {
	until := max(p.FreshAt(s), now+2*p.Window())
	for _, o := range others {
		until = max(until, o.Until)
	}
	return Variant{p, s, min(until, MaxInt)}
}

// take returns the state for p among those of a key, and the others that are still kept.
// The last used is the first. If p has none, it adopts one of the others, or the state is
// nil if there is none. The states are not modified. Own.Step is p, or one that means the
// same and has a larger limit, which the state is to be kept with.
//
// Unless the call is a peek, the result has to be stored, even if the call is refused,
// since otherwise each call would begin the wait anew: own as keep returns it, then the
// others. If there are others and units are charged, count counts them.
func take(kept []Variant, p Step, now int64) (own Variant, others []Variant) {
	own.Step = p
	found := false
	for _, k := range kept {
		switch {
		case k.Until <= now:
		case k.Step.Numbers().alike(p.Numbers()):
			own, found = Variant{larger(p, k.Step), k.State, k.Until}, true
		default:
			others = append(others, k)
		}
	}
	if found || len(others) == 0 {
		return own, others
	}
	most := slices.MaxFunc(others, func(a, b Variant) int { return cmp.Compare(a.shows(now), b.shows(now)) })
	own.State = p.Adopt(most.State, now, most.Step.Numbers())
	return own, others[:min(len(others), MaxVariants-1)]
}

// redate returns the state of full use as of now, if that of own under p is ahead of now by more
// than its Window, as it is after the clock was ahead and is right again. So nothing is admitted
// for a Window, instead of until the clock has caught up. own and others are as from take. The
// others are brought back when they are used themselves, and kept for two of the longest Reaches
// at most.
//
// If it is not nil, the result has to be stored, even if the call is refused: the wait would
// begin anew otherwise, and the next step ahead would find less in use. To bring back less
// than full use would admit more at each return.
func redate(p Step, own *Variant, others []Variant, now int64) []int64 {
	longest := own.Step.Reach()
	for _, o := range others {
		longest = max(longest, o.Step.Reach())
	}
	for i := range others {
		others[i].Until = min(others[i].Until, now+2*longest)
	}
	if _, ok := p.(*tokenBucket); ok {
		p = own.Step // a window does not show the largest limit that it is kept for
	}
	return p.Redate(own.State, now, longest)
}

// shows orders states by how much they show: the time for which they count a unit, or the
// units that a bucket lacks.
func (k Variant) shows(now int64) int64 {
	if b, ok := k.Step.(*tokenBucket); ok {
		units, _ := b.units(b.used(k.State, now))
		return units
	}
	return k.Step.Window()
}

// count counts units in the states of others that have been charged to own, whose state
// is that after the charge.
func count(others []Variant, own Variant, now, n int64) {
	until := own.Step.FreshAt(own.State)
	for i := range others {
		o := &others[i]
		o.State = o.Step.Count(o.State, now, n, until)
	}
}

// Alike reports whether a state of the one step means the same to the other. They may differ only
// in the numbers that the state is compared with. They are of one algorithm.
func Alike(p, q Step) bool { return p.Numbers().alike(q.Numbers()) }

func (m Numbers) alike(o Numbers) bool {
	return m.Period == o.Period && m.Resolution == o.Resolution && m.FromFirst == o.FromFirst && (m.Algorithm != TokenBucket || m.Limit == o.Limit)
}

// larger returns p, or q if that is alike and has a larger limit. A state is kept with the
// largest, to which its log may grow, and up to which its bucket may be in debt.
func larger(p, q Step) Step {
	m, o := p.Numbers(), q.Numbers()
	if c := cmp.Or(cmp.Compare(m.Burst+m.Debt, o.Burst+o.Debt), cmp.Compare(m.Burst, o.Burst), cmp.Compare(m.Limit, o.Limit)); c < 0 {
		return q
	}
	return p
}
