package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// once is a command that the client does not repeat: a charge is not idempotent.
type once struct{ *redis.StringCmd }

func (once) NoRetry() bool { return true }

// fly sends questions of a lane, in one call of the script for each slot, and
// hands them their answers, by the deadline.
func (s *Store) fly(ctx context.Context, l *lane, batch []*question, deadline time.Time) {
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var groups [][]*question
	if s.cluster {
		groups = bySlot(batch)
	}
	var err error
	if len(groups) > 1 {
		err = s.runAll(ctx, groups)
	} else {
		err = s.run(ctx, batch)
	}
	if hook := s.config.Hooks.Called; hook != nil {
		hook(len(batch), time.Since(start), err)
	}
	s.report(l, batch[0].slot, err)
	for _, q := range batch {
		q.done <- struct{}{}
	}
}

func bySlot(batch []*question) (groups [][]*question) {
	index := make(map[int]int)
	for _, q := range batch {
		i, ok := index[q.slot]
		if !ok {
			i = len(groups)
			index[q.slot] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], q)
	}
	return groups
}

// run asks questions of one slot, or of a server without slots. The error is of
// the call as a whole.
func (s *Store) run(ctx context.Context, batch []*question) error {
	c := s.call(batch)
	script := s.scripts.of(c.algorithms)
	text, err := s.process(ctx, c.command("evalsha", script.sha))
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // then nothing was run
		text, err = s.process(ctx, c.command("eval", script.source))
	}
	if s.direct {
		c.free() // otherwise the client may still hold it
	}
	return finish(batch, text, err)
}

// process runs a command that returns a string.
func (s *Store) process(ctx context.Context, words []any) (string, error) {
	cmd := once{redis.NewStringCmd(ctx, words...)}
	if err := s.bounded(ctx, func() error { return s.client.Process(ctx, cmd) }); err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// bounded calls f, and comes back when the context ends even if the client does
// not heed that. Then f is left to itself, with at most so many others.
func (s *Store) bounded(ctx context.Context, f func() error) error {
	if s.direct {
		return f()
	}
	select {
	case s.stray <- struct{}{}:
	default:
		return errBusy
	}
	done := make(chan error, 1)
	go func() {
		done <- f()
		<-s.stray
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errDeadline
	}
}

// runAll is run for questions of several slots, in one pipeline.
func (s *Store) runAll(ctx context.Context, groups [][]*question) error {
	pipe := s.client.Pipeline()
	cmds := make([]once, len(groups))
	for i, batch := range groups {
		c := s.call(batch)
		cmds[i] = once{redis.NewStringCmd(ctx, c.command("evalsha", s.scripts.of(c.algorithms).sha)...)}
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	late := s.bounded(ctx, func() error {
		_, _ = pipe.Exec(ctx) // each command has its own error
		return nil
	})
	faults := make([]error, 0, len(groups))
	for i, batch := range groups {
		err := late
		if late == nil {
			err = cmds[i].Err()
		}
		switch {
		case redis.HasErrorPrefix(err, "NOSCRIPT"):
			err = s.run(ctx, batch)
		case err != nil:
			err = finish(batch, "", err)
		default:
			err = finish(batch, cmds[i].Val(), nil)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func (s *Store) call(batch []*question) *call {
	c := newCall()
	if s.instant != nil {
		c.instant = s.instant()
	}
	for _, q := range batch {
		q.addTo(c, s)
	}
	return c
}

// finish hands the reply, or the error, to the questions.
func finish(batch []*question, text string, err error) error {
	var r reply
	if err == nil {
		r, err = newReply(text)
	}
	for _, q := range batch {
		if err != nil {
			q.err = err
			continue
		}
		if q.read(&r); errors.Is(q.err, errReply) {
			err = q.err
		}
	}
	return err
}
