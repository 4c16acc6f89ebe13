package redisrates

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
)

// servers are the server, or the masters of a Cluster.
type servers struct {
	cluster *redis.ClusterClient // nil: there is one address
	known   atomic.Bool          // the client has loaded its table of masters

	// slotted is that the server behind the one address checks hash slots: it is a server of a Cluster, or a service that
	// hides one.
	slotted atomic.Bool

	// first is the only server, and stands for all masters until the table is loaded.
	first server

	mu        sync.Mutex // held to replace byAddress
	byAddress atomic.Pointer[map[string]*server]
}

// noSlot is the hash slot of questions to a server that has none.
const noSlot = -1

// of returns the server to which the client sends the commands of a key, and the hash slot. It makes no call.
func (ss *servers) of(names *rediskey.Names, c *step.Cell) (to *server, hash int) {
	if !ss.hasSlots() {
		return &ss.first, noSlot
	}
	tag := names.AppendTag(make([]byte, 0, 64), c.Key.Reveal())
	hash = rediskey.HashSlot(tag)
	if ss.cluster == nil || !ss.known.Load() {
		return &ss.first, hash
	}
	// Once the table is loaded, this only reads it, even while it is reloaded.
	master, err := ss.cluster.MasterForKey(context.Background(), string(tag))
	if err != nil {
		return &ss.first, hash
	}
	address := master.Options().Addr
	if server := ss.masters()[address]; server != nil {
		return server, hash
	}
	return ss.add(address), hash
}

// hasSlots reports whether a call may have keys of one hash slot only.
func (ss *servers) hasSlots() bool { return ss.cluster != nil || ss.slotted.Load() }

func (ss *servers) masters() map[string]*server { return *ss.byAddress.Load() }

func (ss *servers) add(address string) *server {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	old := ss.masters()
	if server := old[address]; server != nil {
		return server
	}
	grown := maps.Clone(old)
	grown[address] = new(server)
	ss.byAddress.Store(&grown)
	return grown[address]
}

// learn notes that the client has loaded its table: it has sent a command.
func (ss *servers) learn() {
	if ss.cluster != nil && !ss.known.Load() {
		ss.known.Store(true)
	}
}

func (ss *servers) all() []*server {
	return slices.AppendSeq([]*server{&ss.first}, maps.Values(ss.masters()))
}

// A slotError is that of a question whose hash slot, or hash slots, a server did not serve: it has run nothing.
type slotError struct {
	error

	deadline time.Time // of the question
}

func (e slotError) Unwrap() error { return e.error }

// aboutSlot reports whether an error is about hash slots, and not about the server. Those that pass by themselves are
// told only if they do not.
func aboutSlot(err error) (is, passing bool) {
	passing = says(err, "ASK ", "TRYAGAIN")
	return passing || says(err, "MOVED ", "CROSSSLOT", "CLUSTERDOWN Hash slot not served"), passing
}

// maxPassing is for how long a hash slot may be about to move, before that is told.
const maxPassing = time.Second

// An elsewhere notes that a server does not serve some hash slots of which it is asked. Of their keys the failure
// policy decides, of others the server. The zero value is ready to use.
type elsewhere struct {
	noted atomic.Bool // that there are any

	mu     sync.Mutex
	hashes map[int]bool
	first  time.Time // that one was not served
	last   time.Time
	reason error // that was told
}

// failed notes an error about a hash slot, and reports whether it is to be told. That is once, whatever the slots.
func (e *elsewhere) failed(hash int, err error, passing bool, now time.Time) (tell bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reason == nil && now.Sub(e.last) > maxPassing {
		e.first = now
	}
	e.last = now
	if e.hashes == nil {
		e.hashes = make(map[int]bool)
	}
	e.hashes[hash] = true
	e.noted.Store(true)
	if e.reason != nil || passing && now.Sub(e.first) < maxPassing {
		return false
	}
	e.reason = err
	return true
}

// answered notes an answer about a hash slot, and reports whether what was told is over: one that was not served is,
// and none has failed for a while.
func (e *elsewhere) answered(hash int, now time.Time) (over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.hashes[hash] || now.Sub(e.last) < maxPassing {
		return false
	}
	over = e.reason != nil
	e.hashes = nil
	e.reason = nil
	e.noted.Store(false)
	return over
}

// away returns what was told, or nil.
func (e *elsewhere) away() error {
	if !e.noted.Load() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason
}

// A group is some cells of a question, such as those of one hash slot.
type group struct {
	hash  int
	cells []step.Cell
	at    []int // of each cell, its index in the question
}

func (g *group) add(cells []step.Cell, i int) {
	g.cells = append(g.cells, cells[i])
	g.at = append(g.at, i)
}

// copyTo copies the answers to the question.
func (g *group) copyTo(cells []step.Cell) {
	for i, at := range g.at {
		cells[at] = g.cells[i]
	}
}

func (s *Decider) groups(cells []step.Cell) (groups []group) {
	if !s.servers.hasSlots() {
		return []group{{cells: cells}}
	}
	for i := range cells {
		_, hash := s.servers.of(s.names, &cells[i])
		g := slices.IndexFunc(groups, func(g group) bool { return g.hash == hash })
		if g < 0 {
			g, groups = len(groups), append(groups, group{hash: hash})
		}
		groups[g].add(cells, i)
	}
	return groups
}

// room returns how often the units of a group fit into its policies.
func (g *group) room() int64 {
	least := int64(math.MaxInt64)
	for i := range g.cells {
		c := &g.cells[i]
		least = min(least, c.Policy.Max()/max(c.Units, 1))
	}
	return least
}

// decide asks about cells, which may be in several hash slots. The first time that the only server says that it has
// hash slots, it has run nothing: it is asked again by hash slot, as it is from then on.
func (s *Decider) decide(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	hadSlots := s.servers.hasSlots()
	allowed, err = s.askSlots(ctx, mode, cells)
	if hadSlots || err == nil {
		return allowed, err
	}
	var fault slotError // here, as it is allocated
	if !errors.As(err, &fault) {
		return allowed, err
	}
	s.servers.slotted.Store(true)
	return s.askSlots(ctxmark.DecideBy(ctx, fault.deadline), mode, cells)
}

// askSlots asks about cells of each hash slot: charges in turn, and what needs no other at the same time.
func (s *Decider) askSlots(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	if !s.servers.hasSlots() || len(cells) == 1 {
		return s.ask(ctx, mode, cells)
	}
	groups := s.groups(cells)
	switch {
	case len(groups) == 1:
		return s.ask(ctx, mode, cells)
	case mode == step.Allow:
		return s.inTurn(ctx, cells, groups)
	}
	return s.askEach(ctx, mode, cells, groups)
}

// askEach asks about cells of each hash slot at the same time.
func (s *Decider) askEach(ctx context.Context, mode step.Mode, cells []step.Cell, groups []group) (allowed bool, err error) {
	fits, faults := make([]bool, len(groups)), make([]error, len(groups))
	var all sync.WaitGroup
	for i := range groups {
		all.Go(func() { fits[i], faults[i] = s.ask(ctx, mode, groups[i].cells) })
	}
	all.Wait()
	for i := range groups {
		groups[i].copyTo(cells)
	}
	return !slices.Contains(fits, false), errors.Join(faults...)
}

// inTurn charges one hash slot after the other. Those with the least room go first, because they are the likeliest to
// refuse. If one refuses or fails, the earlier charges are given back, but for those of policies that count refused
// attempts. A charge that cannot be given back expires.
func (s *Decider) inTurn(ctx context.Context, cells []step.Cell, groups []group) (allowed bool, err error) {
	defer s.refusals.begin(cells)()
	deadline := time.Now().Add(s.timeout)
	if own, ok := ctx.Deadline(); ok && own.Before(deadline) {
		deadline = own
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// From here on it does not count that the caller gives up: charges would stay although a later key refuses.
	all := until{context.WithoutCancel(ctx), deadline}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(a.room(), b.room()) })
	for i := range groups {
		if allowed, err = s.ask(all, step.Allow, groups[i].cells); allowed {
			continue
		}
		s.giveBack(deadline, groups[:i])
		if err != nil {
			return false, err
		}
		for _, g := range groups[i+1:] { // so that the answer has the longest wait
			if _, err := s.ask(all, step.Peek, g.cells); err != nil {
				for j := range g.cells {
					g.cells[j].Shortfall, g.cells[j].Reading = 0, step.Reading{Remaining: g.cells[j].Policy.Capacity()}
				}
			}
		}
		break
	}
	for i := range groups {
		groups[i].copyTo(cells)
	}
	return allowed, nil
}

// giveBack gives charges back, once, and waits for that until the deadline. The settlement itself may take longer.
func (s *Decider) giveBack(deadline time.Time, groups []group) {
	var made []*step.Cell
	var back []step.Cell
	for _, g := range groups {
		for i := range g.cells {
			if c := &g.cells[i]; c.Units > 0 && !c.Policy.CountDenied {
				made = append(made, c)
				back = append(back, *c)
				back[len(back)-1].Units = -c.Units
			}
		}
	}
	if len(made) == 0 {
		return
	}
	done := make(chan bool, 1)
	go func() {
		_, _ = s.askEach(context.Background(), step.Settle, back, s.groups(back))
		done <- true
	}()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
		for i, c := range made {
			c.Reading = back[i].Reading
			c.RetryAfter = 0
		}
	case <-timer.C:
	}
}

// until is a context with an earlier deadline, which does not end it: who waits looks at the clock.
type until struct {
	context.Context

	deadline time.Time
}

// Deadline implements [context.Context].
func (u until) Deadline() (time.Time, bool) { return u.deadline, true }
