package counts

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/step"
)

// A counter counts charges and their units. Most charges are of one unit, for which one
// addition is enough. No part of it decreases, so that what is read does not, also in between.
type counter struct {
	some atomic.Uint64 // charges of units
	more atomic.Uint64 // units beyond one for each of these
	none atomic.Uint64 // charges of no units
}

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

func (c *counter) load() (charges, units uint64) {
	some := c.some.Load()
	return some + c.none.Load(), some + c.more.Load()
}

const sources = int(step.SourceLease) + 1

// source returns the index of a source. One that is not known is counted as none.
func source(s step.Source) int {
	if int(s) < sources {
		return int(s)
	}
	return int(step.SourceNone)
}

// counters are one for each source.
type counters [sources]counter

func (c *counters) of(s step.Source) *counter { return &c[source(s)] }

// A limiter is what is counted of a limiter.
type limiter struct {
	spell

	policies  registry[policy]
	withdrawn counters         // admitted by this limiter, and refused by another of the same call
	errors    [reasons]counter // no decisions

	settled, unsettled                 atomic.Uint64 // charges; the others are units
	givenBack, chargedLater, uncovered atomic.Uint64
}

// A policy is what is counted of a policy.
type policy struct {
	name              string
	admitted, refused counters
	trial             counters     // refused on trial: the charges went on
	last, lastTrial   atomic.Int64 // refusal, in nanoseconds since 1970
}

// refused returns what each policy has refused so far.
func (l *limiter) refused() (rs []refused) {
	for _, p := range l.policies.all() {
		r := refused{policy: p.name}
		for i := range p.refused {
			n, _ := p.refused[i].load()
			r.count += n
		}
		rs = append(rs, r)
	}
	return rs
}

// The results of a claim.
const (
	granted = iota
	full
	onTrial // full, and the claim refused nobody
)

// A slots is what is counted of slots.
type slots struct {
	spell

	results  [3][sources]atomic.Uint64 // claims
	errors   [reasons]atomic.Uint64    // claims
	released atomic.Uint64
}

func (k *slots) refused() (n uint64) {
	for i := range k.results[full] {
		n += k.results[full][i].Load()
	}
	return n
}

// held returns how many slots this process holds.
func (k *slots) held() int64 {
	over := k.released.Load() // first: what is released was granted before
	var n uint64
	for i := range k.results[granted] {
		n += k.results[granted][i].Load()
	}
	return int64(n - over)
}

// A registry has a T for each name. To find one takes no lock.
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

func (r *registry[T]) init(most int, create func(name string) *T) {
	r.max, r.create = most, create
	r.names.Store(new(names[T]))
}

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

// add adds a name, or makes all that follow Others.
func (r *registry[T]) add(name string) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.names.Load()
	if x, ok := n.byName[name]; ok || n.others != nil {
		if !ok {
			x = n.others
		}
		return x
	}
	full := len(n.order) >= r.max
	if full {
		name = Others
	}
	x, ok := n.byName[name] // somebody may have chosen the name Others
	if !ok {
		name = strings.Clone(name)
		x = r.create(name)
		n.order = append(n.order[:len(n.order):len(n.order)], x)
		n.byName = maps.Clone(n.byName)
		if n.byName == nil {
			n.byName = make(map[string]*T)
		}
		n.byName[name] = x
	}
	if full {
		n.others = x
	}
	r.names.Store(&n)
	return x
}
