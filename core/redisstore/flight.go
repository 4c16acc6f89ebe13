package redisstore

import (
	"context"
	"errors"
	"strings"
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
	flat := flatPlan(batch)
	text, err := s.send(ctx, batch, flat)
	if flat != nil && unflat(text, err) {
		text, err = s.send(ctx, batch, nil)
	}
	return finish(batch, text, err)
}

// unflat reports whether a flat script found a value that is not of its kind, and so
// wrote nothing.
func unflat(text string, err error) bool {
	return err == nil && text == "" || err != nil && strings.Contains(err.Error(), "WRONGTYPE")
}

// send has a script answer the questions: the flat one of a plan, if there is one.
func (s *Store) send(ctx context.Context, batch []*question, flat *plan) (string, error) {
	c := s.call(batch, flat)
	script := s.script(c)
	text, err := s.process(ctx, c.command("evalsha", script.sha))
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // then nothing was run
		text, err = s.process(ctx, c.command("eval", script.source))
	}
	if s.direct {
		c.free() // otherwise the client may still hold it
	}
	return text, err
}

// process runs a command that returns a string.
func (s *Store) process(ctx context.Context, words []any) (string, error) {
	cmd := once{redis.NewStringCmd(ctx, words...)}
	var err error
	if s.direct { // without a function to allocate
		err = s.client.Process(ctx, cmd)
	} else {
		err = s.bounded(ctx, func() error { return s.client.Process(ctx, cmd) })
	}
	if err != nil {
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
		c := s.call(batch, flatPlan(batch))
		cmds[i] = once{redis.NewStringCmd(ctx, c.command("evalsha", s.script(c).sha)...)}
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
		case late == nil && (unflat(cmds[i].Val(), err) || err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")): // nothing was run
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

// flatPlan returns the plan whose flat script answers all of the questions, or nil.
func flatPlan(batch []*question) *plan {
	l := batch[0].charges[0].Limiter
	for _, q := range batch {
		if q.mode != modeAsk || len(q.charges) > 1 || q.charges[0].Limiter != l {
			return nil
		}
	}
	if p := planOf(l); p.flat != nil {
		return p
	}
	return nil
}

func (s *Store) call(batch []*question, flat *plan) *call {
	c := newCall()
	if s.instant != nil {
		c.instant = s.instant()
	}
	if flat == nil {
		for _, q := range batch {
			q.addTo(c, s)
		}
		return c
	}
	c.flat = flat.flat
	c.constants = append(c.constants, flat.constants...)
	for _, q := range batch {
		c.keys = s.cells(c.keys, &q.charges[0])
		c.ask(q.charges[0].N)
	}
	return c
}

func (s *Store) script(c *call) *script {
	if c.flat != nil {
		return c.flat
	}
	return s.scripts.of(c.algorithms)
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
