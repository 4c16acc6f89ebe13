package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore/internal/keeper"
)

// A slotKeeper is a keeper and the scripts that its transport runs.
type slotKeeper struct {
	*keeper.Keeper

	state, beat script
}

// newSlotKeeper makes a slotKeeper. Nothing runs until a slot is acquired.
func (s *Store) newSlotKeeper() slotKeeper {
	k := keeper.New((*transport)(s), keeper.Config{
		TTL:      s.config.SlotTTL,
		Timeout:  s.config.Timeout,
		Shards:   s.shards(),
		Instance: s.config.Instance,
		Lost:     s.config.Hooks.SlotsLost,
		Restated: s.config.Hooks.SlotsRestated,
	})
	return slotKeeper{k, newScript(keeper.SlotsScript), newScript(keeper.BeatScript)}
}

// AcquireSlots implements [core.SlotStore].
func (s *Store) AcquireSlots(ctx context.Context, claims []core.Claim) (core.Grant, error) {
	if err := ctx.Err(); err != nil {
		return core.Grant{}, err
	}
	deadline := time.Now().Add(s.config.Timeout)
	g := core.Grant{Source: core.SourceStore, Occupancies: make([]core.Occupancy, len(claims))}
	for i, c := range claims {
		o := core.Occupancy{Slots: c.Slots.Name(), Limit: c.Slots.Limit(c.Key)}
		g.Occupancies[i] = o
		// A limit of 0 bans the key, whatever Failure says.
		if o.Limit > 0 && !s.queueOfKey(c.Key).breaker.allows() {
			continue // Failure decides
		}
		if held, full := s.slots.Full(o.Slots, c.Key, o.Limit); full {
			o.Held = held
			return core.Grant{}, s.full(o, i, core.SourceCache)
		}
	}
	taken, done := make(holds, 0, len(claims)), false
	defer func() {
		if !done { // an error, or a hook has panicked
			taken.Release()
		}
	}()
	for i, c := range claims {
		o := &g.Occupancies[i]
		hold, source, err := s.acquire(ctx, deadline, c.Key, o)
		if err == nil && hold == nil {
			err = s.full(*o, i, source)
		}
		if err != nil {
			return core.Grant{}, err
		}
		taken = append(taken, hold)
		g.Source = weaker(g.Source, source)
	}
	if hook := s.config.Hooks.SlotAcquired; hook != nil {
		for _, o := range g.Occupancies {
			hook(o.Slots, true, g.Source)
		}
	}
	done = true
	g.Hold = taken
	if len(taken) == 1 {
		g.Hold = taken[0]
	}
	return g, nil
}

// weaker returns the one of two sources of grants that vouches for less.
func weaker(a, b core.Source) core.Source {
	for _, s := range []core.Source{core.SourceOpen, core.SourceLocal} {
		if a == s || b == s {
			return s
		}
	}
	return core.SourceStore
}

func (s *Store) full(o core.Occupancy, claim int, source core.Source) error {
	if hook := s.config.Hooks.SlotAcquired; hook != nil {
		hook(o.Slots, false, source)
	}
	return &core.FullError{Occupancy: o, Claim: claim, Source: source}
}

// acquire takes a slot and sets o.Held, and o.Limit if a share of it applies. If the key
// is full, the hold and the error are nil.
func (s *Store) acquire(ctx context.Context, deadline time.Time, key string, o *core.Occupancy) (*keeper.Hold, core.Source, error) {
	err := errUnavailable
	if s.queueOfKey(key).breaker.allows() {
		var hold *keeper.Hold
		hold, o.Held, err = s.slots.Acquire(ctx, deadline, o.Slots, key, o.Limit)
		switch {
		case err == nil:
			return hold, core.SourceStore, nil
		case errors.Is(err, keeper.ErrClosed):
			return nil, core.SourceStore, core.ErrClosed
		case ctx.Err() != nil:
			return nil, core.SourceStore, ctx.Err()
		}
	}
	limit, source := o.Limit, core.SourceLocal
	switch n := int64(s.config.Servers); {
	case s.config.Failure == FailClosed:
		return nil, source, fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	case s.config.Failure == FailOpen:
		limit, source = core.NoLimit, core.SourceOpen
	case n > 1:
		limit = (limit + n - 1) / n
		o.Limit = limit
	}
	hold, held := s.slots.Take(o.Slots, key, limit)
	o.Held = held
	return hold, source, nil
}

// holds are the holds of several claims.
type holds []*keeper.Hold

// Release implements [core.Hold].
func (hs holds) Release() {
	for _, h := range hs {
		h.Release()
	}
}

// Lost implements [core.Hold].
func (hs holds) Lost() <-chan struct{} { return hs[0].Lost() }

// CountSlots implements [core.SlotStore]. Other processes count with what they have stated,
// except those that are known to be dead.
func (s *Store) CountSlots(ctx context.Context, of *core.Slots, key string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	pipe := s.client.Pipeline()
	fields := pipe.HGetAll(ctx, s.names.slots(of.Name(), key))
	dead := pipe.ZRangeByScore(ctx, s.names.servers(), &redis.ZRangeBy{Min: "-inf", Max: "(0", Count: keeper.MaxDead})
	if err := s.withDeadline(ctx, func() error { _, err := pipe.Exec(ctx); return err }); err != nil {
		return 0, fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	}
	n, own := s.slots.Own(of.Name(), key)
	for id, value := range fields.Val() {
		f, err := keeper.ReadField(id, value)
		if err != nil {
			return 0, err
		}
		if !slices.Contains(own, id) && !slices.Contains(dead.Val(), id) {
			n += f.Count
		}
	}
	return n, nil
}

// CloseSlots implements [core.SlotStore]. It waits for Redis no longer than the
// SlotTTL: after that, others no longer count this process anyway.
func (s *Store) CloseSlots(ctx context.Context, of *core.Slots) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.SlotTTL)
	defer cancel()
	if err := s.slots.Close(ctx, of.Name()); err != nil {
		return fmt.Errorf("headgate: slots %q: %w", of.Name(), err)
	}
	return nil
}

// slots is the name of the hash of what is held of a key. It cannot be that of a cell,
// where a policy's name follows.
func (n *namer) slots(name, key string) string {
	var room [maxPlainKey + 64]byte
	b := n.tag(room[:0], key)
	b = escape(append(b, ':'), name, ":/")
	return string(append(b, ":slots"...))
}

// servers is the name of the set of incarnations. It is not the name of any key's hash,
// whose tag begins with another character.
func (n *namer) servers() string { return n.prefix + ":{slots}:servers" }

// queueOfKey returns the queue of a key, whose breaker slots share with decisions.
func (s *Store) queueOfKey(key string) *sendQueue {
	if !s.cluster {
		return &s.queues.first
	}
	return s.queues.of(string(s.names.tag(make([]byte, 0, 64), key)))
}

// clusterShards divide the hash slots of a Cluster for the keeper.
const clusterShards = 16

func (s *Store) shards() int {
	if s.cluster {
		return clusterShards
	}
	return 1
}

// A transport runs the keeper's scripts.
type transport Store

// Shard implements [keeper.Transport].
func (w *transport) Shard(key string) int {
	if !w.cluster {
		return 0
	}
	return hashSlotOf(w.names.tag(nil, key)) * clusterShards / hashSlots
}

// Run implements [keeper.Transport].
func (w *transport) Run(ctx context.Context, _ int, ops []*keeper.Op) {
	s := (*Store)(w)
	if !s.cluster {
		s.runOps(ctx, &s.queues.first, ops)
		return
	}
	// The keys of a shard may have several masters.
	byQueue := make(map[*sendQueue][]*keeper.Op)
	for _, op := range ops {
		queue := s.queueOfKey(op.Key)
		byQueue[queue] = append(byQueue[queue], op)
	}
	var all sync.WaitGroup
	for queue, some := range byQueue {
		all.Go(func() { s.runOps(ctx, queue, some) })
	}
	all.Wait()
}

// runOps runs the script for ops of one server.
func (s *Store) runOps(ctx context.Context, queue *sendQueue, ops []*keeper.Op) {
	if !queue.breaker.allows() {
		for _, op := range ops {
			op.Err = fmt.Errorf("%w: %w", keeper.ErrUnsent, errUnavailable)
		}
		return
	}
	start := time.Now()
	s.state(ctx, ops)
	var failure error
	for _, op := range ops {
		if op.Err == nil {
			failure = nil
			break
		}
		// A key of another type fails alone.
		if !redis.HasErrorPrefix(op.Err, "WRONGTYPE") {
			failure = op.Err
		}
	}
	if hook := s.config.Hooks.Called; hook != nil {
		hook(len(ops), time.Since(start), failure)
	}
	hashSlot := 0
	if s.cluster {
		hashSlot = hashSlotOf(s.names.tag(nil, ops[0].Key))
	}
	s.report(queue, hashSlot, failure)
}

// state sends ops, in one pipeline if there are several.
func (s *Store) state(ctx context.Context, ops []*keeper.Op) {
	if len(ops) == 1 {
		s.stateOne(ctx, ops[0])
		return
	}
	pipe := s.client.Pipeline()
	cmds := make([]once, len(ops))
	for i, op := range ops {
		cmds[i] = once{redis.NewStringCmd(ctx, s.slots.state.bySHA(s.opWords(op))...)}
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	late := s.withDeadline(ctx, func() error {
		_, _ = pipe.Exec(ctx) // each command has its own error
		return nil
	})
	for i, op := range ops {
		switch {
		case late != nil:
			op.Err = late
		case redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT"):
			s.stateOne(ctx, op)
		case cmds[i].Err() != nil:
			op.Err = cmds[i].Err()
		default:
			op.Read(cmds[i].Val())
		}
	}
}

func (s *Store) stateOne(ctx context.Context, op *keeper.Op) {
	text, err := s.runScript(ctx, s.slots.state, s.opWords(op))
	if err != nil {
		op.Err = err
		return
	}
	op.Read(text)
}

func (s *Store) opWords(op *keeper.Op) []any {
	return append([]any{1, s.names.slots(op.Name, op.Key)}, op.Args()...)
}

// runScript runs a script by its SHA-1 or, if the server does not know that, by its source.
func (s *Store) runScript(ctx context.Context, script script, words []any) (string, error) {
	text, err := s.process(ctx, script.bySHA(words))
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // then nothing was run
		text, err = s.process(ctx, append([]any{eval, script.source}, words...))
	}
	return text, err
}

func (s *script) bySHA(words []any) []any { return append([]any{evalSHA, s.sha}, words...) }

// Beat implements [keeper.Transport]. It ignores the breaker: a process that sends no
// heartbeats is dead.
func (w *transport) Beat(ctx context.Context, b *keeper.Beat) error {
	s := (*Store)(w)
	instant := ""
	if s.instant != nil {
		instant = s.instant()
	}
	text, err := s.runScript(ctx, s.slots.beat, append([]any{1, s.names.servers()}, b.Args(instant)...))
	if errors.Is(err, redis.ErrClosed) {
		return keeper.ErrGone
	}
	if err != nil {
		return err
	}
	return b.Read(text)
}

// Servers implements [keeper.Transport], with the run and the replication history of each
// master.
func (w *transport) Servers(ctx context.Context) string {
	s := (*Store)(w)
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return s.history(ctx, s.client)
	}
	var mu sync.Mutex
	var all []string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		one := s.history(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	if err != nil || slices.Contains(all, "") {
		return ""
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// history returns the run and the replication history of a server, or "".
func (s *Store) history(ctx context.Context, c redis.UniversalClient) string {
	pipe := c.Pipeline()
	run, replication := pipe.Info(ctx, "server"), pipe.Info(ctx, "replication")
	if s.withDeadline(ctx, func() error { _, err := pipe.Exec(ctx); return err }) != nil {
		return ""
	}
	return infoField(run.Val(), "run_id") + "/" + infoField(replication.Val(), "master_replid")
}
