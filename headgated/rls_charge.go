package headgated

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/within"
)

// A group is the charges of one call of core, and the items that each is of.
type group struct {
	charges  []core.Charge
	counts   []int // of the policies of each
	of       [][]*item
	policies int
	repeated bool // one charge of equal items, which are counted one after the other
	shadow   bool // of limits in shadow mode: clients see nothing of them
	quota    bool // of one limit in quota mode, which is charged if the others admit
	peek     bool // nothing is charged, as the request is refused

	decided core.Decision
}

// find returns the charge of the same limiter and key as an item, or -1.
func (g *group) find(it *item) int {
	for i, c := range g.charges {
		if c.Key == it.key && c.Limiter.Name() == it.limiter.Name() {
			return i
		}
	}
	return -1
}

// add adds a charge of its own for an item, unless the call would be too large.
func (g *group) add(it *item, anyway bool) bool {
	n := len(it.limiter.Policies())
	if len(g.charges) == maxAsks || g.policies+n > maxAsks {
		return false
	}
	g.policies, g.counts = g.policies+n, append(g.counts, n)
	g.charges = append(g.charges, core.Charge{Limiter: it.limiter, Key: it.key, N: it.hits, Anyway: anyway})
	g.of = append(g.of, []*item{it})
	return true
}

// groups returns the calls for items. The first has those that are charged together, all or none, and of
// the ones that are counted whether they fit or not, as many as fit beside them. Limits in shadow mode and quotas
// have calls of their own, quotas the last. Of one limiter and key, those
// that are charged together are one charge, and those that are counted are counted one after the other: those that
// are equal as one charge, the others in several calls.
func groups(d *domain, items []item) ([]*group, error) {
	calls := []*group{{}}
	var counted, alone []*item
	for i := range items {
		it := &items[i]
		switch {
		case it.limiter == nil:
			continue
		case it.counted(d):
			counted = append(counted, it)
			continue
		case it.quota:
			alone = append(alone, it)
			continue
		}
		together := calls[0]
		if at := together.find(it); at >= 0 {
			c := &together.charges[at]
			if !slices.Equal(c.Limiter.Policies(), it.limiter.Policies()) {
				return nil, invalid("two descriptors have different limits for one count, and are charged together")
			}
			c.N, together.of[at] = min(c.N+it.hits, maxUnits), append(together.of[at], it)
		} else if !together.add(it, false) {
			return nil, invalid("more than %d limits are charged together", maxAsks)
		}
	}
	for i, it := range counted {
		equal := func(other *item) bool { return it.hits > 0 && it.equal(other) }
		last := lastOf(calls, it)
		switch {
		case last != nil && last.repeated && equal(last.of[0][0]):
			last.charges[0].N, last.of[0] = min(last.charges[0].N+it.hits, maxUnits), append(last.of[0], it)
		case slices.ContainsFunc(counted[i+1:], equal):
			calls = append(calls, &group{repeated: true, shadow: it.shadow})
			calls[len(calls)-1].add(it, true)
		case !slices.ContainsFunc(calls[slices.Index(calls, last)+1:], func(g *group) bool { return !g.repeated && g.shadow == it.shadow && g.add(it, true) }):
			calls = append(calls, &group{shadow: it.shadow})
			calls[len(calls)-1].add(it, true)
		}
	}
	for _, it := range alone {
		calls = append(calls, &group{quota: true})
		calls[len(calls)-1].add(it, false)
	}
	return calls, nil
}

// lastOf returns the last call that charges the limiter and key of an item, or nil.
func lastOf(calls []*group, it *item) (last *group) {
	for _, g := range calls {
		if g.find(it) >= 0 {
			last = g
		}
	}
	return last
}

// equal reports whether two items that are counted may be one charge: they have one window, of which the answer tells the
// units for which there was no room.
func (it *item) equal(other *item) bool {
	return it.limiter == other.limiter && it.key == other.key && it.current != nil && other.hits > 0
}

// counted reports whether the hits count whether they fit or not. Where each descriptor is charged for itself, and in
// shadow mode, a check of 0 hits takes its turn too.
func (it *item) counted(d *domain) bool {
	return d.charge == chargeEach || it.shadow || it.own
}

// charge charges items, and sets their statuses. What the others refuse is not charged to quotas, and what the quotas
// refuse is given back to the others.
func (s *Server) charge(ctx context.Context, d *domain, items []item) ([]*group, error) {
	calls, err := groups(d, items)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if it := &items[i]; it.rule != nil && it.unlimited {
			it.status.LimitRemaining = math.MaxUint32
		}
	}
	by := time.Now().Add(s.config.Timeout)
	if len(calls) > 1 {
		ctx = within.By(ctx, by)
	}
	quotas := slices.IndexFunc(calls, func(g *group) bool { return g.quota })
	if quotas < 0 {
		quotas = len(calls)
	}
	if err = askInTurn(ctx, d, calls[:quotas]); err == nil {
		err = askQuotas(ctx, d, calls[quotas:], refused(items))
	}
	if err != nil || refused(items) {
		calls[0].giveBack(ctx)
	}
	switch {
	case err == nil:
		return calls, nil
	case gaveUp(err):
		return nil, status.FromContextError(err).Err()
	case !refused(items) && calls[0].decided.Len() == 0:
		calls[0] = calls[0].together()
		_ = calls[0].ask(within.By(ctx, by), d) // err is the reason
	}
	if refused(items) { // whatever the others would say
		return calls, nil
	}
	s.current.Load().watch.Undecided(-1, http.StatusServiceUnavailable, err)
	return nil, status.Error(codes.Unavailable, "there is no decision: the store is away, or does not answer in time")
}

// together returns a call that asks about the charges that are made together, without those that are counted. After an
// error of these, it may be known without the store that the others refuse: by a limit of 0, or, if it is the only one, by a remembered refusal.
func (g *group) together() *group {
	t := &group{peek: true}
	for i, c := range g.charges {
		if !c.Anyway {
			t.charges, t.counts, t.of = append(t.charges, c), append(t.counts, g.counts[i]), append(t.of, g.of[i])
		}
	}
	return t
}

// gaveUp reports whether an error is of a caller that did not wait, rather than of the store.
func gaveUp(err error) bool {
	return !errors.Is(err, core.ErrUnavailable) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// askInTurn makes calls one after the other. Limits in shadow mode may be left without a decision, as they refuse nothing.
func askInTurn(ctx context.Context, d *domain, calls []*group) error {
	for _, call := range calls {
		if err := call.ask(ctx, d); err != nil && (!call.shadow || gaveUp(err)) {
			return err
		}
	}
	return nil
}

// askQuotas makes the calls of quotas. Only those of one limiter and key have to wait for each other.
func askQuotas(ctx context.Context, d *domain, calls []*group, peek bool) error {
	turns := make(map[[2]string][]*group)
	for _, call := range calls {
		c := call.charges[0]
		of := [2]string{c.Limiter.Name(), c.Key}
		call.peek, turns[of] = peek, append(turns[of], call)
	}
	var all sync.WaitGroup
	errs := make(chan error, len(calls))
	for _, turn := range turns {
		all.Go(func() {
			for _, call := range turn {
				errs <- call.ask(ctx, d)
			}
		})
	}
	all.Wait()
	for range calls {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// giveBack gives back what was charged if it fitted. Where that fails, it stays charged, and the statuses say so.
func (g *group) giveBack(ctx context.Context) {
	if g.decided.Refund(ctx) != nil { // also if there is nothing to give back
		return
	}
	for i, c := range g.charges {
		if last := g.of[i][len(g.of[i])-1]; !c.Anyway {
			last.status.LimitRemaining = uint32(min(int64(last.status.GetLimitRemaining())+last.hits, math.MaxUint32))
		}
	}
}

// ask makes the call, and sets the statuses of its items.
func (g *group) ask(ctx context.Context, d *domain) (err error) {
	if len(g.charges) == 0 {
		return nil
	}
	uncovered := int64(0)
	switch {
	case g.peek:
		g.decided, err = core.PeekAll(ctx, g.charges...)
	case g.repeated:
		g.decided, uncovered, err = core.ReportAll(ctx, g.charges...)
	default:
		g.decided, err = core.AllowAll(ctx, g.charges...)
	}
	without := errors.Is(err, core.ErrUnavailable) || g.decided.Source == core.SourceLocal || g.decided.Source == core.SourceOpen
	switch {
	case without && ctx.Err() == nil && d.failure == failOpen:
		g.decided = core.Decision{}
		return nil
	case err != nil:
		return err
	case without && d.failure == failClosed:
		return core.ErrUnavailable
	}
	next, now := 0, time.Now()
	for i, c := range g.charges {
		answers := make([]core.Answer, g.counts[i])
		for j := range answers {
			answers[j] = g.decided.Answer(next + j)
		}
		next += len(answers)
		tell(answers, g.of[i], c.N, uncovered, c.Anyway || g.decided.Allowed && !g.peek, now)
	}
	return nil
}

// tell sets the statuses of items that are one charge, as if one had been charged after the other. Of several that are
// counted, uncovered are the units for which there was no room.
func tell(answers []core.Answer, items []*item, total, uncovered int64, charged bool, now time.Time) {
	deciding, fits, left := &answers[0], true, answers[0].Remaining
	var reset, retry time.Duration
	for i := range answers {
		a := &answers[i]
		switch {
		case fits && !a.Allowed, !fits && !a.Allowed && a.RetryAfter > deciding.RetryAfter, fits && a.Remaining < deciding.Remaining:
			deciding = a
		}
		fits, left = fits && a.Allowed, min(left, a.Remaining)
		reset, retry = max(reset, a.ResetAfter), max(retry, a.RetryAfter)
	}
	switch { // before the first
	case charged && fits:
		left += total
	case uncovered > 0:
		left = total - uncovered
	}
	over := false
	for i, it := range items {
		last := i == len(items)-1
		it.charged = charged
		it.over = !fits && (it.hits > left || last && !over)
		over = over || it.over
		switch {
		case it.over && charged: // what is used is above the limit
			left = 0
		case !it.over && (charged || !last):
			left = max(left-it.hits, 0)
		}
		it.status.Code, it.status.LimitRemaining = pb.RateLimitResponse_OK, uint32(min(left, math.MaxUint32))
		it.status.CurrentLimit = it.limitOf(deciding)
		wait := reset
		if it.over {
			wait, it.retry = retry, retry
			if !it.shadow {
				it.status.Code = pb.RateLimitResponse_OVER_LIMIT
			}
		}
		it.wait(wait, now)
	}
}

// wait sets the time until the limit is as new. A window of the clock has an end even if nothing is used,
// or never will be admitted.
func (it *item) wait(d time.Duration, now time.Time) {
	unit := window(it.current.GetUnit()) * time.Duration(it.several)
	switch {
	case unit > 0 && (d == 0 || d == core.Never):
		d = unit - time.Duration(now.UnixNano())%unit
	case d <= 0 || d == core.Never:
		return
	}
	it.status.DurationUntilReset = durationpb.New((d + time.Second - 1).Truncate(time.Second)) // Envoy shows whole seconds
}

// limitOf returns the limit that a status shows: that of the configuration, or of the policy that decided,
// in the largest unit that divides its window.
func (it *item) limitOf(a *core.Answer) *pb.RateLimitResponse_RateLimit {
	if it.current != nil {
		return it.current
	}
	l := &pb.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(min(a.Limit, math.MaxUint32)), Name: it.name}
	for _, unit := range []pb.RateLimitResponse_RateLimit_Unit{
		pb.RateLimitResponse_RateLimit_YEAR, pb.RateLimitResponse_RateLimit_MONTH, pb.RateLimitResponse_RateLimit_WEEK, pb.RateLimitResponse_RateLimit_DAY,
		pb.RateLimitResponse_RateLimit_HOUR, pb.RateLimitResponse_RateLimit_MINUTE, pb.RateLimitResponse_RateLimit_SECOND,
	} {
		if w := window(unit); a.Window > 0 && a.Window%w == 0 {
			l.Unit = unit
			setMultiplier(l, ofLimit, uint32(min(a.Window/w, math.MaxUint32)))
			break
		}
	}
	return l
}
