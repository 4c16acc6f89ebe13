package lease

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A limiter is a limiter as the store has prepared it.
type limiter struct {
	store.Limiter // of the store below

	hash     uint64 // of the name
	family   *family
	leasable bool
}

// A family is the limiters of one name. What one of them charges counts for all, in the
// sub-windows of each.
type family struct {
	mu    sync.Mutex
	grids atomic.Pointer[[]int64] // the lengths of their sub-windows, each once, in microseconds
	plans atomic.Int64            // how many limiters there are
}

// maxGrids bounds the work for each lease. A name that has more is not leased.
const maxGrids = 32

func below(l store.Limiter) *limiter {
	return l.(*limiter) //nolint:forcetypeassert // it is what Prepare has returned
}

// grid returns the length of the parts of time in which a policy counts, in microseconds, or
// 0 if it has none.
func grid(p step.Step) int64 {
	switch m := p.Numbers(); m.Algorithm {
	case step.FixedWindow:
		return m.Period
	case step.SlidingWindow:
		return p.Window() / (m.Resolution + 1)
	default:
		return 0
	}
}

// leasable reports whether all policies count in parts of time, and count no refusals.
func leasable(spec *store.Spec) bool {
	return !slices.ContainsFunc(spec.Policies, func(p store.Policy) bool {
		return grid(p.Step) == 0 || p.Step.Numbers().CountDenied
	})
}

// join adds a limiter, and reports whether leases of others must end, since they may
// reach beyond one of its sub-windows.
func (f *family) join(spec *store.Spec) (changed bool) {
	f.plans.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	var grids []int64
	if old := f.grids.Load(); old != nil {
		grids = slices.Clone(*old)
	}
	for _, p := range spec.Policies {
		if g := grid(p.Step); g > 0 && len(grids) <= maxGrids && !slices.Contains(grids, g) {
			grids, changed = append(grids, g), true
		}
	}
	if changed {
		f.grids.Store(&grids)
	}
	return changed
}

// bounds returns the part of time around the store's instant that lies in one sub-window of
// each limiter: from start to before end. It is empty if there are too many.
func (f *family) bounds(at int64) (start, end int64) {
	grids := *f.grids.Load() // it is leasable, so there are some
	if len(grids) > maxGrids {
		return 0, 0
	}
	end = step.MaxInt
	for _, g := range grids {
		begin := at - at%g
		start, end = max(start, begin), min(end, begin+g)
	}
	return start, end
}

// counts reports whether a unit that was charged at that instant still counts at now.
func (l *limiter) counts(at, now int64) bool {
	for _, p := range l.Spec().Policies {
		g := grid(p.Step)
		if now < at-at%g+max(p.Step.Numbers().Resolution, 0)*g+g {
			return true
		}
	}
	return false
}

var errLeased = errors.New("the store is itself leased")
