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

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/within"
)

// A group is the charges of one question, and the items that each is of.
type group struct {
	mode     step.Mode
	charges  []backend.Charge
	counts   []int // of the policies of each
	of       [][]*item
	policies int
	shadow   bool // of limits in shadow mode: clients see nothing of them
	quota    bool // of one limit in quota mode, which is charged if the others admit

	decided backend.Decision
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

// add adds a charge of its own for an item, unless the question would be too large.
func (g *group) add(it *item) bool {
	n := len(it.policies())
	if len(g.charges) == maxAsks || g.policies+n > maxAsks {
		return false
	}
	g.policies, g.counts = g.policies+n, append(g.counts, n)
	g.charges = append(g.charges, backend.Charge{Limiter: it.limiter, Key: it.key, Units: it.hits})
	g.of = append(g.of, []*item{it})
	return true
}

// join adds an item to the charge of an equal one, if there is one.
func (g *group) join(it *item) {
	at := g.find(it)
	if at < 0 {
		return
	}
	g.charges[at].Units, g.of[at] = min(g.charges[at].Units+it.hits, maxUnits), append(g.of[at], it)
}

// policies returns the policies of an item's limiter.
func (it *item) policies() []step.Policy {
	ps, _ := it.limiter.Of(it.key)
	return ps.List
}

// counts reports whether two items count alike: then they may be one charge.
func (it *item) counts(other *item) bool {
	return slices.EqualFunc(it.policies(), other.policies(), func(p, q step.Policy) bool { return p.Name == q.Name && p.Numbers == q.Numbers })
}

// groups returns the questions about items, in the order in which they are asked: first those that are charged together,
// all or none; then those that are counted whether they fit or not; and quotas, each alone, the last.
func groups(d *domain, items []item) ([]*group, error) {
	together, counted, quotas := &group{mode: step.Allow}, []*group(nil), []*group(nil)
	for i := range items {
		switch it := &items[i]; {
		case it.limiter == nil:
		case it.counted(d):
			counted = count(counted, it)
		case it.quota:
			g := &group{mode: step.Allow, quota: true}
			g.add(it)
			quotas = append(quotas, g)
		case together.find(it) >= 0:
			if !it.counts(together.of[together.find(it)][0]) {
				return nil, invalid("two descriptors have different limits for one count, and are charged together")
			}
			together.join(it)
		case !together.add(it):
			return nil, invalid("more than %d limits are charged together", maxAsks)
		}
	}
	return slices.Concat([]*group{together}, counted, quotas), nil
}

// count adds an item that is counted whether it fits or not, to a question that comes after all others about its counter:
// equal items are one charge, as if one was counted after the other. One without hits only asks.
func count(all []*group, it *item) []*group {
	mode, next := step.Settle, 0
	if it.hits == 0 {
		mode = step.Peek
	}
	for i, g := range all {
		if at := g.find(it); at >= 0 {
			if next = i + 1; i == lastOf(all, it) && g.mode == mode && mode == step.Settle && it.counts(g.of[at][0]) {
				g.join(it)
				return all
			}
		}
	}
	for _, g := range all[next:] {
		if g.mode == mode && g.shadow == it.shadow && g.add(it) {
			return all
		}
	}
	g := &group{mode: mode, shadow: it.shadow}
	g.add(it)
	return append(all, g)
}

// lastOf returns the last question about the limiter and key of an item.
func lastOf(all []*group, it *item) (last int) {
	for i, g := range all {
		if g.find(it) >= 0 {
			last = i
		}
	}
	return last
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
	case !refused(items) && calls[0].decided.Len() == 0: // it may be known without the store that they refuse
		calls[0].mode = step.Peek
		_ = calls[0].ask(within.By(ctx, by), d) // err is the reason
	}
	if refused(items) { // whatever the others would say
		return calls, nil
	}
	s.current.Load().watch.Undecided(-1, http.StatusServiceUnavailable, err)
	return nil, status.Error(codes.Unavailable, "there is no decision: the store is away, or does not answer in time")
}

// gaveUp reports whether an error is of a caller that did not wait, rather than of the store.
func gaveUp(err error) bool {
	return !errors.Is(err, core.ErrUnavailable) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// askInTurn asks one question after the other. Limits in shadow mode may be left without a decision, as they refuse nothing.
func askInTurn(ctx context.Context, d *domain, calls []*group) error {
	for _, call := range calls {
		if err := call.ask(ctx, d); err != nil && (!call.shadow || gaveUp(err)) {
			return err
		}
	}
	return nil
}

// askQuotas asks about quotas. Only those of one limiter and key have to wait for each other.
func askQuotas(ctx context.Context, d *domain, calls []*group, peek bool) error {
	turns := make(map[[2]string][]*group)
	for _, call := range calls {
		c := call.charges[0]
		of := [2]string{c.Limiter.Name(), c.Key}
		if turns[of] = append(turns[of], call); peek {
			call.mode = step.Peek
		}
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

// giveBack gives back what was charged. Where that fails, it stays charged, and the statuses say so.
func (g *group) giveBack(ctx context.Context) {
	if g.decided.Refund(ctx) != nil { // also if there is nothing to give back
		return
	}
	for i := range g.charges {
		last := g.of[i][len(g.of[i])-1]
		last.status.LimitRemaining = uint32(min(int64(last.status.GetLimitRemaining())+last.hits, math.MaxUint32))
	}
}

// ask asks the question, and sets the statuses of its items.
func (g *group) ask(ctx context.Context, d *domain) error {
	if len(g.charges) == 0 {
		return nil
	}
	g.decided = backend.Decision{}
	err := backend.Decide(ctx, g.mode, g.charges, &g.decided)
	without := errors.Is(err, core.ErrUnavailable) || err == nil && g.decided.Totals().Degraded
	switch {
	case without && ctx.Err() == nil && d.failure == failOpen:
		g.decided = backend.Decision{}
		return nil
	case err != nil:
		g.decided = backend.Decision{}
		return err
	case without && d.failure == failClosed:
		return core.ErrUnavailable
	}
	next, now := 0, time.Now()
	for i, c := range g.charges {
		answers, uncovered := make([]backend.Answer, g.counts[i]), int64(0)
		for j := range answers {
			if answers[j] = g.decided.At(next + j); g.mode == step.Settle {
				uncovered = max(uncovered, g.decided.Uncovered(next+j))
			}
		}
		next += len(answers)
		charged := g.mode == step.Settle || g.mode == step.Allow && g.decided.Allowed || g.mode == step.Peek && g.of[i][0].counted(d)
		tell(answers, g.of[i], c.Units, uncovered, charged, now)
	}
	return nil
}

// tell sets the statuses of items that are one charge, as if one had been charged after the other. Of several that are
// counted, uncovered are the units for which there was no room.
func tell(answers []backend.Answer, items []*item, total, uncovered int64, charged bool, now time.Time) {
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
func (it *item) limitOf(a *backend.Answer) *pb.RateLimitResponse_RateLimit {
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
