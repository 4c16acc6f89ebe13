// Package redisslots keeps slots in Redis: one server, one behind Sentinel, or a Cluster. Package keeper has the
// protocol, and knows no network. This package is its way to Redis, and what is read there beside it:
//
//  1. Statements about keys, and beats, run the two scripts of package keeper (redis.go: Run, Beat). Each is sent once:
//     what has no answer may have been run, and the keeper states anew what it holds.
//  2. After each beat it asks for the history of each master (histories): one that was restarted, or has taken the
//     place of another, may have lost something.
//  3. Count adds what this process knows of itself to what all others have stated (holders).
//  4. Notices to the holders of a key go through a set that all processes read (notices.go).
//
// All of a key is in one hash slot of a Cluster: a hash in which each process has a field, and for a minute the marks
// of notices. What is of no key is in another: the incarnations, the notices, and the replies to them.
//
// The values, of slots "ws" and a key "anna":
//
//	headgate:{=anna}:ws:slots      a hash: an incarnation, and count:number with the mark of its turn; 25 hours
//	headgate:{=anna}:ws:slots:ID   the mark of an announcement; a minute
//	headgate:{slots}:servers       a sorted set: incarnations, and the fleet's time at which each is dead; 100 hours
//	headgate:{slots}:posts, :last  a sorted set of notices by their instants, and the id of the last; two minutes
//	headgate:{slots}:replies:ID    a hash: a Registry, and its reply to a notice; a minute
package redisslots

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/slots/keeper"
	"github.com/headgate/headgate/internal/store"
)

// Config configures a [Registry]. All but the functions is required.
type Config struct {
	keeper.Config // but for the Shards

	Names  *rediskey.Names
	Called func(store.Call) // or nil
}

// A Registry keeps slots in Redis. It is safe for concurrent use. Acquire and BeatForOthers are those of the
// Keeper.
type Registry struct {
	*keeper.Keeper
	*transport

	id        string          // in notices
	listeners slots.Listeners // to notices
}

// A transport is what the keeper sees of Redis.
type transport struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the client, or nil if that is not of a Cluster
	config  Config
}

// clusterShards divide the hash slots of a Cluster. Those of a shard are together if their master does not answer. They
// are not the masters, of which a shard may have several, since hash slots move from one to another.
const clusterShards = 16

// New returns a Registry. The client must heed deadlines. Nothing is sent until a slot is acquired.
func New(client redis.UniversalClient, config Config) *Registry {
	cluster, isCluster := client.(*redis.ClusterClient)
	config.Shards = 1
	if isCluster {
		config.Shards = clusterShards
	}
	transport := &transport{client, cluster, config}
	registry := &Registry{Keeper: keeper.New(transport, config.Config), transport: transport, id: rand.Text()}
	registry.listeners.Start = registry.startReading
	return registry
}

// Close implements [slots.Registry]. It takes no longer than the TTL: after that, others no longer count the slots
// anyway.
func (s *Registry) Close(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.TTL)
	defer cancel()
	if err := s.Keeper.Close(ctx, name); err != nil {
		return fmt.Errorf("headgate: slots %q: %w", name, err)
	}
	return nil
}

// Count implements [slots.Registry]. Others count with what they have stated, unless they are dead. After an error it
// is what this process holds.
func (s *Registry) Count(ctx context.Context, name, key string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	// What Redis has of this process is behind by what is on its way.
	held := s.Held(name, key)
	holders, err := s.holders(ctx, name, key, "")
	for _, holder := range holders {
		held += holder.Count
	}
	return held, err
}

// holders returns the other processes that hold slots of a key and are not dead. With a mark, which an announcement has
// written in the key's hash slot, it looks whether the server still has that. If not, the error is errLost: the server
// has lost what was there before, and a process that is missing may hold slots all the same.
func (s *Registry) holders(ctx context.Context, name, key, mark string) (all []keeper.Holder, err error) {
	pipe := s.client.Pipeline()
	fields := pipe.HGetAll(ctx, s.hash(name, key))
	// The field of a dead process stays until somebody is refused for it. Those that are dead have a negative score:
	// see beat.lua.
	dead := pipe.ZRangeByScore(ctx, s.fleet(), &redis.ZRangeBy{Min: "-inf", Max: "(0"})
	found := new(redis.StringCmd)
	if mark != "" {
		found = pipe.Get(ctx, mark)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, unavailable(err)
	}
	own := s.Incarnations()
	for id, text := range fields.Val() {
		holder, err := keeper.ReadHolder(id, text)
		if err != nil {
			return nil, err
		}
		isOther := !slices.Contains(own, id) && !slices.Contains(dead.Val(), id)
		if isOther && holder.Count > 0 { // a zero is kept while an earlier statement may be on its way
			all = append(all, holder)
		}
	}
	if found.Err() != nil {
		return nil, unavailable(errLost)
	}
	return all, nil
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", slots.ErrUnavailable, err) }

// hash is the name of the hash of a key. It ends otherwise than that of what rates store. A colon or a slash in the
// name is escaped there: no name of slots can end like another value.
func (t *transport) hash(name, key string) string {
	var room [rediskey.MaxPlain + 64]byte
	hash := t.config.Names.AppendTag(room[:0], key)
	hash = rediskey.AppendEscaped(append(hash, ':'), name, ":/")
	return string(append(hash, ":slots"...))
}

func (t *transport) common(value string) string { return t.config.Names.Common("slots", value) }

// fleet is the name of the set of incarnations.
func (t *transport) fleet() string { return t.common("servers") }

// A script is the source of a Lua script and the SHA-1 by which Redis knows it.
type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return &script{source, hex.EncodeToString(sum[:])}
}

var (
	statementScript = newScript(keeper.StatementScript) //nolint:gochecknoglobals // never changed
	beatScript      = newScript(keeper.BeatScript)      //nolint:gochecknoglobals // never changed
)

// once is a command that the client must not repeat: whether the first was run is unknown, and a second statement of
// one number, which changes nothing, would be answered like one that came too late. The keeper states anew what it does
// not know.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (s *script) command(ctx context.Context, bySHA bool, keys []string, args []any) once {
	words := []any{"eval", s.source, len(keys)}
	if bySHA {
		words = []any{"evalsha", s.sha, len(keys)}
	}
	for _, key := range keys {
		words = append(words, key)
	}
	return once{redis.NewCmd(ctx, append(words, args...)...)}
}

// eval runs a script by its SHA-1 or, if the server does not know that, by its source. It is for scripts of which one
// is run at a time; statements go in pipelines.
func (t *transport) eval(ctx context.Context, script *script, keys []string, args ...any) ([]any, error) {
	cmd := script.command(ctx, true, keys, args)
	err := t.client.Process(ctx, cmd)
	if isUnknownScript(err) {
		cmd = script.command(ctx, false, keys, args)
		_ = t.client.Process(ctx, cmd)
	}
	return cmd.Slice()
}

func isUnknownScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// Shard implements [keeper.Transport].
func (t *transport) Shard(name, key string) int {
	if t.cluster == nil {
		return 0
	}
	// Of neighbors, as masters have ranges.
	return rediskey.HashSlot([]byte(t.hash(name, key))) * clusterShards / rediskey.HashSlots
}

// Run implements [keeper.Transport]. The client of a Cluster makes a pipeline for each node.
func (t *transport) Run(ctx context.Context, all []*keeper.Statement) error {
	start := time.Now()
	// The source is 3 KB, so a server gets it once, and its SHA-1 with each statement.
	t.pipeline(ctx, true, all)
	var again []*keeper.Statement
	for _, statement := range all {
		if isUnknownScript(statement.Err) { // nothing was run
			again = append(again, statement)
		}
	}
	t.pipeline(ctx, false, again)
	// One answer shows that the shard is there: what Run returns is taken for an outage of all of it. An error about a
	// key alone is an answer, too.
	isAnswered := func(s *keeper.Statement) bool { return s.Err == nil || isAboutKey(s.Err) }
	var failure error
	if !slices.ContainsFunc(all, isAnswered) {
		failure = all[len(all)-1].Err
	}
	t.reportCall(len(all), start, failure)
	return failure
}

// pipeline sends statements in a pipeline, and sets the reply or the error of each.
func (t *transport) pipeline(ctx context.Context, bySHA bool, all []*keeper.Statement) {
	if len(all) == 0 {
		return
	}
	pipe := t.client.Pipeline()
	cmds := make([]once, len(all))
	for i, statement := range all {
		cmds[i] = statementScript.command(ctx, bySHA, []string{t.hash(statement.Name, statement.Key)}, statement.Args())
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, statement := range all {
		reply, err := cmds[i].Slice()
		statement.Err = markError(err)
		if err == nil {
			statement.Read(reply)
		}
	}
}

// reportCall reports a call. After a failure, the client of a Cluster looks which masters there are: what it knows of
// them may be seconds old.
func (t *transport) reportCall(keys int, start time.Time, failure error) {
	if t.cluster != nil && failure != nil {
		t.cluster.ReloadState(context.Background()) // in the background
	}
	if t.config.Called != nil {
		t.config.Called(store.Call{Questions: keys, Took: time.Since(start), Err: failure})
	}
}

// wrapped is what Redis 6.2 puts before the error of a command that a script runs. Later versions put something after
// it.
//
//	ERR Error running script (call to f_c00c): @user_script:1: WRONGTYPE Operation ...   Redis 6.2
//	WRONGTYPE Operation ... script: c00c, on @user_script:12.                            Redis 7
var wrapped = regexp.MustCompile(
	`^(?:ERR )?(?:Error running script \(call to \w+\): )?(?:@user_script: ?\d+: )*-?(?:ERR )?`)

// isAboutKey reports whether an error is about the key alone: its value is of another type, or not one of ours. Such a
// fault stays with its key. Any other error, such as READONLY or OOM, is one of the server, and three calls in a row
// that have no other answer stall a shard.
func isAboutKey(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return errors.Is(err, keeper.ErrReply)
	}
	text := wrapped.ReplaceAllString(reply.Error(), "")
	return strings.HasPrefix(text, "WRONGTYPE") || strings.HasPrefix(text, "user_script:")
}

// markError marks the error of what was not sent, and that of a client that was closed. Of everything else it is
// unknown whether it was run. A statement that was surely not sent leaves the keeper sure of what the server has.
func markError(err error) error {
	var operation *net.OpError
	switch {
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: %w", keeper.ErrGone, err)
	case errors.As(err, &operation) && operation.Op == "dial":
		return fmt.Errorf("%w: %w", keeper.ErrUnsent, err)
	}
	return err
}

// Beat implements [keeper.Transport].
func (t *transport) Beat(ctx context.Context, beat *keeper.Beat) error {
	reply, err := t.eval(ctx, beatScript, []string{t.fleet()}, beat.Args("")...)
	if err == nil {
		err = beat.Read(reply)
	}
	if err != nil {
		if t.cluster != nil {
			t.cluster.ReloadState(ctx)
		}
		return markError(err)
	}
	// After the script, so that a failover before it is seen. One after it is seen by the next beat.
	beat.Histories = t.histories(ctx)
	return nil
}

// histories returns the history of each master, or "" if one does not tell.
func (t *transport) histories(ctx context.Context) string {
	if t.cluster == nil {
		return history(ctx, t.client)
	}
	var mu sync.Mutex // the client asks all masters at once
	var all []string
	err := t.cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		one := history(ctx, master)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	if err != nil || slices.Contains(all, "") { // with one missing, the text would be another, and all stated again
		return ""
	}
	// The client asks them in any order.
	slices.Sort(all)
	return strings.Join(all, " ")
}

// history returns the run of a server, which a restart changes, and its replication history, which a failover changes.
// It is "" if the server does not tell, such as one that does not permit INFO.
func history(ctx context.Context, client redis.UniversalClient) string {
	pipe := client.Pipeline()
	server := pipe.InfoMap(ctx, "server")
	replication := pipe.InfoMap(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil {
		return ""
	}
	return server.Item("Server", "run_id") + "/" + replication.Item("Replication", "master_replid")
}

// Check does on each master what slots need, under names that nobody else uses and that expire. The error has all that
// failed. It is for headgate ping and the start of a program; it takes at most a Timeout for each master and two more.
func (s *Registry) Check(ctx context.Context) error {
	var errs []error
	check := func(failure string, try func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
		defer cancel()
		if err := try(ctx); err != nil {
			errs = append(errs, fmt.Errorf("headgate: redisstore: %s: %w", failure, err))
		}
	}
	keys := s.trialKeys(ctx)
	for _, address := range slices.Sorted(maps.Keys(keys)) {
		check(strings.TrimSpace("slots cannot be granted "+address), func(ctx context.Context) error {
			return s.tryStatements(ctx, keys[address])
		})
	}
	check("heartbeats of slots are not taken", func(ctx context.Context) error {
		beat := &keeper.Beat{ID: "trial", Register: true, TTL: s.config.TTL, Step: s.config.TTL}
		_, err := s.eval(ctx, beatScript, []string{s.common("trial")}, beat.Args("")...)
		return err
	})
	check("notices of sockets are not taken", func(ctx context.Context) error {
		posts := []string{s.common("trial-posts"), s.common("trial-last")}
		err := s.client.Process(ctx, postScript.command(ctx, false, posts, []any{"trial", "trial", 1, maxLasting}))
		_, unread := s.eval(ctx, readScript, posts, "")
		return cmp.Or(err, unread, s.client.ZRem(ctx, posts[0], "trial").Err())
	})
	return errors.Join(errs...)
}

// trialKeys returns a key on each master of a Cluster, by the master's address. Of another server it is one, by "".
func (s *Registry) trialKeys(ctx context.Context) map[string]string {
	if s.cluster == nil {
		return map[string]string{"": "trial"}
	}
	// No name says on which master it is. Of a thousand keys, a master with a hundredth of the hash slots has about
	// ten.
	keys := make(map[string]string)
	for i := range 1000 {
		key := "trial" + strconv.Itoa(i)
		master, err := s.cluster.MasterForKey(ctx, s.hash("", key))
		if err == nil {
			keys[master.Options().Addr] = key
		}
	}
	return keys
}

// tryStatements acquires a slot of a key and gives it back.
func (t *transport) tryStatements(ctx context.Context, key string) error {
	first := &keeper.Statement{Key: key, ID: "trial" + rand.Text(), Seq: 1, Want: 1, Most: 1, Waits: true}
	last := &keeper.Statement{Key: key, ID: first.ID, Seq: 2, Delete: true, Drop: []string{"trial"}}
	failed := t.Run(ctx, []*keeper.Statement{first})
	// This also if the first failed: its slot may have been granted all the same.
	failedLast := t.Run(ctx, []*keeper.Statement{last})
	return cmp.Or(failed, failedLast, first.Err, last.Err)
}
