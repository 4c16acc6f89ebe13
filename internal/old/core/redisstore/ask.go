package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
)

// once is a command that the client does not retry: a charge is not idempotent.
type once struct{ *redis.StringCmd }

func (once) NoRetry() bool { return true }

// Ask implements [remote.Backend], in one call of the script for each hash slot.
func (b *backend) Ask(ctx context.Context, batch []*question) (err, failure error) {
	if groups := b.byHashSlot(batch); len(groups) > 1 {
		return b.askGroups(ctx, groups)
	}
	c := b.newCall(batch)
	text, err := b.process(ctx, c.command(evalSHA, decideScript.sha))
	if unknown(err) {
		text, err = b.process(ctx, c.command(eval, decideScript.source))
	}
	c.free()
	err = b.finish(batch, text, err)
	if failure = serverFailure(err); failure == nil {
		b.servers.learn()
	}
	return err, failure
}

// byHashSlot returns nothing if there is only one.
func (b *backend) byHashSlot(batch []*question) (groups [][]*question) {
	if !b.isCluster() || len(batch) == 1 {
		return nil
	}
	index := make(map[int]int)
	for _, q := range batch {
		i, ok := index[q.Part]
		if !ok {
			i = len(groups)
			index[q.Part] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], q)
	}
	return groups
}

// process runs a command that returns a string.
func (b *backend) process(ctx context.Context, words []any) (string, error) {
	cmd := once{redis.NewStringCmd(ctx, words...)}
	if err := b.client.Process(ctx, cmd); err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// askGroups is Ask for questions of several hash slots, in one pipeline. The server works if
// it has answered the questions of any.
func (b *backend) askGroups(ctx context.Context, groups [][]*question) (all, failure error) {
	pipe := b.client.Pipeline()
	cmds := make([]once, len(groups))
	for i, batch := range groups {
		c := b.newCall(batch)
		cmds[i] = once{redis.NewStringCmd(ctx, c.command(evalSHA, decideScript.sha)...)}
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	faults := make([]error, 0, len(groups))
	answered := false
	for i, batch := range groups {
		err := cmds[i].Err()
		switch {
		case unknown(err):
			err, _ = b.Ask(ctx, batch)
		case err != nil:
			err = b.finish(batch, "", err)
		default:
			err = b.finish(batch, cmds[i].Val(), nil)
		}
		faults = append(faults, err)
		answered = answered || serverFailure(err) == nil
	}
	all = errors.Join(faults...)
	if answered {
		b.servers.learn()
		return all, nil
	}
	return all, serverFailure(all)
}

// serverFailure returns what an error says of the server. It is nil if the error is about a hash
// slot only. That there was no connection to be had says nothing.
func serverFailure(err error) error {
	switch {
	case noConnection(err):
		return remote.ErrUnsent
	case ofHashSlot(err):
		return nil
	}
	return err
}

// noConnection reports whether an error says that there was no connection to be had.
func noConnection(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

func (b *backend) newCall(batch []*question) *call {
	c := newCall()
	if b.instant != nil {
		c.instant = b.instant()
	}
	if len(batch) == 1 {
		c.questions[scripted] = 1
	}
	for _, q := range batch {
		b.add(c, q)
	}
	return c
}

// finish gives the questions their answers from the reply, or the error.
func (b *backend) finish(batch []*question, text string, err error) error {
	var r reply
	if err == nil {
		r, err = newReply(text)
	}
	for _, q := range batch {
		if err != nil {
			q.Err = err
			continue
		}
		if b.read(q, &r); errors.Is(q.Err, errReply) {
			err = q.Err
		}
	}
	return err
}
