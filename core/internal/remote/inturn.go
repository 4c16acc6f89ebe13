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
	Denier

	together func(cs []store.Charge) bool
	timeout  time.Duration
}

// A Denier is a store that can count an attempt which is refused elsewhere.
type Denier interface {
	store.Store

	// Deny counts an attempt where the limiter's policies count what is refused. The result
	// has the limiter's readings.
	Deny(ctx context.Context, c store.Charge, r *store.Result) error
}

// NewInTurn returns an InTurn. Charges that are together are left to the store below. All
// others take the timeout at most.
func NewInTurn(next Denier, together func(cs []store.Charge) bool, timeout time.Duration) *InTurn {
	return &InTurn{next, together, timeout}
}

// DecideAll implements [store.Store].
func (s *InTurn) DecideAll(ctx context.Context, cs []store.Charge, all *store.Result) error {
	if err := noExtra(cs); err != nil {
		return err
	}
	if s.together(cs) {
		return s.Denier.DecideAll(ctx, cs, all)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// From here on it does not count that the caller's context ends: a caller that gives
	// up in between would leave charges although a later key refuses.
	own := until{context.WithoutCancel(ctx), deadline(ctx, s.timeout)}
	results := make([]store.Result, len(cs))
	made := make([]store.Settlement, 0, len(cs)) // what to give back
	for _, i := range leastRoomFirst(cs) {
		r := &results[i]
		if err := s.inTime(own, func() error { return s.Decide(own, cs[i], false, r) }); err != nil {
			s.takeBack(own, made)
			return err
		}
		if !r.Allowed {
			s.takeBack(own, made)
			s.deny(own, cs, i, results)
			break
		}
		made = append(made, store.Settlement{Charge: cs[i], At: r.At, Source: r.Source})
	}
	all.Start(math.MaxInt64, store.SourceStore)
	all.Allowed = len(made) == len(cs)
	for i := range results {
		// The servers' clocks may differ. With the earliest time, a refund gives back
		// least.
		all.At = min(all.At, results[i].At)
		all.AddAll(&results[i])
	}
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

// inTime decides, unless the deadline has come.
func (s *InTurn) inTime(ctx until, decide func() error) error {
	if !time.Now().Before(ctx.deadline) {
		return errLate
	}
	return decide()
}

// deny counts a refused attempt with the limiters of all charges but the i-th. If one
// does not answer, its readings are those of unused policies: the refusal stands.
func (s *InTurn) deny(ctx until, cs []store.Charge, i int, results []store.Result) {
	for j := range cs {
		if j == i {
			continue
		}
		r := &results[j]
		if err := s.inTime(ctx, func() error { return s.Deny(ctx, cs[j], r) }); err != nil {
			r.Start(results[i].At, store.SourceNone)
			unused(r, cs[j])
		}
	}
}

// takeBack gives charges back, once. It waits for that until the deadline, and no longer;
// the settlement itself may take longer. What cannot be given back expires.
func (s *InTurn) takeBack(ctx until, made []store.Settlement) {
	if len(made) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Settle(ctx, made)
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
