package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
)

// Settle implements [core.Store]. A settlement is sent once: one that is not answered
// may have been made. It is sent even if the context has ended, and takes the Timeout at
// most.
func (s *Store) Settle(ctx context.Context, ss []core.Settlement) error {
	ctx = context.WithoutCancel(ctx)
	var shared, local []*core.Settlement
	for i := range ss {
		switch ss[i].Source {
		case core.SourceStore:
			shared = append(shared, &ss[i])
		case core.SourceLocal:
			local = append(local, &ss[i])
		}
	}
	for _, t := range local {
		own := []core.Settlement{*t}
		own[0].Charge = localCharge(t.Charge)
		own[0].Actual = min(t.Actual, own[0].N) + max(t.Actual-t.N, 0)
		if err := s.local.Settle(ctx, own); err != nil {
			return err
		}
		t.Uncovered = own[0].Uncovered
	}
	if len(shared) == 1 {
		return s.settle(ctx, shared[0])
	}
	faults := make([]error, len(shared))
	var all sync.WaitGroup
	for i, t := range shared {
		all.Go(func() { faults[i] = s.settle(ctx, t) })
	}
	all.Wait()
	return errors.Join(faults...)
}

// settle settles one charge that Redis has admitted.
func (s *Store) settle(ctx context.Context, t *core.Settlement) error {
	q := s.pools.question()
	q.mode = modeSettle
	q.one[0], q.at, q.actual = t.Charge, t.At, t.Actual
	q.charges = q.one[:]
	q.deadline = time.Now().Add(s.config.Timeout)
	s.cache.invalidate(q.charges)
	if err := s.submit(ctx, q); err != nil {
		return err
	}
	s.cache.invalidate(q.charges)
	t.Uncovered = q.uncovered
	s.pools.free(q)
	return nil
}
