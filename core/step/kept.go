package step

import (
	"cmp"
	"slices"
)

// A Kept is the state of a key under one of several sets of parameters that are in use for
// it at the same time: while a release with other numbers is rolled out, or under plans of
// one limiter.
//
// Each of them has a state of its own, because none shows what another needs: a count of
// seconds does not tell what was used in an hour, nor that of an hour what was used in
// the last second. What is charged under one is counted in all. So each decides as if
// everything had been charged under it, from its first call on; what was used before that
// it takes over from the state that shows most, see [Step.Adopt]. A token bucket is an
// exception: see its Count.
//
// A state is dropped when its parameters have not been used for two of their windows, and
// nothing counts any more, under these or the others, that did when they were. So long
// after an upgrade a key has one state again, that of the new parameters. It is two because
// a server answers refusals from memory: for as long as a window that is a use as well, but
// nobody sees it here.
type Kept struct {
	Step  Step
	State []int64
	Until int64 // the instant from which it is not kept
}

// MaxKept is the most states that a key has. Of more, those that were used longest ago are
// dropped.
const MaxKept = 8

// Keep returns a state that was used now. It is kept for at least as long as those beside
// it: without it, its parameters would adopt from one of them, which dates at a later
// instant what the state had counted earlier, and a wait that was promised would not do.
func Keep(p Step, s []int64, now int64, others []Kept) Kept {
	until := max(p.FreshAt(s), now+2*p.Window())
	for _, o := range others {
		until = max(until, o.Until)
	}
	return Kept{p, s, min(until, MaxInt)}
}

// Take returns the state for p among those of a key, and the others that are still kept.
// The last used is the first. If p has none, it adopts one of the others, or the state is
// nil if there is none. The states are not modified. Own.Step is p, or one that means the
// same and has a larger limit, which the state is to be kept with.
//
// Unless the call is a peek, the result has to be stored, even if the call is refused,
// since otherwise each call would begin the wait anew: own as [Keep] returns it, then the
// others. If there are others and units are charged, [Count] counts them.
func Take(kept []Kept, p Step, now int64) (own Kept, others []Kept) {
	own.Step = p
	found := false
	for _, k := range kept {
		switch {
		case k.Until <= now:
		case k.Step.Numbers().alike(p.Numbers()):
			own, found = Kept{Larger(p, k.Step), k.State, k.Until}, true
		default:
			others = append(others, k)
		}
	}
	if found || len(others) == 0 {
		return own, others
	}
	most := slices.MaxFunc(others, func(a, b Kept) int { return cmp.Compare(a.shows(now), b.shows(now)) })
	own.State = p.Adopt(most.State, now, most.Step.Numbers())
	return own, others[:min(len(others), MaxKept-1)]
}

// Redate brings the state of a key under p back if it is ahead of now by more than its
// Window, as it is after the clock was ahead and is right again: to full use, as of now. So
// nothing is admitted for a Window, instead of until the clock has caught up. own and others
// are as from [Take]; the state of own is replaced, not modified. The others are brought back
// when they are used themselves, and kept for two of the longest Windows at most.
//
// If it is true, the result has to be stored, even if the call is refused: the wait would
// begin anew otherwise, and the next step ahead would find less in use. To bring back less
// than full use would admit more at each return.
func Redate(p Step, own *Kept, others []Kept, now int64) bool {
	longest := own.Step.Window()
	for _, o := range others {
		longest = max(longest, o.Step.Window())
	}
	for i := range others {
		others[i].Until = min(others[i].Until, now+2*longest)
	}
	if own.State == nil {
		return false
	}
	if p.Numbers().Algorithm == TokenBucket {
		p = own.Step // a window does not show the largest limit that it is kept for
	}
	full := p.Redate(own.State, now, longest)
	if full == nil {
		return false
	}
	own.State = full
	return true
}

// shows orders states by how much they show: the time for which they count a unit, or the
// units that a bucket lacks.
func (k Kept) shows(now int64) int64 {
	if b, ok := k.Step.(*tokenBucket); ok {
		units, _ := b.units(b.used(k.State, now))
		return units
	}
	return k.Step.Window()
}

// Count counts units in the states of others that have been charged to own, whose state
// is that after the charge.
func Count(others []Kept, own Kept, now, n int64) {
	until := own.Step.FreshAt(own.State)
	for i := range others {
		o := &others[i]
		o.State = o.Step.Count(o.State, now, n, until)
	}
}

// Alike reports whether a state of the one step means the same to the other: they may
// differ only in what the state is compared with. They are of one algorithm.
func Alike(p, q Step) bool { return p.Numbers().alike(q.Numbers()) }

func (m Numbers) alike(o Numbers) bool {
	return m.Period == o.Period && m.Resolution == o.Resolution && m.FromFirst == o.FromFirst && (m.Algorithm != TokenBucket || m.Limit == o.Limit)
}

// Larger returns p, or q if that is alike and has a larger limit. A state is kept with the
// largest, to which its log may grow, and up to which its bucket may be in debt.
func Larger(p, q Step) Step {
	if m, o := p.Numbers(), q.Numbers(); m.Burst < o.Burst || m.Burst == o.Burst && m.Limit < o.Limit {
		return q
	}
	return p
}
