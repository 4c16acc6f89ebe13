package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/keeper"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/rediskey"
)

// slots is the name of the hash of what is held of a key. It cannot be that of a
// limiter's value, which ends otherwise.
func (n *namer) slots(name, key string) string {
	var room [rediskey.MaxPlain + 64]byte
	b := n.AppendTag(room[:0], key)
	b = rediskey.AppendEscaped(append(b, ':'), name, ":/")
	return string(append(b, ":slots"...))
}

// servers is the name of the set of incarnations. It is not the name of any key's hash,
// whose tag begins with another character.
func (n *namer) servers() string { return n.Common("slots", "servers") }

// beatTag begins the names of what the slots of all keys need.
func (n *namer) beatTag() string { return strings.TrimSuffix(n.Common("slots", ""), ":") }

// clusterShards divide the hash slots of a Cluster for the keeper.
const clusterShards = 16

// Shards implements [remote.SlotBackend].
func (b *backend) Shards() int {
	if b.isCluster() {
		return clusterShards
	}
	return 1
}

// Shard implements [remote.SlotBackend].
func (b *backend) Shard(key string) int {
	if !b.isCluster() {
		return 0
	}
	return rediskey.HashSlot(b.names.AppendTag(nil, key)) * clusterShards / rediskey.HashSlots
}

// The scripts of the keeper's protocol.
var (
	stateScript = newScript(keeper.SlotsScript)
	beatScript  = newScript(keeper.BeatScript)
)

// State implements [remote.SlotBackend].
func (b *backend) State(ctx context.Context, ops []*keeper.Op) (failure error) {
	b.state(ctx, ops)
	for _, op := range ops {
		if op.Err == nil {
			b.servers.learn()
			return nil
		}
		if !ofKey(op.Err) { // which fails alone
			failure = op.Err
		}
	}
	return serverFailure(failure)
}

// state sends ops, in one pipeline if there are several.
func (b *backend) state(ctx context.Context, ops []*keeper.Op) {
	if len(ops) == 1 {
		b.stateOne(ctx, ops[0])
		return
	}
	pipe := b.client.Pipeline()
	cmds := make([]once, len(ops))
	for i, op := range ops {
		cmds[i] = once{redis.NewStringCmd(ctx, stateScript.bySHA(b.opWords(op))...)}
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, op := range ops {
		switch {
		case unknown(cmds[i].Err()):
			b.stateOne(ctx, op)
		case cmds[i].Err() != nil:
			op.Err = cmds[i].Err()
		default:
			op.Read(cmds[i].Val())
		}
	}
}

func (b *backend) stateOne(ctx context.Context, op *keeper.Op) {
	text, err := b.runScript(ctx, stateScript, b.opWords(op))
	if err != nil {
		op.Err = err
		return
	}
	op.Read(text)
}

func (b *backend) opWords(op *keeper.Op) []any {
	return append([]any{1, b.names.slots(op.Name, op.Key)}, op.Args()...)
}

// runScript runs a script by its SHA-1 or, if the server does not know that, by its source.
func (b *backend) runScript(ctx context.Context, script script, words []any) (string, error) {
	text, err := b.process(ctx, script.bySHA(words))
	if unknown(err) {
		text, err = b.process(ctx, append([]any{eval, script.source}, words...))
	}
	return text, err
}

func (s *script) bySHA(words []any) []any { return append([]any{evalSHA, s.sha}, words...) }

// Stated implements [remote.SlotBackend].
func (b *backend) Stated(ctx context.Context, name, key string) (stated []keeper.Field, dead []string, err error) {
	pipe := b.client.Pipeline()
	fields := pipe.HGetAll(ctx, b.names.slots(name, key))
	tombs := pipe.ZRangeByScore(ctx, b.names.servers(), &redis.ZRangeBy{Min: "-inf", Max: "(0", Count: keeper.MaxDead})
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	for id, value := range fields.Val() {
		f, err := keeper.ReadField(id, value)
		if err != nil {
			return nil, nil, err
		}
		stated = append(stated, f)
	}
	return stated, tombs.Val(), nil
}

// BeatRoute implements [remote.BeatBackend].
func (b *backend) BeatRoute() (server *remote.Server, part int) {
	if !b.isCluster() {
		return &b.servers.first, 0
	}
	tag := b.names.beatTag()
	return b.servers.of(tag), rediskey.HashSlot([]byte(tag))
}

// Beat implements [remote.BeatBackend].
func (b *backend) Beat(ctx context.Context, beat *keeper.Beat) error {
	instant := ""
	if b.instant != nil {
		instant = b.instant()
	}
	text, err := b.runScript(ctx, beatScript, append([]any{1, b.names.servers()}, beat.Args(instant)...))
	switch {
	case noConnection(err):
		return fmt.Errorf("%w: %w", keeper.ErrUnsent, err)
	case err != nil:
		return gone(err)
	}
	return beat.Read(text)
}

// Histories implements [remote.BeatBackend], with the run and the replication history of
// each master.
func (b *backend) Histories(ctx context.Context) string {
	if !b.isCluster() {
		return history(ctx, b.client)
	}
	var mu sync.Mutex
	var all []string
	err := b.servers.cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		one := history(ctx, c)
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
func history(ctx context.Context, c redis.UniversalClient) string {
	pipe := c.Pipeline()
	run, replication := pipe.Info(ctx, "server"), pipe.Info(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil {
		return ""
	}
	return infoField(run.Val(), "run_id") + "/" + infoField(replication.Val(), "master_replid")
}
