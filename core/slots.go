package core

import (
	"context"
	"fmt"
	"strconv"

	"github.com/headgate/headgate/internal/backend"
)

// Slots are places for what is open at once: each key holds at most a number of them, in all processes that share the
// store. A process that dies loses its slots after the store's SlotTTL. It is safe for concurrent use.
type Slots struct {
	root    *slotsRoot
	backend *backend.SlotLimit
}

// A slotsRoot is what the plans of slots share. It does not change, but for the plans that a function has made.
type slotsRoot struct {
	standard *Slots
	plans    map[string]*Slots
	find     func(plan string) (int64, error) // the limit of a plan; nil: there is none
	made     made[Slots]                      // by find
}

// NewSlots returns slots of which each key holds at most limit, 0 or more. Make them once, not for each request: those
// of one store and name are the same. The name has 1 to 64 characters of printable ASCII, and clients see it. It panics
// if an argument is wrong.
func NewSlots(store Store, name string, limit int64) *Slots {
	if store == nil {
		panic("headgate: the store is nil: use new(core.MemoryStore), or redisstore.Open")
	}
	fault := backend.CheckName(name)
	if fault != nil {
		panic(fmt.Errorf("headgate: slots %.70q: %w", name, fault))
	}
	checkSlots(name, limit)
	r := &slotsRoot{}
	r.standard = &Slots{r, backend.NewSlotLimit(store.Backend(), name, limit)}
	store.Backend().Named("slots", name, strconv.FormatInt(limit, 10))
	return r.standard
}

// checkSlots panics if a number of slots is none.
func checkSlots(name string, limit int64) {
	if limit < 0 || limit > NoLimit {
		panic(fmt.Errorf("headgate: slots %q: a limit of %d slots is not 0 to %d", name, limit, int64(NoLimit)))
	}
}

// clone returns a root to which plans can be added.
func (r *slotsRoot) clone() *slotsRoot {
	if r.standard.backend.Book() != nil {
		panic("headgate: a document has the plans of the slots")
	}
	c := &slotsRoot{plans: make(map[string]*Slots, len(r.plans)+1), find: r.find}
	c.made.owner = r.standard.String()
	c.made.ask = c.make
	c.standard = &Slots{c, r.standard.backend}
	for name, slots := range r.plans {
		c.plans[name] = &Slots{c, slots.backend}
	}
	return c
}

// WithPlan returns the slots with a plan, by which another limit applies: see [Slots.Plan]. What a key holds counts
// under each plan. It panics if an argument is wrong.
func (s *Slots) WithPlan(plan string, limit int64) *Slots {
	if plan == "" {
		panic(`headgate: the plan "" is the default: give it to NewSlots`)
	}
	checkSlots(s.Name(), limit)
	r := s.root.clone()
	r.plans[plan] = &Slots{r, r.standard.backend.WithLimit(limit)}
	return r.standard
}

// WithPlanFunc returns the slots with a function that returns the limit of a plan, such as from a database, or a
// negative number if there is no such plan: then the default applies. It is asked, and its errors are handled, as that
// of [Limiter.WithPlanFunc].
func (s *Slots) WithPlanFunc(find func(plan string) (int64, error)) *Slots {
	if find == nil {
		panic("headgate: the function is nil")
	}
	r := s.root.clone()
	r.find = find
	return r.standard
}

// make makes the slots of a plan by the function. They are one of the known, if the limit is that of before.
func (r *slotsRoot) make(plan string, known []*Slots) (*Slots, error) {
	limit, err := r.find(plan)
	if err != nil {
		return nil, err
	}
	if limit < 0 {
		return r.standard, nil
	}
	limit = min(limit, NoLimit)
	for _, slots := range known {
		if slots != r.standard && slots.backend.Limit("") == limit {
			return slots, nil
		}
	}
	return &Slots{r, r.standard.backend.WithLimit(limit)}, nil
}

// Plan returns the slots whose limit is that of a plan. "" and a plan that is unknown are the default.
func (s *Slots) Plan(plan string) *Slots {
	r := s.root
	switch {
	case plan == "":
	case r.standard.backend.Book() != nil:
		return &Slots{r, r.standard.backend.WithPlan(plan)}
	case r.plans[plan] != nil:
		return r.plans[plan]
	case r.find != nil:
		made, err := r.made.plan(plan)
		if err != nil {
			return &Slots{r, r.standard.backend.Faulty(err)}
		}
		return made
	}
	return r.standard
}

// Name returns the name.
func (s *Slots) Name() string { return s.backend.Name() }

// String describes the slots.
func (s *Slots) String() string { return fmt.Sprintf("slots %q", s.Name()) }

// Acquire takes a slot for the key at once, or returns [ErrFull].
func (s *Slots) Acquire(ctx context.Context, key string) (*Slot, error) { return s.Wait(ctx, key, 0) }

// Wait is Acquire that waits for a slot, if fewer than queue callers wait for the key in this process. They are served
// in their order. A wait that ends in vain is [ErrFull], which wraps the cause of the context's end, if the store has
// answered in it, and else the store's error.
func (s *Slots) Wait(ctx context.Context, key string, queue int) (*Slot, error) {
	slot := new(Slot)
	if err := slot.held.Take(ctx, []backend.Claim{{Slots: s.backend, Key: key, Queue: queue}}); err != nil {
		return nil, err
	}
	return slot, nil
}

// Count returns how many slots the key holds in all processes.
func (s *Slots) Count(ctx context.Context, key string) (int64, error) {
	return s.backend.Count(ctx, key)
}

// Close frees the slots of this name, of all plans, that this process holds, and makes acquires fail with [ErrClosed]
// from now on, and those that wait. After an error, other processes may count them for a SlotTTL; Close may be called
// again.
func (s *Slots) Close(ctx context.Context) error {
	return s.backend.Close(ctx)
}

// A Slot is held until Release. It is safe for concurrent use.
type Slot struct{ held backend.Slot }

// String describes the slot, without its key.
func (*Slot) String() string { return "a slot" }

// Release gives the slot back. Further calls do nothing. It does not wait.
func (s *Slot) Release() { s.held.Release() }

// Lost is closed when the store has taken this process for dead, so that others may have been given the slot. The
// slot counts again if there is room, and must be released as any other.
func (s *Slot) Lost() <-chan struct{} { return s.held.Lost() }
