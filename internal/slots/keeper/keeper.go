// Package keeper keeps the slots that this process holds, and makes a server that all processes share count
// them. It is the protocol without the network: a [Transport] runs its two scripts.
//
// The process has the truth. For each key the server has a hash in which each process states how many slots it
// holds, as an absolute number, so any statement repairs a loss. Acquiring is stating, too: the held slots, and as
// many more as there is room for. A process states under the name of an incarnation, which beats keep alive.
//
// File line.go has Acquire and Release, and who waits for an answer; entry.go what is known of a key, and states it;
// process.go the states of the process, and its beats; wire.go what is sent.
//
// Three kinds of goroutines share the entries, under one lock that none of them holds while it waits for the network:
//
//	Acquire   one for each caller: adds a waiter to the entry of its key, and waits for it
//	send      up to eight for each shard: each takes a batch out of the queues, runs it, and applies the replies
//	beatOn    one while anything is kept: beats, and after each looks at all entries
package keeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/slots"
)

var errCrowd = errors.New("headgate: too many acquires wait for the store")

// Config configures a [Keeper].
type Config struct {
	TTL     time.Duration // a process is dead after that long without beats
	Timeout time.Duration // of a call
	Shards  int           // parts of the server that fail independently
	Failure outage.Failure
	Servers int // processes: under FailLocal the limits are divided by it; below 2: what others held last counts

	// Each may be nil. The keeper holds no lock meanwhile.
	Lost     func(slots int64)  // this process was taken for dead while it held that many
	Restated func(keys int)     // the server may have lost something: that many keys are stated again
	Changed  func(reason error) // the server is away, for some keys at least; nil: it is back
}

const (
	beatsInTTL   = 3
	retriesInTTL = 15 // of beats that fail: see retry
	sweepBeats   = 60 // in so many beats everything is stated again
	confirmBeats = 2  // after so many beats a change is stated once more

	refusedFor = 150 * time.Millisecond // a refusal is remembered, from the question
	minPoll    = 10 * time.Millisecond  // between two questions of who waits
	maxPoll    = 100 * time.Millisecond
	maxCalls   = 8       // calls that are in flight to a shard
	batchSize  = 128     // statements in a call
	mergeSize  = 1024    // acquires in a statement
	maxAsking  = 1 << 14 // acquires that wait for an answer
	maxSeen    = 64      // incarnations of others that a beat reports
	maxFormer  = 8       // of its own that a process remembers
	maxFailed  = 3       // calls of a shard that fail in a row, until it is stalled
)

// retry is the pause after a beat that failed.
func (c *Config) retry() time.Duration { return min(c.TTL/retriesInTTL, time.Second) }

// A Keeper keeps slots. It is safe for concurrent use.
type Keeper struct {
	transport Transport
	config    Config

	mu      sync.Mutex // guards all that follows
	process process
	entries map[entryKey]*entry
	shards  []shard
	names   map[string]*openName // of the names that are open
	asking  int                  // acquires that wait for an answer, and do not stand in line
	seq     int64                // of the last statement

	lastReason error // what Config.Changed was told last
	telling    bool  // it is being told

	callLimit, statementLimit int // maxCalls and batchSize, except in tests

	hurry chan struct{} // has room for one: the next beat is sent at once
}

// An entryKey is the name of the slots and the key.
type entryKey struct{ name, key string }

// An openName is a name whose slots are acquired, until they are closed. A name that is opened again is another one:
// what was acquired before has nothing to do with it.
type openName struct{ closed bool }

// New makes a Keeper. Nothing runs until a slot is acquired.
func New(t Transport, config Config) *Keeper {
	return &Keeper{
		transport: t, config: config,
		process: process{id: newID(), lost: make(chan struct{})}, hurry: make(chan struct{}, 1),
		entries: make(map[entryKey]*entry), shards: make([]shard, config.Shards), names: make(map[string]*openName),
		callLimit: maxCalls, statementLimit: batchSize,
	}
}

// Held returns how many slots of the key this process holds.
func (k *Keeper) Held(name, key string) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	entry := k.entries[entryKey{name, key}]
	if entry == nil {
		return 0
	}
	return entry.held
}

// Incarnations returns the incarnation of this process, and the last ones before.
func (k *Keeper) Incarnations() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string{k.process.id}, k.process.former...)
}

// Close gives back everything of a name, or of all if it is "", and waits until the server has it or ctx ends. Until
// then, others count the slots for as long as those of a dead process.
func (k *Keeper) Close(ctx context.Context, name string) error {
	k.mu.Lock()
	// Nobody is left who would be refused by slots of others, so none of their deaths is waited for.
	if name == "" {
		k.process.othersEnd = 0
	}
	for other, open := range k.names {
		if name == "" || name == other {
			open.closed = true
			delete(k.names, other)
		}
	}
	for _, entry := range k.entries {
		if name == "" || name == entry.name {
			entry.held = 0
			k.refuseAll(entry, slots.ErrClosed)
			k.attend(entry)
		}
	}
	k.mu.Unlock()
	// It looks from time to time, and needs no list of those who wait: a process closes seldom.
	for k.owes(name) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(minPoll):
		}
	}
	return nil
}

// owes reports whether the server may count slots of a name, or of any if it is "", that nobody holds. What is held was
// acquired after the name was closed, and is owed by the next Close.
func (k *Keeper) owes(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, entry := range k.entries {
		isMeant := name == "" || name == entry.name
		isOwed := entry.held == 0 && (entry.differs() || entry.phase == sent)
		if isMeant && isOwed {
			return true
		}
	}
	return false
}

// Away returns why the server is not used at the moment, for some keys at least, or nil.
func (k *Keeper) Away() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reason()
}

// reason returns why nothing is sent, for some keys at least, or nil.
func (k *Keeper) reason() error {
	reason := k.process.failure
	for i := range k.shards {
		if reason == nil {
			reason = k.shards[i].reason
		}
	}
	return reason
}

// timed makes a call with a context that ends after a timeout, and reports whether this process was suspended
// meanwhile. Then a call that ran out of time says nothing about the server: only time in which this process runs
// counts as silence.
func timed(timeout time.Duration, call func(context.Context)) (suspended bool) {
	last := time.Now() // before the deadline is set: no instant is left out
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// It looks at the clock in short steps. In one that took twice as long as it should, it was suspended.
	step := max(timeout/8, 20*time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		call(ctx)
	}()
	for ended := false; !ended; {
		timer := time.NewTimer(step)
		select {
		case <-done:
			ended = true
		case <-timer.C:
		}
		timer.Stop()
		now := time.Now()
		suspended = suspended || now.Sub(last) > 2*step
		last = now
	}
	return suspended
}

// jitter takes up to a fifth off a pause, so that processes do not ask in step.
func jitter(pause time.Duration) time.Duration { return pause - rand.N(pause/5+1) } //nolint:gosec // no secret
