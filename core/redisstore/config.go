package redisstore

import (
	"fmt"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
)

// Config configures a Store. Its zero value is ready to use.
type Config struct {
	// Prefix begins the name of every key in Redis. Empty means "headgate".
	Prefix string

	// Secret, if not empty, hides keys: instead of a key, Redis sees its
	// HMAC-SHA-256 under this secret, which all servers must share. It has 32 bytes or
	// more, and should be random. Without a Secret, keys are readable in Redis, except
	// those above 128 bytes, which are hashed.
	Secret []byte

	// Timeout bounds every decision, measured from the call; 1 ms or more. 0 means
	// 100 ms. An earlier deadline of the caller's context ends it with an error.
	Timeout time.Duration

	// Failure says how decisions are made while Redis is unavailable.
	Failure Failure

	// Servers is the number of servers; FailLocal divides every limit by it, so that
	// together they admit about what they should. 0 and 1 leave limits as they are.
	Servers int

	// MemoryFor is the longest time for which a refusal is cached. 0 means 1 s; a
	// negative value turns the cache off.
	MemoryFor time.Duration

	// Unmerged turns merging off: every decision is a call of its own.
	Unmerged bool

	// SlotTTL is how long the slots of a process that was killed or cut off stay
	// taken: 100 ms to 1 h, the same on all servers. A process sends a heartbeat every
	// SlotTTL/3. 0 means 15 s.
	SlotTTL time.Duration

	// Instance, if not empty, names this process: a name that it has again after a
	// restart and that no other process has, such as that of a pod of a StatefulSet.
	// The first acquire then frees what the predecessor still holds.
	Instance string

	// Hooks are called when something happens.
	Hooks Hooks
}

// Failure says how decisions are made while Redis is unavailable.
type Failure int

const (
	// FailLocal applies the same policies in this process, divided by
	// [Config].Servers. The state takes up to 64 MiB of memory.
	FailLocal Failure = iota
	// FailOpen admits everything, except what is never admitted: charges above what a
	// policy can grant, and slots whose limit is 0.
	FailOpen
	// FailClosed decides nothing: the error is [core.ErrUnavailable].
	FailClosed
)

// Hooks are functions to call when something happens. They are called in the goroutine
// of a decision or of a call to Redis, possibly by many goroutines at once, and should
// return quickly. No hook receives a key. Any may be nil.
type Hooks struct {
	// Decided is called after each decision, and when none could be made: once for each
	// charge of those that are decided together. Peeks are not reported, nor are
	// decisions that the policies make without the store, such as about a charge above
	// the limit, nor callers who gave up.
	Decided func(DecisionEvent)

	// SlotAcquired is called after each slot was granted or refused, with the name of
	// the slots. If it panics, the slot is released.
	SlotAcquired func(slots string, granted bool, source core.Source)

	// SlotsLost is called when this process has been declared dead while it held that
	// many slots. It keeps them: see [core.Slot.Lost].
	SlotsLost func(held int64)

	// SlotsRestated is called when Redis may have lost what this process has stated,
	// with the number of keys that are stated again.
	SlotsRestated func(keys int)

	// Called is called after each call to Redis, with the number of questions or of
	// slots' keys in it, how long it took, and the error if it failed. Heartbeats are
	// not reported.
	Called func(questions int, took time.Duration, err error)

	// Changed is called when Redis becomes unavailable, with the reason, and when it
	// is available again, with nil. In a Cluster it is called for each master.
	Changed func(reason error)
}

// A DecisionEvent is a decision about a charge of one limiter.
type DecisionEvent struct {
	Limiter string

	// Policy is the name of the limiter's policy that decided: of those that refused,
	// the one with the longest wait; if the charge was admitted, the one with the least
	// remaining. It is empty if another limiter of the same decision refused.
	Policy string

	Allowed bool
	Source  core.Source

	// Err, if not nil, is why no decision was made. Then only Limiter is set.
	Err error
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "headgate"
	}
	if c.Timeout == 0 {
		c.Timeout = 100 * time.Millisecond
	}
	if c.MemoryFor == 0 {
		c.MemoryFor = time.Second
	}
	if c.SlotTTL == 0 {
		c.SlotTTL = 15 * time.Second
	}
	return c
}

// faults returns all that is wrong with a Config that has its defaults.
func (c Config) faults() (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("headgate: redisstore: "+format, args...))
	}
	if c.Timeout < time.Millisecond {
		fault("a Timeout of %v is below 1 ms", c.Timeout)
	}
	if c.Failure < FailLocal || c.Failure > FailClosed {
		fault("Failure %d is none of FailLocal, FailOpen, FailClosed", c.Failure)
	}
	if c.Servers < 0 {
		fault("%d Servers: use 0 or more", c.Servers)
	}
	if c.SlotTTL < 100*time.Millisecond || c.SlotTTL > time.Hour {
		fault("a SlotTTL of %v is not 100 ms to 1 h", c.SlotTTL)
	}
	if n := len(c.Secret); n > 0 && n < minSecret {
		fault("a Secret of %d bytes: use %d random bytes or more", n, minSecret)
	}
	if strings.ContainsAny(c.Prefix, "{}") {
		fault("a Prefix with braces would decide the hash slots of a Cluster: leave them out")
	}
	return faults
}
