package lease

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A limiter is what the store keeps with limiters that are equal: of one name, with the same
// policies. They share their leases.
type limiter struct {
	*store.Limiter // the first of them

	hash     uint64 // of the name
	family   *family
	leasable bool
	pause    int64 // for how long a refusal of the store holds at most, in nanoseconds
}

// families are the families of a Store, by the name of their limiters.
type families struct {
	mu     sync.Mutex
	byName map[string]*family
}

func newFamilies() *families { return &families{byName: make(map[string]*family)} }

// join adds a limiter to its family, and returns what is kept with it. It reports whether leases of
// the family must end, since they may reach beyond one of its sub-windows, or be longer than its
// bucket allows.
func (a *families) join(l *store.Limiter, hash uint64) (own *limiter, changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	spec := *l.Spec() // which the cleanup has, and must not keep l
	f := a.byName[spec.Name]
	if f == nil {
		f = newFamily()
		a.byName[spec.Name] = f
	}
	if own = f.equal(&spec); own != nil {
		return own, false
	}
	own = &limiter{Limiter: l, hash: hash, family: f, leasable: leasable(&spec), pause: pauseOf(&spec)}
	// Plans that are replaced do not add up. This holds no Store: a Store's entries have limiters.
	runtime.AddCleanup(own, func(all *families) { all.leave(&spec) }, a)
	return own, f.join(own)
}

// leave removes a limiter that nobody uses any more.
func (a *families) leave(spec *store.Spec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byName[spec.Name].leave(spec) {
		delete(a.byName, spec.Name)
	}
}

// A family is the limiters of one name that are in use. What one of them charges counts for
// all, in the sub-windows of each.
type family struct {
	mu      sync.Mutex
	grids   map[int64]int // how many policies have sub-windows of that length, in microseconds
	buckets map[int64]int // how many have that Lease; 0: they are not leased
	parts   atomic.Pointer[parts]
	members []weak.Pointer[limiter]
	plans   atomic.Int64 // how many different limiters there are
}

func newFamily() *family {
	return &family{grids: make(map[int64]int), buckets: make(map[int64]int)}
}

// Parts say which units are counted alike by all limiters of a family, and for how long they
// may be spent.
type parts struct {
	grids  []int64 // the lengths of their sub-windows, each once, in microseconds
	bucket int64   // the shortest Lease of their buckets, in microseconds; 0: there are none
	never  bool    // leased: there are too many sub-windows, or a bucket is not Leasable
}

// A part is instants of the store. Units that were charged from start to before end are
// counted alike, and may be spent until before over.
type part struct{ start, end, over int64 }

// maxGrids bounds the work for each lease. A name that has more is not leased.
const maxGrids = 32

// prepared returns what the store keeps with a limiter.
func (s *Store) prepared(l *store.Limiter) *limiter {
	return l.Kept(&s.kept).(*limiter)
}

// grid returns the length of the parts of time in which a policy counts, in microseconds, or
// 0 if it has none.
func grid(p step.Step) int64 {
	switch m := p.Numbers(); m.Algorithm {
	case step.FixedWindow:
		if m.FromFirst {
			return 0 // it depends on the key
		}
		return m.Period
	case step.SlidingWindow:
		return p.Window() / (m.Resolution + 1)
	default:
		return 0
	}
}

// leasable reports whether all policies count in parts of time, or are buckets that leave
// room for leases, and count no refusals.
func leasable(spec *store.Spec) bool {
	return !slices.ContainsFunc(spec.Policies, func(p store.Policy) bool {
		m := p.Step.Numbers()
		return grid(p.Step) == 0 && m.Lease == 0 || m.CountDenied
	})
}

// equal returns the limiter with these policies, or nil.
func (f *family) equal(spec *store.Spec) *limiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		own := m.Value()
		if own != nil && slices.EqualFunc(own.Spec().Policies, spec.Policies, func(a, b store.Policy) bool {
			return a.Name == b.Name && a.Step.Numbers() == b.Step.Numbers()
		}) {
			return own
		}
	}
	return nil
}

// maxPause is for how long at most a key that the store refused is refused without another call.
const maxPause = int64(50 * time.Millisecond)

// pauseOf returns for how long a refusal holds, so that what becomes free meanwhile and is not used
// is little: half a hundredth of the limit of a window that slides, a sixteenth of a bucket's burst.
func pauseOf(spec *store.Spec) int64 {
	pause := maxPause
	for _, p := range spec.Policies {
		switch m := p.Step.Numbers(); {
		case m.Algorithm == step.TokenBucket:
			pause = min(pause, m.Lease*1000/4)
		case m.Algorithm == step.SlidingWindow && !m.NeverOver:
			pause = min(pause, m.Period*1000/100)
		}
	}
	return pause
}

// join adds a limiter, and reports whether the parts are others now.
func (f *family) join(own *limiter) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, weak.Make(own))
	f.plans.Add(1)
	return f.count(own.Spec(), 1)
}

// leave removes a limiter that nobody uses any more, and reports whether none is left.
func (f *family) leave(spec *store.Spec) (empty bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = slices.DeleteFunc(f.members, func(m weak.Pointer[limiter]) bool { return m.Value() == nil })
	f.count(spec, -1)
	return f.plans.Add(-1) == 0
}

// count adds a limiter to the counts, or removes it, and reports whether the parts are others
// now. f is locked.
func (f *family) count(spec *store.Spec, by int) (changed bool) {
	add := func(counts map[int64]int, value int64) {
		before := counts[value]
		if counts[value] += by; counts[value] == 0 {
			delete(counts, value)
		}
		changed = changed || before == 0 || counts[value] == 0
	}
	for _, p := range spec.Policies {
		if m := p.Step.Numbers(); m.Algorithm == step.TokenBucket {
			add(f.buckets, m.Lease)
		} else if g := grid(p.Step); g > 0 {
			add(f.grids, g)
		}
	}
	if !changed && f.parts.Load() != nil {
		return false
	}
	all := &parts{never: f.buckets[0] > 0 || len(f.grids) > maxGrids}
	if !all.never {
		all.grids = slices.Collect(maps.Keys(f.grids))
	}
	for lease := range f.buckets {
		if all.bucket == 0 || lease < all.bucket {
			all.bucket = lease
		}
	}
	f.parts.Store(all)
	return true
}

// part returns the part around the store's instant. For a bucket, each instant is one. The
// part is over at once if nothing may be leased.
func (f *family) part(at int64) part {
	all := f.parts.Load()
	if all.never {
		return part{}
	}
	p := part{start: 0, end: step.MaxInt}
	for _, g := range all.grids {
		begin := at - at%g
		p.start, p.end = max(p.start, begin), min(p.end, begin+g)
	}
	p.over = p.end
	if all.bucket > 0 {
		p = part{at, at + 1, min(p.end, at+all.bucket)}
	}
	return p
}

// bucket reports whether units of the limiter refill, so that what is given back late is
// worth less.
func (l *limiter) bucket() bool { return l.family.parts.Load().bucket > 0 }

// counts reports whether some of n units that were charged at that instant still count at now.
func (l *limiter) counts(at, now, n int64) bool {
	for _, p := range l.Spec().Policies {
		m := p.Step.Numbers()
		if m.Algorithm == step.TokenBucket {
			if float64(now-at)*float64(m.Limit) < float64(n)*float64(m.Period) {
				return true
			}
			continue
		}
		g := grid(p.Step)
		if now < at-at%g+max(m.Resolution, 0)*g+g {
			return true
		}
	}
	return false
}

var errLeased = errors.New("the store is itself leased")
