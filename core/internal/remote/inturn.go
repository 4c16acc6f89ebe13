package remote

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/core/store"
)

// InTurn is a store that makes charges of different servers one after the other: first those
// for which there is the least room, as they are the likeliest to be refused. If one is
// refused or fails, the earlier ones are given back. If it is refused, the others still
// count the attempt where their policies say so, and the result has their readings.
type InTurn struct {
	store.Store

	together func(cs []store.Charge) bool
	timeout  time.Duration
}

// NewInTurn returns an InTurn. Charges that are together are left to the store below. All
// others take the timeout at most.
func NewInTurn(next store.Store, together func(cs []store.Charge) bool, timeout time.Duration) *InTurn {
	return &InTurn{next, together, timeout}
}

// Ask implements [store.Store].
func (s *InTurn) Ask(ctx context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	switch {
	case len(q.Charges) == 1, q.Mode == store.Settle, q.Mode == store.Reset, s.together(q.Charges):
		return s.Store.Ask(ctx, q)
	case q.Mode == store.Allow:
		return s.decide(ctx, q)
	default:
		return s.askEach(ctx, q)
	}
}

// askEach asks about each charge, which changes nothing, or what counts refusals.
func (s *InTurn) askEach(ctx context.Context, q *store.Question) error {
	own := until{ctx, deadline(ctx, s.timeout)}
	results := make([]store.Result, len(q.Charges))
	for i := range q.Charges {
		if err := s.one(own, &store.Question{Mode: q.Mode, Charges: q.Charges[i : i+1]}, &results[i]); err != nil {
			return err
		}
	}
	join(&q.Result, results)
	return nil
}

// join joins the results of charges.
func join(all *store.Result, results []store.Result) {
	all.Start(math.MaxInt64, store.SourceStore)
	all.Allowed = true
	for i := range results {
		r := &results[i]
		// The servers' clocks may differ. With the earliest time, a refund gives back
		// least.
		all.At = min(all.At, r.At)
		all.Aged = max(all.Aged, r.Aged)
		all.Allowed = all.Allowed && r.Allowed
		all.AddAll(r)
	}
}

// decide makes charges one after the other.
func (s *InTurn) decide(ctx context.Context, q *store.Question) error {
	cs := q.Charges
	if err := ctx.Err(); err != nil {
		return err
	}
	// From here on it does not count that the caller's context ends: a caller that gives
	// up in between would leave charges although a later key refuses.
	own := until{context.WithoutCancel(ctx), deadline(ctx, s.timeout)}
	results := make([]store.Result, len(cs))
	made := make([]store.Charge, 0, len(cs)) // what to give back
	for _, i := range leastRoomFirst(cs) {
		r := &results[i]
		if err := s.one(own, &store.Question{Mode: store.Allow, Charges: cs[i : i+1], Fresh: q.Fresh}, r); err != nil {
			s.takeBack(own, made)
			return err
		}
		if !r.Allowed {
			s.takeBack(own, made)
			s.refuse(own, cs, i, results)
			break
		}
		c := cs[i]
		c.At, c.Source = r.At, r.Source
		made = append(made, c)
	}
	join(&q.Result, results)
	return nil
}

// leastRoomFirst returns the indices of charges by how often they could be made.
func leastRoomFirst(cs []store.Charge) []int {
	order := make([]int, len(cs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(cs[i].Limiter.Spec().Most()/cs[i].N, cs[j].Limiter.Spec().Most()/cs[j].N)
	})
	return order
}

// one asks a question about one charge, unless the deadline has come.
func (s *InTurn) one(ctx until, q *store.Question, r *store.Result) error {
	if !time.Now().Before(ctx.deadline) {
		return errLate
	}
	err := s.Ask(ctx, q)
	r.CopyFrom(&q.Result)
	return err
}

// refuse counts a refused attempt with the limiters of all charges but the i-th. If one
// does not answer, its readings are those of unused policies: the refusal stands.
func (s *InTurn) refuse(ctx until, cs []store.Charge, i int, results []store.Result) {
	for j := range cs {
		if j == i {
			continue
		}
		if r := &results[j]; s.one(ctx, &store.Question{Mode: store.Refuse, Charges: cs[j : j+1]}, r) != nil {
			r.Start(results[i].At, store.SourceNone)
			unused(r, cs[j])
		}
	}
}

// takeBack gives charges back, once. It waits for that until the deadline, and no longer;
// the settlement itself may take longer. What cannot be given back expires.
func (s *InTurn) takeBack(ctx until, made []store.Charge) {
	if len(made) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Ask(ctx, &store.Question{Mode: store.Settle, Charges: made})
	}()
	timer := time.NewTimer(time.Until(ctx.deadline))
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
