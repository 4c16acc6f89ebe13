package redisrates

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
)

var (
	//go:embed decide.lua
	decideSource string
	//go:embed settle.lua
	settleSource string
	//go:embed prelude.lua
	preludeSource string

	luaScripts      = newLuaScripts("")
	portableScripts = newLuaScripts(preludeSource) // for servers without the library struct
)

// A luaScript is the source of a script, and the SHA-1 by which Redis knows it: strings, in the type that the client
// wants.
type luaScript struct{ source, sha any }

// newLuaScripts returns the one that decides, and the one that settles, behind a prelude.
func newLuaScripts(prelude string) (scripts [2]luaScript) {
	for i, source := range [...]string{prelude + decideSource, prelude + settleSource} {
		sum := sha1.Sum([]byte(source))
		scripts[i] = luaScript{source, hex.EncodeToString(sum[:])}
	}
	return scripts
}

const (
	evalSHA = "evalsha"
	eval    = "eval"
)

// A script runs questions in Redis. Which of two Lua scripts that is, and how it is told, nobody else knows. Functions
// of Redis 7 in the place of scripts gained at most 4 %, and would need a version and more permissions.
type script struct {
	client   redis.UniversalClient
	cluster  *redis.ClusterClient // nil: there is one address
	names    *rediskey.Names
	portable atomic.Bool // the server has no library struct

	// aheadMicros is by how much the clock of the server is ahead of that of this process, as far as it has mattered.
	aheadMicros atomic.Int64

	instant func([]byte) []byte // for tests: the time to use instead of the server's
}

// A question is what is asked about cells of one hash slot, and the answer. The cells have the answer of each.
type question struct {
	mode     step.Mode
	cells    []step.Cell
	hashSlot int // or noHashSlot
	allowed  bool
	err      error
}

// noHashSlot is that of questions to a server that has none.
const noHashSlot = -1

// A target is what all questions of one run of a Lua script have in common.
type target struct {
	hashSlot int
	settles  bool
}

func (q *question) target() target { return target{q.hashSlot, q.mode == step.Settle} }

// run makes one call with a batch of questions to a server, and sets in each the answer, or its error: the waiters get
// those. The error of the call as a whole is for reports. The fault of the server is nil if it works.
func (s *script) run(deadline time.Time, batch []*question) (callErr, serverFault error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	first := batch[0].target()
	for _, q := range batch[1:] {
		if q.target() != first {
			return s.runPipeline(ctx, partsOf(batch))
		}
	}
	// Nearly all calls have one target, for which a pipeline would take longer.
	arguments := s.newArguments(batch)
	text, fault := s.runCommand(ctx, s.command(ctx, arguments, evalSHA, s.lua(batch).sha))
	callErr = s.runToEnd(ctx, batch, arguments, text, fault)
	return callErr, serverFailure(callErr)
}

// partsOf returns the questions of each target.
func partsOf(batch []*question) (parts [][]*question) {
	index := make(map[target]int)
	for _, q := range batch {
		to := q.target()
		i, ok := index[to]
		if !ok {
			i = len(parts)
			index[to] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], q)
	}
	return parts
}

// runPipeline runs several parts of a batch in one round trip.
func (s *script) runPipeline(ctx context.Context, parts [][]*question) (err, failure error) {
	// The hash slots of a batch are at one master, so that this is one round trip on a Cluster, too: but for the first
	// batch, before the client knows the masters.
	pipe := s.client.Pipeline()
	commands := make([]once, len(parts))
	arguments := make([]*arguments, len(parts))
	for i, part := range parts {
		arguments[i] = s.newArguments(part)
		commands[i] = s.command(ctx, arguments[i], evalSHA, s.lua(part).sha)
		_ = pipe.Process(ctx, commands[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error

	// A part that must be run again is, in a round trip of its own: that is once in the life of a server.
	faults := make([]error, len(parts))
	for i, part := range parts {
		faults[i] = s.runToEnd(ctx, part, arguments[i], commands[i].Val(), commands[i].Err())
	}

	// An error that the server replied to any of the parts says more of it than an answer to another: one that is full
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

// runToEnd answers the questions of a part by the reply to its command, or the error. The command is repeated only if
// the server does not know the script, or has no library struct: then nothing was run.
func (s *script) runToEnd(
	ctx context.Context, part []*question, arguments *arguments, text string, err error,
) error {
	// A server forgets its scripts when it starts, and one that takes over may not know them.
	if says(err, "NOSCRIPT") {
		text, err = s.runCommand(ctx, s.command(ctx, arguments, eval, s.lua(part).source))
	}
	// miniredis, for tests of users, has no such library: from now on it gets scripts with one of their own.
	if err != nil && strings.Contains(err.Error(), "'struct'") {
		s.portable.Store(true)
		text, err = s.runCommand(ctx, s.command(ctx, arguments, eval, s.lua(part).source))
	}
	arguments.free()

	// One error is that of all questions: nobody knows how far the script has come. A fault of a single value is no
	// error here, but in the answer of its question.
	if err == nil {
		err = s.readReply(part, text)
	}
	if err != nil {
		for _, q := range part {
			q.err = err
		}
	}
	return err
}

// lua returns the Lua script of a part: its questions are all settlements, or none is.
func (s *script) lua(part []*question) *luaScript {
	scripts := &luaScripts
	if s.portable.Load() {
		scripts = &portableScripts
	}
	return &scripts[bit(part[0].mode == step.Settle)]
}

// once is a command that the client does not repeat: a charge is not idempotent.
type once struct{ *redis.StringCmd }

func (once) NoRetry() bool { return true }

func (s *script) command(ctx context.Context, arguments *arguments, name string, shaOrSource any) once {
	return once{redis.NewStringCmd(ctx, arguments.command(name, shaOrSource, s.cluster != nil)...)}
}

func (s *script) runCommand(ctx context.Context, command once) (string, error) {
	err := s.client.Process(ctx, command)
	return command.Val(), err
}

// runDelete deletes the values of cells, which are all of one hash slot.
func (s *script) runDelete(ctx context.Context, cells []step.Cell) error {
	words := []any{"del"}
	for i := range cells {
		tag := s.names.AppendTag(nil, cells[i].Key.Reveal())
		words = append(words, string(tag)+cells[i].Policy.Attachment.(*scriptPolicy).suffix)
	}
	_, err := s.runCommand(ctx, once{redis.NewStringCmd(ctx, words...)})
	return err
}

// runProbe runs each command of the scripts at the server of a key, and returns what that says of the server.
func (s *script) runProbe(deadline time.Time, key hidden.Text) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	name := string(s.names.AppendTag(nil, key.Reveal())) + ":probe"
	return serverFailure(tryCommands(ctx, s.client, name))
}
