package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/internal/remote"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A backend asks Redis.
type backend struct {
	client  redis.UniversalClient
	names   namer
	servers servers

	timeout, slotTimeout time.Duration // of one call of a trial

	instant func() string // for tests: the time to use instead of the server's
}

func (b *backend) isCluster() bool { return b.servers.cluster != nil }

// A limiter is a limiter as the store has prepared it.
type limiter struct {
	spec     store.Spec
	suffixes []string // of the names of states
	policies []policy // for the script,
	numbers  any      // and their numbers, a string
	words    int      // of the states that are read and written whole
	logs     int      // the number of the others: long logs
}

// Spec implements [store.Limiter].
func (l *limiter) Spec() *store.Spec { return &l.spec }

func prepared(l store.Limiter) *limiter {
	return l.(*limiter) //nolint:forcetypeassert // it is what Prepare has returned
}

// maxLog is the most units that the SlidingLogs of a limiter may store for a key, also in
// the script. To write as many at once takes Redis about 2 ms, during which it answers
// nobody else: what one client charges must not be what others wait for in vain.
const maxLog = 1 << 14

// Prepare implements [remote.Backend]. It refuses a limiter whose logs are too long.
func (b *backend) Prepare(spec store.Spec) (store.Limiter, error) {
	stored := int64(0)
	for _, p := range spec.Policies {
		if m := p.Step.Numbers(); m.Algorithm == step.SlidingLog {
			stored += m.Limit
		}
	}
	if stored > maxLog {
		return nil, fmt.Errorf("a SlidingLog stores each event, in Redis at most %d for all of a limiter's, not %d: use SlidingWindow or TokenBucket", maxLog, stored)
	}
	l := &limiter{spec: spec}
	l.policies, l.numbers = policiesOf(&l.spec)
	for i := range spec.Policies {
		p := &spec.Policies[i]
		l.suffixes = append(l.suffixes, suffix(spec.Name, p))
		if l.policies[i].inParts == 1 {
			l.logs++
		} else {
			l.words += p.Step.MaxWords()
		}
	}
	return l, nil
}

// Route implements [remote.Backend]. A part is a hash slot of a Cluster.
func (b *backend) Route(key string) (server *remote.Server, part int) {
	if !b.isCluster() {
		return &b.servers.first, 0
	}
	tag := b.names.tag(make([]byte, 0, 64), key)
	return b.servers.of(string(tag)), hashSlotOf(tag)
}

// Servers implements [remote.Backend].
func (b *backend) Servers() []*remote.Server { return b.servers.all() }

// resetScript deletes its keys. It is a script because a ClusterClient splits DEL into
// commands of its own, which it may retry.
const resetScript = `return redis.call("DEL", unpack(KEYS))`

// Reset implements [remote.Backend].
func (b *backend) Reset(ctx context.Context, l store.Limiter, key string) error {
	names := b.cells(nil, &store.Charge{Limiter: l, Key: key})
	words := []any{eval, resetScript, len(names)}
	for _, name := range names {
		words = append(words, name)
	}
	_, err := b.process(ctx, words)
	return err
}
