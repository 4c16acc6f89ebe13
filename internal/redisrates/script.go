package redisrates

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/step"
)

var (
	//go:embed decide.lua
	decideSource string
	//go:embed settle.lua
	settleSource string
	//go:embed prelude.lua
	preludeSource string

	scripts         = [2]script{newScript(decideSource), newScript(settleSource)}
	portableScripts = [2]script{newScript(preludeSource + decideSource), newScript(preludeSource + settleSource)}
)

// A script is the source of a Lua script, and the SHA-1 by which Redis knows it: strings, in the type that the client
// wants.
type script struct{ source, sha any }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// once is a command that the client does not repeat: a charge is not idempotent.
type once struct{ *redis.StringCmd }

func (once) NoRetry() bool { return true }

// A run is one script for questions of one hash slot.
type run struct {
	hash   int
	settle bool
	batch  []*question
}

// send makes one call to a server, and sets in each question the answer, or its error. The first error, if any, is that of the
// call as a whole. The second is nil if the server works.
func (s *Decider) send(deadline time.Time, batch []*question) (err, failure error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	runs := s.runs(batch)
	if len(runs) == 1 {
		c := s.newCall(runs[0].batch)
		text, fault := s.process(ctx, s.command(ctx, c, evalSHA, s.script(runs[0]).sha))
		err = s.finishRun(ctx, runs[0], c, text, fault)
		failure = serverFailure(err)
	} else {
		err, failure = s.pipeline(ctx, runs)
	}
	if failure == nil {
		s.servers.learn()
	}
	return err, failure
}

// runs returns the questions by hash slots and scripts. Most calls have one.
func (s *Decider) runs(batch []*question) []run {
	runs := append(make([]run, 0, 2), run{batch[0].hash, batch[0].mode == step.Settle, batch})
	for _, q := range batch[1:] {
		if q.hash != runs[0].hash || (q.mode == step.Settle) != runs[0].settle {
			return sorted(batch)
		}
	}
	return runs
}

// sorted is runs for questions of several.
func sorted(batch []*question) (runs []run) {
	type which struct {
		hash   int
		settle bool
	}
	index := make(map[which]int)
	for _, q := range batch {
		w := which{q.hash, q.mode == step.Settle}
		i, ok := index[w]
		if !ok {
			i = len(runs)
			index[w] = i
			runs = append(runs, run{hash: w.hash, settle: w.settle})
		}
		runs[i].batch = append(runs[i].batch, q)
	}
	return runs
}

// pipeline makes several runs in one round trip.
func (s *Decider) pipeline(ctx context.Context, runs []run) (err, failure error) {
	pipe := s.client.Pipeline()
	cmds, cs := make([]once, len(runs)), make([]*call, len(runs))
	for i, r := range runs {
		cs[i] = s.newCall(r.batch)
		cmds[i] = s.command(ctx, cs[i], evalSHA, s.script(r).sha)
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	faults := make([]error, len(runs))
	for i, r := range runs {
		faults[i] = s.finishRun(ctx, r, cs[i], cmds[i].Val(), cmds[i].Err())
	}
	// An error that the server replied to any of the runs says more of it than an answer to another: one that is full
	// answers peeks. Silence says less.
	answered := false
	for _, fault := range faults {
		fault = serverFailure(fault)
		answered = answered || fault == nil
		if failure == nil || !replied(failure) && replied(fault) {
			failure = fault
		}
	}
	if answered && !replied(failure) {
		failure = nil
	}
	return errors.Join(faults...), failure
}

const (
	evalSHA = "evalsha"
	eval    = "eval"
)

func (s *Decider) script(r run) script {
	all := &scripts
	if s.portable.Load() {
		all = &portableScripts
	}
	if r.settle {
		return all[1]
	}
	return all[0]
}

func (s *Decider) command(ctx context.Context, c *call, name string, script any) once {
	return once{redis.NewStringCmd(ctx, c.command(name, script, s.servers.cluster != nil)...)}
}

// finishRun answers the questions of a run by a reply or an error. It is repeated only if the server does not know the
// script, or has no library struct: then nothing was run.
func (s *Decider) finishRun(ctx context.Context, r run, c *call, text string, err error) error {
	if says(err, "NOSCRIPT") {
		text, err = s.process(ctx, s.command(ctx, c, eval, s.script(r).source))
	}
	if err != nil && strings.Contains(err.Error(), "'struct'") {
		s.portable.Store(true)
		text, err = s.process(ctx, s.command(ctx, c, eval, s.script(r).source))
	}
	c.free()
	if err == nil {
		err = s.finish(r.batch, text)
	}
	if err != nil {
		for _, q := range r.batch {
			q.err = err
		}
	}
	return err
}

func (s *Decider) process(ctx context.Context, cmd once) (string, error) {
	err := s.client.Process(ctx, cmd)
	return cmd.Val(), err
}

// delete deletes the values of cells of one hash slot.
func (s *Decider) delete(ctx context.Context, cells []step.Cell) error {
	words := []any{"del"}
	for i := range cells {
		tag := s.names.AppendTag(nil, cells[i].Key.Reveal())
		words = append(words, string(tag)+cells[i].Policy.Attachment.(*policy).suffix)
	}
	_, err := s.process(ctx, once{redis.NewStringCmd(ctx, words...)})
	return err
}

// serverFailure returns what an error says of the server: nothing if it is about a hash slot only.
func serverFailure(err error) error {
	if is, _ := aboutSlot(err); is {
		return nil
	}
	return err
}

// wrapped is what Redis 6.2 puts before the error of a command that a script runs. Later versions put something behind.
var wrapped = regexp.MustCompile(`^(?:ERR Error running script \(call to \w+\): )?(?:@user_script: ?\d+: )+-?`)

// replied reports whether an error is what a server replied.
func replied(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// says reports whether a server replied with an error that begins with one of the prefixes.
func says(err error, prefixes ...string) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := strings.TrimPrefix(wrapped.ReplaceAllString(reply.Error(), ""), "ERR ")
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// faults are what is wrong with a store.
type faults []error

func (f *faults) add(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf("headgate: redisstore: "+format, args...))
	}
}

// addClient adds all that is wrong with a client, as far as its options tell.
func (f *faults) addClient(client redis.UniversalClient) {
	value := reflect.ValueOf(client)
	if !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		f.add(true, "the client is nil")
		return
	}
	deadlines := func(enabled bool, read, write time.Duration) {
		const instead = "in the options, or use redisstore.Open"
		f.add(!enabled, "the client ignores deadlines: set ContextTimeoutEnabled: true "+instead)
		// Negative is what go-redis makes of -2. Of -1, which respects deadlines, it makes 0.
		f.add(read < 0, "the client ignores deadlines when it reads: set a ReadTimeout of 0 or more "+instead)
		f.add(write < 0, "the client ignores deadlines when it writes: set a WriteTimeout of 0 or more "+instead)
	}
	switch v := client.(type) { // also what has one of go-redis's clients embedded
	case interface{ Options() *redis.Options }:
		o := v.Options()
		deadlines(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case interface{ Options() *redis.ClusterOptions }:
		_, ok := client.(*redis.ClusterClient)
		f.add(!ok, "a %T hides a ClusterClient: use the ClusterClient itself, and its AddHook", client)
		o := v.Options()
		deadlines(o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout)
	case interface{ Options() *redis.RingOptions }:
		f.add(true, "a Ring loses state when its servers change: use a Cluster")
	}
}
