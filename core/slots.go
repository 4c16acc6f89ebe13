package core

import (
	"context"
	"fmt"

	"github.com/headgate/headgate/internal/backend"
	old "github.com/headgate/headgate/internal/old/core"
)

// Slots are places for what is open at once: each key holds at most a number of them, in all processes that share the
// store. A process that dies loses its slots after the store's SlotTTL. It is safe for concurrent use.
type Slots struct {
	root    *slotsRoot
	backend *backend.Slots
}

// A slotsRoot is what the plans of slots share. It does not change.
type slotsRoot struct {
	standard *Slots
	plans    map[string]*Slots
	find     func(plan string) int64
	book     backend.Book
}

// NewSlots returns slots of which each key holds at most limit, 0 or more. Make them once, not for each request: those of
// one store and name are the same. The name has 1 to 64 characters of printable ASCII, and clients see it. It panics if
// an argument is wrong.
func NewSlots(s Store, name string, limit int64) *Slots {
	if s == nil {
		panic("headgate: the store is nil: use new(core.MemoryStore), or redisstore.Open")
	}
	r := &slotsRoot{}
	slots := must(old.NewSlots(s.Backend().Slots, name, limit))
	s.Backend().Uses(name, slots)
	r.standard = &Slots{r, backend.ConstantSlots(slots)}
	return r.standard
}

// clone returns a root to which plans can be added.
func (r *slotsRoot) clone() *slotsRoot {
	if r.book != nil {
		panic("headgate: a document has the plans of the slots")
	}
	c := &slotsRoot{plans: make(map[string]*Slots, len(r.plans)+1), find: r.find}
	c.standard = &Slots{c, r.standard.backend}
	for name, p := range r.plans {
		c.plans[name] = &Slots{c, p.backend}
	}
	return c
}

// with returns slots of another limit.
func (r *slotsRoot) with(limit int64) (*Slots, error) {
	s, err := r.standard.backend.Now("").With(limit)
	if err != nil {
		return nil, err
	}
	return &Slots{r, backend.ConstantSlots(s)}, nil
}

// WithPlan returns the slots with a plan, by which another limit applies: see [Slots.Plan]. What a key holds counts
// under each plan. It panics if an argument is wrong.
func (s *Slots) WithPlan(plan string, limit int64) *Slots {
	if plan == "" {
		panic(`headgate: the plan "" is the default: give it to NewSlots`)
	}
	r := s.root.clone()
	r.plans[plan] = must(r.with(limit))
	return r.standard
}

// WithPlanFunc returns the slots with a function that returns the limit of a plan, such as from a database, or a
// negative number if there is no such plan: then the default applies. It is asked about plans that WithPlan has not
// named, for each acquire. It must be safe for concurrent use.
func (s *Slots) WithPlanFunc(find func(plan string) int64) *Slots {
	if find == nil {
		panic("headgate: the function is nil")
	}
	r := s.root.clone()
	r.find = find
	return r.standard
}

// Plan returns the slots whose limit is that of a plan. "" and a plan that is unknown are the default.
func (s *Slots) Plan(plan string) *Slots {
	r := s.root
	switch {
	case plan == "":
		return r.standard
	case r.book != nil:
		return &Slots{r, backend.DocumentedSlots(r.book, r.standard.Name(), plan)}
	case r.plans[plan] != nil:
		return r.plans[plan]
	case r.find != nil:
		if p, err := r.with(r.find(plan)); err == nil {
			return p
		}
	}
	return r.standard
}

// DocumentedSlots returns the slots of that name in a document. It is for package limits.
func DocumentedSlots(b backend.Book, name string) *Slots {
	r := &slotsRoot{book: b}
	r.standard = &Slots{r, backend.DocumentedSlots(b, name, "")}
	return r.standard
}

// Name returns the name.
func (s *Slots) Name() string { return s.backend.Name() }

// String describes the slots.
func (s *Slots) String() string { return fmt.Sprintf("slots %q", s.Name()) }

// Backend is for package headgate itself.
func (s *Slots) Backend() *backend.Slots { return s.backend }

// Acquire takes a slot for the key at once, or returns [ErrFull].
func (s *Slots) Acquire(ctx context.Context, key string) (*Slot, error) {
	return slot(s.backend.Now(key).Acquire(ctx, key))
}

// Wait is Acquire that waits for a slot, if fewer than queue callers wait for the key in this process. They are served
// in their order. A wait that ends in vain is [ErrFull], which wraps the cause of the context's end, if the store has
// answered in it, and else the store's error.
func (s *Slots) Wait(ctx context.Context, key string, queue int) (*Slot, error) {
	return slot(s.backend.Now(key).AcquireWait(ctx, key, queue))
}

// Count returns how many slots the key holds in all processes.
func (s *Slots) Count(ctx context.Context, key string) (int64, error) {
	return s.backend.Count(ctx, key)
}

// Close frees the slots of this name, of all plans, that this process holds, and makes acquires fail with [ErrClosed]
// from now on, and those that wait. After an error, other processes may count them for a SlotTTL; Close may be called
// again.
func (s *Slots) Close(ctx context.Context) error {
	return s.backend.Now("").Close(ctx)
}

// A Slot is held until Release. It is safe for concurrent use.
type Slot struct{ held *old.Slot }

func slot(s *old.Slot, err error) (*Slot, error) {
	if err != nil {
		return nil, err
	}
	return &Slot{s}, nil
}

// Release gives the slot back. Further calls do nothing. It does not wait.
func (s *Slot) Release() { s.held.Release() }

// Lost is closed when the store has taken this process for dead, so that others may have been given the slot. The
// slot counts again if there is room, and must be released as any other.
func (s *Slot) Lost() <-chan struct{} { return s.held.Lost() }
