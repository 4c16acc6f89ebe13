package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core/internal/keeper"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A SlotBackend runs what the protocol of slots asks of the servers.
type SlotBackend interface {
	Backend

	// Shards and Shard divide keys as [keeper.Transport] describes.
	Shards() int
	Shard(key string) int

	// State runs ops of one server, and sets the reply or the error of each. The error is
	// what that has shown of the server: see [Backend].
	State(ctx context.Context, ops []*keeper.Op) error

	// ProbeSlots is the like of Probe for State.
	ProbeSlots(ctx context.Context, part int) error

	// Stated returns the statements of a key, and the incarnations that are dead.
	Stated(ctx context.Context, name, key string) (stated []keeper.Field, dead []string, err error)

	BeatBackend
	NoticeBackend
}

// A BeatBackend sends heartbeats, all to one server, whatever the keys.
type BeatBackend interface {
	// Beat and Histories are as in [keeper.Transport].
	Beat(ctx context.Context, b *keeper.Beat) error
	Histories(ctx context.Context) string

	// BeatRoute is the like of Route.
	BeatRoute() (server *Server, part int)

	// ProbeBeats is the like of Probe, and is told how to beat.
	ProbeBeats(ctx context.Context, beat func(ctx context.Context) error) error
}

// A NoticeBackend keeps notices, and the answers to them.
type NoticeBackend interface {
	// Topic returns the name of the statements of a key.
	Topic(name, key string) string

	// Post makes a post known to all processes. There is an error if that is lasting, and
	// MaxPosts are.
	Post(ctx context.Context, p Post) error

	// Posts returns posts after a cursor, of each kind the oldest first. It also returns the next
	// cursor, and whether there are more.
	Posts(ctx context.Context, after Cursor) (posts []Received, next Cursor, more bool, err error)

	// Reply keeps a text of a process about a post, for at least PostLife. Replies returns the
	// texts of all processes, and then whether the post is stored: it may be lost, or over.
	Reply(ctx context.Context, post, process, text string) error
	Replies(ctx context.Context, p Post) (all map[string]string, stored bool, err error)
}

// SlotConfig configures [Slots].
type SlotConfig struct {
	Failure Failure
	Servers int // of the service; under [Local] the limits are divided by it

	Timeout  time.Duration // bounds the wait for a slot, and every call about slots: see [Config]
	TTL      time.Duration // how long the slots of a process stay taken after its last heartbeat
	Instance string        // see [keeper.Config]
}

// Slots is a store of slots over servers that all processes share.
type Slots struct {
	backend SlotBackend
	config  SlotConfig
	calls   Config
	watch   watch
	keeper  *keeper.Keeper

	beats    breaker // of the server that has them, whichever that is
	beatings watch

	notices notices
}

// NewSlots returns Slots. Nothing runs until a slot is acquired.
func NewSlots(b SlotBackend, c Config, sc SlotConfig) *Slots {
	c.Timeout = sc.Timeout
	s := &Slots{backend: b, config: sc, calls: c, watch: newWatch(b.ProbeSlots, c)}
	s.notices.process = rand.Text()
	kc := keeper.Config{TTL: sc.TTL, Timeout: sc.Timeout, Shards: b.Shards(), Instance: sc.Instance}
	if o := c.Observer; o != nil {
		kc.Lost, kc.Restated = o.SlotsLost, o.SlotsRestated
	}
	s.keeper = keeper.New(transport{s}, kc)
	s.beatings = newWatch(func(ctx context.Context, _ int) error { return b.ProbeBeats(ctx, s.keeper.Beat) }, c)
	return s
}

// Observer implements [store.SlotStore].
func (s *Slots) Observer() *store.Observer { return s.calls.Observer }

// Shared implements [store.SlotStore].
func (*Slots) Shared() bool { return true }

// AcquireSlots implements [store.SlotStore].
func (s *Slots) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	if err := ctx.Err(); err != nil {
		return store.Grant{}, err
	}
	deadline := time.Now().Add(s.calls.Timeout)
	g := store.Grant{Source: store.SourceStore, Occupancies: make([]store.Occupancy, len(claims))}
	for i, c := range claims {
		o := store.Occupancy{Limit: c.Limit}
		g.Occupancies[i] = o
		// A limit of 0 bans the key, whatever Failure says.
		if o.Limit > 0 && !s.allows(c.Key) {
			continue // Failure decides
		}
		if held, due, full := s.keeper.Full(c.Name, c.Key, c.Most(), c.Waiting > 0); full {
			o.Held = held
			return store.Grant{}, &store.FullError{Claim: i, Occupancy: o, Source: store.SourceCache, Again: keeper.Again(due)}
		}
	}
	taken, done := make(holds, 0, len(claims)), false
	defer func() {
		if !done {
			taken.Release()
		}
	}()
	for i, c := range claims {
		o := &g.Occupancies[i]
		hold, due, source, err := s.acquire(ctx, deadline, c, o)
		if err == nil && hold == nil {
			err = &store.FullError{Claim: i, Occupancy: *o, Source: source, Again: keeper.Again(due)}
		}
		if err != nil {
			return store.Grant{}, err
		}
		taken = append(taken, hold)
		g.Source = weaker(g.Source, source)
	}
	done = true
	g.Hold = taken
	if len(taken) == 1 {
		g.Hold = taken[0]
	}
	return g, nil
}

// allows reports whether the server of a key is asked for slots. If another server, which has
// the beats, is unavailable, it is for as long as slots can be acquired without a beat.
func (s *Slots) allows(key string) bool {
	server, _ := s.backend.Route(key)
	if !server.slots.allows() || s.beats.allows() {
		return server.slots.allows()
	}
	beaten, _ := s.backend.BeatRoute()
	return server != beaten && s.keeper.Beaten()
}

// weaker returns the one of two sources of grants that vouches for less.
func weaker(a, b store.Source) store.Source {
	for _, s := range []store.Source{store.SourceOpen, store.SourceLocal} {
		if a == s || b == s {
			return s
		}
	}
	return store.SourceStore
}

// acquire takes a slot and sets o.Held, and o.Limit if a share of it applies. If the key
// is full, the hold and the error are nil, and due is that of the keeper.
func (s *Slots) acquire(ctx context.Context, deadline time.Time, c store.Claim, o *store.Occupancy) (h *keeper.Hold, due int, source store.Source, err error) {
	err = errAway
	if s.allows(c.Key) {
		var a keeper.Answer
		a, err = s.keeper.Ask(ctx, deadline, keeper.Request{Name: c.Name, Key: c.Key, Limit: c.Limit, Room: c.Most(), Waiting: c.Waiting})
		o.Held = a.Held
		switch {
		case err == nil:
			return a.Hold, a.Due, store.SourceStore, nil
		case errors.Is(err, keeper.ErrClosed):
			return nil, 0, store.SourceStore, store.ErrClosed
		case ctx.Err() != nil:
			return nil, 0, store.SourceStore, ctx.Err()
		}
	}
	room, others := o.Limit, true
	source = store.SourceLocal
	switch n := int64(s.config.Servers); {
	case s.config.Failure == Closed:
		return nil, 0, source, unavailable(err)
	case s.config.Failure == Open:
		room, source, others = step.MaxInt, store.SourceOpen, false
	case n > 1:
		room, others = (room+n-1)/n, false // the others have shares too
		o.Limit = room
	}
	if room < step.MaxInt {
		room += c.Most() - c.Limit
	}
	hold, held := s.keeper.Take(c.Name, c.Key, c.Limit, room, others)
	o.Held = held
	return hold, 0, source, nil
}

// holds are the holds of several claims.
type holds []*keeper.Hold

// Release implements [store.Hold].
func (hs holds) Release() {
	for _, h := range hs {
		h.Release()
	}
}

// Lost implements [store.Hold].
func (hs holds) Lost() <-chan struct{} { return hs[0].Lost() }

// CountSlots implements [store.SlotStore]. Other processes count with what they have stated,
// except those that are known to be dead.
func (s *Slots) CountSlots(ctx context.Context, name, key string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout)
	defer cancel()
	stated, dead, err := s.backend.Stated(ctx, name, key)
	if err != nil {
		return 0, unavailable(err)
	}
	n, own := s.keeper.Own(name, key)
	for _, f := range stated {
		if !slices.Contains(own, f.ID) && !slices.Contains(dead, f.ID) {
			n += f.Count
		}
	}
	return n, nil
}

// CloseSlots implements [store.SlotStore]. It waits for the servers no longer than the
// TTL: after that, others no longer count this process anyway.
func (s *Slots) CloseSlots(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.TTL)
	defer cancel()
	if err := s.keeper.Close(ctx, name); err != nil {
		return fmt.Errorf("headgate: slots %q: %w", name, err)
	}
	return nil
}

// A transport is what the keeper sees of the servers.
type transport struct{ *Slots }

// Shard implements [keeper.Transport].
func (t transport) Shard(key string) int { return t.backend.Shard(key) }

// Beat implements [keeper.Transport]. It ignores the breaker that it opens: a process that
// sends no heartbeats is dead.
func (t transport) Beat(ctx context.Context, b *keeper.Beat) error {
	server, part := t.backend.BeatRoute()
	a := server.attempt(&t.beats, part)
	err := t.backend.Beat(ctx, b)
	if gaveUp := errors.Is(ctx.Err(), context.Canceled); !gaveUp && !errors.Is(err, ErrGone) {
		t.beatings.report(a, err)
	}
	return err
}

// Servers implements [keeper.Transport].
func (t transport) Servers(ctx context.Context) string { return t.backend.Histories(ctx) }

// Run implements [keeper.Transport]. The keys of a shard may be of several servers.
func (t transport) Run(ctx context.Context, _ int, ops []*keeper.Op) {
	var all sync.WaitGroup
	for len(ops) > 0 {
		server, part := t.backend.Route(ops[0].Key)
		var some, others []*keeper.Op
		for _, op := range ops {
			if s, _ := t.backend.Route(op.Key); s == server {
				some = append(some, op)
			} else {
				others = append(others, op)
			}
		}
		if ops = others; len(ops) == 0 {
			t.run(ctx, server, part, some) // most often there is one
			break
		}
		all.Go(func() { t.run(ctx, server, part, some) })
	}
	all.Wait()
}

// run runs ops of one server.
func (t transport) run(ctx context.Context, server *Server, part int, ops []*keeper.Op) {
	if !server.slots.allows() {
		// What is only stated is sent nevertheless: the keeper does not repeat it while
		// heartbeats fail, and until others know it, they grant too much.
		var statements []*keeper.Op
		for _, op := range ops {
			if op.Want == 0 {
				statements = append(statements, op)
			} else {
				op.Err = fmt.Errorf("%w: %w", keeper.ErrUnsent, errAway)
			}
		}
		if ops = statements; len(ops) == 0 {
			return
		}
	}
	a := server.attempt(&server.slots, part)
	failure := t.backend.State(ctx, ops)
	t.watch.report(a, failure)
	t.calls.called(a, len(ops), failure)
}
