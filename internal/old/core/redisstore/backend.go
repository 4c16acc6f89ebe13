package redisstore

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
)

// A backend asks Redis.
type backend struct {
	client  redis.UniversalClient
	place   store.Place // of what is kept with limiters
	names   namer
	tags    tags
	servers servers

	timeout time.Duration // of one call of a trial

	instant func() string // for tests: the time to use instead of the server's
}

func (b *backend) isCluster() bool { return b.servers.cluster != nil }

// A limiter is what the backend keeps with a limiter.
type limiter struct {
	spec     *store.Spec
	suffixes []string // of the names of the values
	policies []policy // for the script, in the order of their states
	inOrder  bool     // which is that of the Spec
	ids      string   // of the records
	numbers  any      // the tags and numbers of the policies, a string
	words    int      // of the states that are read and written whole
	logs     int      // the number of the others: long logs
	denied   int      // how many of these count refused attempts
}

// prepared returns what the backend keeps with a limiter.
func (b *backend) prepared(l *store.Limiter) *limiter {
	return l.Kept(&b.place).(*limiter)
}

// maxPolicies is the most policies that a limiter has; as in package core.
const maxPolicies = 8

// maxLog is the most units that the SlidingLogs of a limiter may store for a key, also in
// the script. To write as many at once takes Redis about 2 ms, during which it answers
// nobody else: what one client charges must not be what others wait for in vain.
const maxLog = 1 << 14

// Prepare implements [remote.Backend]. It refuses a limiter whose logs are too long.
func (b *backend) Prepare(prepared *store.Limiter) error {
	spec := prepared.Spec()
	stored := int64(0)
	for _, p := range spec.Policies {
		if m := p.Step.Numbers(); m.Algorithm == step.SlidingLog {
			stored += m.Limit
		}
	}
	if stored > maxLog {
		return fmt.Errorf("a SlidingLog stores each event, in Redis at most %d for all of a limiter's, not %d: use SlidingWindow or TokenBucket", maxLog, stored)
	}
	l := &limiter{spec: spec, inOrder: true}
	l.policies, l.numbers = policiesOf(l.spec)
	for i := range l.policies {
		p := &l.policies[i]
		policy := &spec.Policies[p.index]
		if p.value == len(l.suffixes) {
			l.suffixes = append(l.suffixes, suffix(spec.Name, policy))
		}
		if p.form == formInParts {
			l.logs++
			l.denied += int(p.denied)
		} else {
			l.words += policy.Step.MaxWords()
		}
		if p.form < formWhole { // a log has no record
			if err := b.tags.add(spec.Name, policy); err != nil {
				return err
			}
			tag := step.AppendWord(nil, tagOf(policy))
			l.ids += string(tag[:idBytes])
		}
		l.inOrder = l.inOrder && p.index == i
	}
	prepared.Keep(&b.place, l)
	return nil
}

// Route implements [remote.Backend]. A part is a hash slot of a Cluster.
func (b *backend) Route(key string) (server *remote.Server, part int) {
	if !b.isCluster() {
		return &b.servers.first, 0
	}
	tag := b.names.AppendTag(make([]byte, 0, 64), key)
	return b.servers.of(string(tag)), rediskey.HashSlot(tag)
}

// Servers implements [remote.Backend].
func (b *backend) Servers() []*remote.Server { return b.servers.all() }

// idBytes is how many bytes of a tag tell the policy and the algorithm: the others are a length.
const idBytes = step.WordBytes - lengthBits/8

//go:embed reset.lua
var resetScript string

// Reset implements [remote.Backend].
func (b *backend) Reset(ctx context.Context, l *store.Limiter, key string) error {
	names := b.values(nil, &store.Charge{Limiter: l, Key: key})
	words := []any{eval, resetScript, len(names)}
	for _, name := range names {
		words = append(words, name)
	}
	words = append(words, b.prepared(l).ids)
	_, err := b.process(ctx, words)
	return err
}
