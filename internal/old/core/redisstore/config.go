package redisstore

import (
	"fmt"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
)

// Config configures a Store. Its zero value is ready to use.
type Config struct {
	// Prefix begins the name of every key in Redis. Empty means "headgate".
	Prefix string

	// Secret, if not empty, hides keys: instead of a key, Redis sees its
	// HMAC-SHA-256 under this secret, which all servers must share. It has 32 bytes or
	// more, and should be random. Without a Secret, keys are readable in Redis, except
	// those above 128 bytes, which are hashed.
	Secret []byte `json:"-"`

	// Timeout bounds every decision about a limit, measured from the call; 1 ms or more. 0 means
	// 100 ms. An earlier deadline of the caller's context ends the decision with an error, but not
	// the call to Redis. Choose it well above the time that Redis needs to answer. That is 14 ms
	// for the largest charges of SlidingLogs.
	Timeout time.Duration

	// SlotTimeout bounds the wait for a slot, measured from the call: 1 ms to SlotTTL/3. It is
	// longer than Timeout, because a slot that is granted without Redis may exceed the limit for as
	// long as a socket is open. That should not happen on a machine that is only busy. If Redis
	// answers slots nothing for two SlotTimeouts, it is unavailable to them. 0 means 2 s, or
	// Timeout if that is longer, but at most SlotTTL/3.
	SlotTimeout time.Duration

	// Failure says how decisions are made while Redis is unavailable. It also makes the decision if
	// Redis returns an error, or no answer within the Timeout. While Redis is unavailable,
	// decisions are made at once, also under a context that ends soon. A context that has ended
	// gets its error.
	Failure Failure

	// Servers is the number of servers. FailLocal divides every limit by it, so that together they
	// admit about the limit. 0 and 1 leave limits as they are. Then FailLocal counts the slots that
	// others held by the last answer about a key. The answer must not be older than a SlotTTL, and
	// be among the last answers about some 65,000 keys.
	Servers int

	// RefusalTTL is the longest time for which a refusal is remembered. For that time, the refusal
	// does not show the changes that other processes make to the key. 0 means 1 s; a negative value
	// means that none is remembered.
	RefusalTTL time.Duration

	// NoMerging turns merging off: every decision is a call of its own, 64 to a server at once.
	// Others wait. If they are more than it can answer, some are not sent before their
	// Timeout.
	NoMerging bool

	// SlotTTL is how long the slots of a process stay taken after its last heartbeat:
	// 100 ms to 1 h, the same on all servers. A process sends one every SlotTTL/3, so a
	// pause of two thirds of SlotTTL may lose slots. 0 means 15 s.
	SlotTTL time.Duration

	// Observer, if not nil, is told of decisions and slots, of calls to Redis, and when Redis
	// becomes unavailable or is back. It is told so separately for rates, for slots and for their
	// heartbeats, and in a Cluster for each master.
	Observer *store.Observer
}

// Failure says how decisions are made while Redis is unavailable.
type Failure int

const (
	// FailLocal applies the same policies in this process, divided by
	// [Config].Servers. The state takes up to 64 MiB of memory.
	FailLocal = Failure(remote.Local)
	// FailOpen admits everything that can ever be admitted. So it refuses charges above the limit
	// of a policy, and slots whose limit is 0.
	FailOpen = Failure(remote.Open)
	// FailClosed decides nothing: the error is [store.ErrUnavailable].
	FailClosed = Failure(remote.Closed)
)

// Format implements [fmt.Formatter]: it prints the configuration without the Secret.
func (c Config) Format(s fmt.State, verb rune) {
	type plain Config
	c.Secret = nil
	hidden.Print(s, verb, plain(c))
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "headgate"
	}
	if c.Timeout == 0 {
		c.Timeout = 100 * time.Millisecond
	}
	if c.RefusalTTL == 0 {
		c.RefusalTTL = time.Second
	}
	if c.SlotTTL == 0 {
		c.SlotTTL = 15 * time.Second
	}
	if c.SlotTimeout == 0 {
		c.SlotTimeout = min(max(2*time.Second, c.Timeout), c.SlotTTL/3)
	}
	return c
}

func (c Config) remote() remote.Config {
	return remote.Config{Timeout: c.Timeout, MaxWeight: maxWords, NoMerging: c.NoMerging, Observer: c.Observer}
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
	if c.SlotTimeout < time.Millisecond || c.SlotTimeout > c.SlotTTL/3 {
		fault("a SlotTimeout of %v is not 1 ms to a third of the SlotTTL, %v", c.SlotTimeout, c.SlotTTL/3)
	}
	if n := len(c.Secret); n > 0 && n < rediskey.MinSecret {
		fault("a Secret of %d bytes: use %d random bytes or more", n, rediskey.MinSecret)
	}
	if strings.ContainsAny(c.Prefix, "{}") {
		fault("a Prefix with braces would decide the hash slots of a Cluster: leave them out")
	}
	return faults
}
