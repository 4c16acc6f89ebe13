package stats

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// A counter counts charges and their units. Most charges are of one unit, for which one addition is enough. No part of
// it decreases, so that what is read does not, also in between. A charge of n units, n > 1, is one of some and n-1 of
// more: who reads meanwhile may miss either.
type counter struct {
	some atomic.Uint64 // charges of units
	more atomic.Uint64 // units beyond one for each of these
	none atomic.Uint64 // charges of no units
}

// add counts a charge.
func (c *counter) add(units int64) {
	if units < 1 {
		c.none.Add(1)
		return
	}
	c.some.Add(1)
	if units > 1 {
		c.more.Add(uint64(units - 1))
	}
}

// load returns the charges, and their units.
func (c *counter) load() (charges, units uint64) {
	some := c.some.Load()
	return some + c.none.Load(), some + c.more.Load()
}

// counters are one for each source of decisions.
type counters [step.SourceLease + 1]counter

// charges returns how many there were, whatever their source.
func (c *counters) charges() (sum uint64) {
	for i := range c {
		n, _ := c[i].load()
		sum += n
	}
	return sum
}

// A group is what is counted of the limiters of one name; or of the slots of one name: their claims are charges of one
// unit, by a policy without a name.
type group struct {
	stats      *Stats
	kind, name string
	policies   registry[policy]
	withdrawn  counters         // refused by another limiter of the same call
	errors     [reasons]counter // no decisions

	settled, unsettled                 atomic.Uint64 // charges; the next are units
	givenBack, chargedLater, uncovered atomic.Uint64
	released                           atomic.Uint64 // slots

	spell spell
	top   top
}

// A policy is what is counted of a policy.
type policy struct {
	name              string
	admitted, refused counters
	trial             counters // refused on trial: the charges went on
	logged            uint64   // refusals; guarded by the mutex of the spell

	// When it last refused, in nanoseconds since 1970.
	lastRefused, lastTrial atomic.Int64
}

func newGroup(seen *Stats, kind, name string) *group {
	g := &group{stats: seen, kind: kind, name: name}
	g.policies.init(maxPolicies, func(name string) *policy { return &policy{name: name} })
	return g
}

// refuse counts a refusal by a policy.
func (g *group) refuse(by *policy, source step.Source, units int64, trial bool, key string) {
	// The clock is read for refusals only: admitted charges have no time, and it takes longer than to count one.
	now := time.Now()
	g.top.add(g.stats, now, key)
	// A refusal on trial is shown with its key, so that people see whom a limit would hit. But it begins no spell and
	// no record: nobody was refused.
	if trial {
		by.lastTrial.Store(now.UnixNano())
		by.trial[source].add(units)
		return
	}
	by.lastRefused.Store(now.UnixNano())
	by.refused[source].add(units)
	g.extend(now)
}

// others is the name under which everything is counted whose name came when as many names were known as are counted one
// by one.
const others = "(others)"

// A registry has a T for each name. To find one takes no lock. Its names and what belongs to them are one value, which
// is replaced as a whole: names are few and soon known, so almost all that a charge does here is one load and a look
// into a map.
type registry[T any] struct {
	max    int
	create func(name string) *T
	names  atomic.Pointer[names[T]]
	mu     sync.Mutex
}

// names are never modified.
type names[T any] struct {
	byName map[string]*T
	order  []*T
	others *T
}

// init makes the registry ready. Above that many names, all are others: names may come from requests.
func (r *registry[T]) init(most int, create func(name string) *T) {
	r.max = most
	r.create = create
	r.names.Store(&names[T]{byName: make(map[string]*T)})
}

// get returns that of a name, which may be new.
func (r *registry[T]) get(name string) *T {
	n := r.names.Load()
	if x, ok := n.byName[name]; ok {
		return x
	}
	if n.others != nil {
		return n.others
	}
	return r.add(name)
}

// all returns them in the order in which they were first used.
func (r *registry[T]) all() []*T { return r.names.Load().order }

// add adds a name, or makes all that follow others.
func (r *registry[T]) add(name string) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Readers take no lock, so they see the names before or after, never in between.
	n := *r.names.Load()
	full := len(n.order) >= r.max
	if _, ok := n.byName[name]; full && !ok {
		name = others // which somebody may have chosen as a name
	}
	// The names are copied, as readers may be looking at them. That happens once for each name.
	x, ok := n.byName[name]
	if !ok {
		name = strings.Clone(name)
		x = r.create(name)
		n.order = append(n.order[:len(n.order):len(n.order)], x)
		n.byName = maps.Clone(n.byName)
		n.byName[name] = x
	}
	// From now on get answers others for each new name, without the lock, and no name is copied any more.
	if name == others && full {
		n.others = x
	}
	r.names.Store(&n)
	return x
}

// buckets are the upper bounds of the durations of calls, but for the last, which has none.
var buckets = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, time.Second,
}

// A histogram counts durations.
type histogram struct {
	counts [len(buckets) + 1]atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

// add counts a duration.
func (h *histogram) add(took time.Duration) {
	// A duration that equals a bound belongs to it: in Prometheus, le means less or equal.
	i := 0
	for i < len(buckets) && took > buckets[i] {
		i++
	}
	h.sum.Add(uint64(took))
	h.counts[i].Add(1)
}
