package remote

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// InTurn is a store that makes charges of different parts one part after the other. The charges
// with the least room go first, because they are the likeliest to be refused. If one part refuses
// or fails, the earlier charges are given back, except the ones that count anyway. If it refuses,
// the others still count the attempt where their policies say so. They also count charges that
// count anyway, and the result has their readings.
type InTurn struct {
	store.Store

	part    func(key string) int
	timeout time.Duration
}

// NewInTurn returns an InTurn. Charges whose keys are of one part are a question to the store
// below. All questions together take the timeout at most.
func NewInTurn(next store.Store, part func(key string) int, timeout time.Duration) *InTurn {
	return &InTurn{next, part, timeout}
}

// A turn is the charges of one part.
type turn struct {
	part    int
	charges []store.Charge
	at      []int // of each charge, its index in the question
	asked   bool
}

// Ask implements [store.Store].
func (s *InTurn) Ask(ctx context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	if len(q.Charges) == 1 || q.Mode == store.Settle || q.Mode == store.Reset {
		return s.Store.Ask(ctx, q)
	}
	turns := s.turns(q.Charges)
	if len(turns) == 1 {
		return s.Store.Ask(ctx, q)
	}
	a := &inTurn{InTurn: s, question: q, turns: turns, results: make([]store.Result, len(q.Charges))}
	a.ctx = until{ctx, deadline(ctx, s.timeout)}
	if q.Mode == store.Allow {
		return a.decide()
	}
	for i := range turns {
		if err := a.ask(&turns[i], q.Mode); err != nil {
			return err
		}
	}
	a.join()
	return nil
}

// turns returns charges by their parts.
func (s *InTurn) turns(cs []store.Charge) (all []turn) {
	for i := range cs {
		part := s.part(cs[i].Key)
		t := slices.IndexFunc(all, func(t turn) bool { return t.part == part })
		if t < 0 {
			t, all = len(all), append(all, turn{part: part})
		}
		all[t].charges, all[t].at = append(all[t].charges, cs[i]), append(all[t].at, i)
	}
	return all
}

// An inTurn is one question that is asked in turn.
type inTurn struct {
	*InTurn

	ctx      until // of the question
	question *store.Question
	turns    []turn
	results  []store.Result // of each charge of the question
}

// join joins the results of the charges.
func (a *inTurn) join() {
	all := &a.question.Result
	all.Start(math.MaxInt64, store.SourceStore)
	all.Allowed = true
	for i := range a.results {
		r := &a.results[i]
		// The servers' clocks may differ. With the earliest time, a refund gives back
		// least.
		all.At = min(all.At, r.At)
		a.question.Charges[i].At = r.At
		all.Aged = max(all.Aged, r.Aged)
		all.Allowed = all.Allowed && r.Allowed
		all.AddAll(r)
	}
}

// decide makes the charges one turn after the other.
func (a *inTurn) decide() error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	// From here on it does not count that the caller's context ends: a caller that gives
	// up in between would leave charges although a later key refuses.
	a.ctx = until{context.WithoutCancel(a.ctx.Context), a.ctx.deadline}
	slices.SortStableFunc(a.turns, func(t, u turn) int { return cmp.Compare(t.room(), u.room()) })
	var made []store.Charge // what to give back
	for i := range a.turns {
		t := &a.turns[i]
		if err := a.ask(t, store.Allow); err != nil {
			a.takeBack(made)
			return err
		}
		t.asked = true
		first := &a.results[t.at[0]]
		if !first.Allowed {
			a.takeBack(made)
			a.refuse(i)
			break
		}
		for _, c := range t.charges {
			if !c.Anyway && c.N > 0 {
				c.At, c.Source = first.At, first.Source
				made = append(made, c)
			}
		}
	}
	a.join()
	return nil
}

// room returns how often the charges could be made; what counts anyway comes last.
func (t *turn) room() int64 {
	least := int64(math.MaxInt64)
	for i := range t.charges {
		if c := &t.charges[i]; !c.Anyway {
			least = min(least, c.Limiter.Spec().Most()/max(c.N, 1))
		}
	}
	return least
}

// ask asks about the charges of a turn, unless the deadline has come.
func (a *inTurn) ask(t *turn, mode store.Mode) error {
	if !time.Now().Before(a.ctx.deadline) {
		return errLate
	}
	q := &store.Question{Mode: mode, Charges: t.charges, Fresh: a.question.Fresh}
	if err := a.Store.Ask(a.ctx, q); err != nil {
		return err
	}
	next := 0 // reading
	for i, c := range t.charges {
		r := &a.results[t.at[i]]
		r.Start(q.Result.At, q.Result.Source)
		r.Allowed, r.Aged = q.Result.Allowed, q.Result.Aged
		for range c.Limiter.Spec().Policies {
			r.Add(q.Result.Admitted(next), *q.Result.Reading(next))
			next++
		}
		a.question.Charges[t.at[i]].Uncovered = c.Uncovered
	}
	return nil
}

// refuse counts a refused attempt in all turns but that one. If one does not answer, its readings are
// those of unused policies: the refusal stands. What counts anyway was counted in the turns before.
func (a *inTurn) refuse(by int) {
	at := a.results[a.turns[by].at[0]].At
	for i := range a.turns {
		t := a.turns[i]
		if i == by {
			continue
		}
		if t.asked {
			t = t.without(func(c *store.Charge) bool { return c.Anyway })
		}
		if len(t.charges) == 0 || a.ask(&t, store.Refuse) == nil {
			continue
		}
		for j, c := range t.charges {
			r := &a.results[t.at[j]]
			r.Start(at, store.SourceNone)
			unused(r, c)
		}
	}
}

// without returns the turn without some of its charges.
func (t *turn) without(these func(c *store.Charge) bool) (some turn) {
	for i := range t.charges {
		if c := &t.charges[i]; !these(c) {
			some.charges, some.at = append(some.charges, *c), append(some.at, t.at[i])
		}
	}
	return some
}

// takeBack gives charges back, once. It waits for that until the deadline, and no longer;
// the settlement itself may take longer. What cannot be given back expires.
func (a *inTurn) takeBack(made []store.Charge) {
	if len(made) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Store.Ask(a.ctx, &store.Question{Mode: store.Settle, Charges: made})
	}()
	timer := time.NewTimer(time.Until(a.ctx.deadline))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// unused adds the readings of unused policies.
func unused(r *store.Result, cs ...store.Charge) {
	for _, c := range cs {
		for _, p := range c.Limiter.Spec().Policies {
			r.Add(true, p.Step.Read(nil, 0, 0))
		}
	}
}
