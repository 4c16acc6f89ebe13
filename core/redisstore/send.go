package redisstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// once is a command that the client does not retry: a charge is not idempotent.
type once struct{ *redis.StringCmd }

func (once) NoRetry() bool { return true }

// sendBatch sends questions of a queue, in one call of the script for each hash slot,
// and gives each its answer or error, by the deadline.
func (s *Store) sendBatch(ctx context.Context, queue *sendQueue, batch []*question, deadline time.Time) {
	start := time.Now()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var groups [][]*question
	if s.cluster {
		groups = byHashSlot(batch)
	}
	var err, failure error
	if len(groups) > 1 {
		err, failure = s.runGroups(ctx, groups)
	} else {
		err = s.runGroup(ctx, batch)
		failure = serverFailure(err)
	}
	if failure != nil && s.hurried(start, deadline) {
		failure = errHurried
	}
	if hook := s.config.Hooks.Called; hook != nil {
		hook(len(batch), time.Since(start), err)
	}
	s.report(queue, batch[0].hashSlot, failure)
	var late []*question
	for _, q := range batch {
		if errors.Is(q.err, errPutOff) {
			late = append(late, q)
		} else {
			q.done <- struct{}{}
		}
	}
	if len(late) > 0 {
		queue.putOff(late)
	}
}

// hurried reports whether a call ran out of time with less than nine tenths of the
// Timeout: that says more of the caller's deadline than of Redis. The rest of the Timeout
// is what a decision may have spent before its call.
func (s *Store) hurried(start, deadline time.Time) bool {
	return !time.Now().Before(deadline) && deadline.Sub(start) < s.config.Timeout*9/10
}

func byHashSlot(batch []*question) (groups [][]*question) {
	index := make(map[int]int)
	for _, q := range batch {
		i, ok := index[q.hashSlot]
		if !ok {
			i = len(groups)
			index[q.hashSlot] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], q)
	}
	return groups
}

// runGroup runs the script for questions of one hash slot, or of a server without hash
// slots. The error is that of the call as a whole.
func (s *Store) runGroup(ctx context.Context, batch []*question) error {
	flat := flatNote(batch)
	text, err := s.eval(ctx, batch, flat)
	if flat != nil && unflat(text, err) {
		text, err = s.eval(ctx, batch, nil)
	}
	return finish(batch, text, err)
}

// unflat reports whether a flat script found a value that it cannot read, and so wrote
// nothing.
func unflat(text string, err error) bool {
	return err == nil && text == "" || err != nil && strings.Contains(err.Error(), "WRONGTYPE")
}

// eval runs the script that answers the questions: the flat one of a note, if there is
// one.
func (s *Store) eval(ctx context.Context, batch []*question, flat *note) (string, error) {
	c := s.newCall(batch, flat)
	script := s.script(c)
	text, err := s.process(ctx, c.command(evalSHA, script.sha))
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // then nothing was run
		text, err = s.process(ctx, c.command(eval, script.source))
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
		err = s.withDeadline(ctx, func() error { return s.client.Process(ctx, cmd) })
	}
	if err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// withDeadline calls f, and returns when the context ends even if the client ignores
// that. Then f is abandoned: it runs on in a goroutine. While maxAbandoned do, new calls
// wait for one of them to end.
func (s *Store) withDeadline(ctx context.Context, f func() error) error {
	if s.direct {
		return f()
	}
	select {
	case s.abandoned <- struct{}{}:
		<-s.abandoned // only the abandoned count
	case <-ctx.Done():
		return errBusy
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		go func() {
			s.abandoned <- struct{}{}
			<-done
			<-s.abandoned
		}()
		return errDeadline
	}
}

// runGroups is runGroup for questions of several hash slots, in one pipeline. The failure
// is that of the server: nil if it answered the questions of any hash slot.
func (s *Store) runGroups(ctx context.Context, groups [][]*question) (all, failure error) {
	pipe := s.client.Pipeline()
	cmds := make([]once, len(groups))
	for i, batch := range groups {
		c := s.newCall(batch, flatNote(batch))
		cmds[i] = once{redis.NewStringCmd(ctx, c.command(evalSHA, s.script(c).sha)...)}
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	late := s.withDeadline(ctx, func() error {
		_, _ = pipe.Exec(ctx) // each command has its own error
		return nil
	})
	faults := make([]error, 0, len(groups))
	answered := false
	for i, batch := range groups {
		err := late
		if late == nil {
			err = cmds[i].Err()
		}
		switch {
		case late == nil && (unflat(cmds[i].Val(), err) || err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")): // nothing was run
			err = s.runGroup(ctx, batch)
		case err != nil:
			err = finish(batch, "", err)
		default:
			err = finish(batch, cmds[i].Val(), nil)
		}
		faults = append(faults, err)
		answered = answered || serverFailure(err) == nil
	}
	all = errors.Join(faults...)
	if answered {
		return all, nil
	}
	return all, all
}

// serverFailure returns err, or nil if it is about one hash slot only: a master that works
// replies that a hash slot is not served.
func serverFailure(err error) error {
	if err != nil && redis.HasErrorPrefix(err, "CLUSTERDOWN Hash slot not served") {
		return nil
	}
	return err
}

// flatNote returns the note whose flat script answers all of the questions, or nil.
func flatNote(batch []*question) *note {
	l := batch[0].charges[0].Limiter
	for _, q := range batch {
		if q.mode != modeAsk || len(q.charges) > 1 || q.charges[0].Limiter != l {
			return nil
		}
	}
	if n := noteOf(l); n.flat != nil {
		return n
	}
	return nil
}

func (s *Store) newCall(batch []*question, flat *note) *call {
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
		c.addFlat(q.charges[0].N)
	}
	return c
}

func (s *Store) script(c *call) *script {
	if c.flat != nil {
		return c.flat
	}
	return s.scripts.of(c.algorithms)
}

// finish gives the questions their answers from the reply, or the error.
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
