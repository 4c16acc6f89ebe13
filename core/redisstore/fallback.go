package redisstore

import (
	"context"
	"fmt"

	"github.com/headgate/headgate/core"
)

// localLimiter returns a limiter with the policies of l that decides in this process,
// with its share of the limits.
func (s *Store) localLimiter(l *core.Limiter) (*core.Limiter, error) {
	policies := l.Policies()
	if n := int64(s.config.Servers); n > 1 {
		for i := range policies {
			policies[i] = policies[i].Share(n)
		}
	}
	return core.New(s.local, l.Name(), policies...)
}

// localCharge returns what the local limiter is charged with for c: no more than it can
// ever grant, as c was checked against limits that were not divided.
func localCharge(c core.Charge) core.Charge {
	l := noteOf(c.Limiter).local
	return core.Charge{Limiter: l, Key: c.Key, N: min(c.N, most(l))}
}

// fallback decides without Redis, as the Config's Failure says.
func (s *Store) fallback(ctx context.Context, cs []core.Charge, peek bool, cause error) (r core.Result, err error) {
	if err := ended(ctx); err != nil {
		return r, err // the caller has given up
	}
	switch s.config.Failure {
	case FailOpen:
		r = admitAll(cs)
	case FailLocal:
		local := make([]core.Charge, len(cs))
		for i, c := range cs {
			local[i] = localCharge(c)
		}
		if len(local) == 1 {
			r, err = s.local.Decide(ctx, local[0], peek)
		} else {
			r, err = s.local.DecideAll(ctx, local)
		}
		r.Source = core.SourceLocal
	default:
		err = fmt.Errorf("%w: %w", core.ErrUnavailable, cause)
	}
	if !peek {
		s.decided(cs, &r, err)
	}
	return r, err
}

// most is the largest charge that a limiter whose limits were divided can grant.
func most(l *core.Limiter) int64 {
	n := int64(core.NoLimit)
	for _, c := range l.Cells() {
		n = min(n, c.Step.Max())
	}
	return n
}

// admitAll returns a result that admits, with the readings of unused policies.
func admitAll(cs []core.Charge) core.Result {
	r := core.Result{Allowed: true, Source: core.SourceOpen}
	for _, c := range cs {
		for _, cell := range c.Limiter.Cells() {
			r.Add(true, cell.Step.Read(nil, 0, 0))
		}
	}
	return r
}
