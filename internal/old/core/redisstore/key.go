package redisstore

import (
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
)

// A namer makes the names of values in Redis:
//
//	headgate:{=user-42}:api:r3
//	headgate:{=user-42}:api/strict:sl5
//
// the tag of the key, the limiter's name, and r with the number of the layout of records: the value has one for each
// policy. A SlidingLog has a value of its own, with the policy's name, and the algorithm with its layout. Names escape
// the characters that separate them.
type namer struct{ *rediskey.Names }

// suffix is what follows the tag in the name of the value that has the state of a policy.
func suffix(limiter string, p *store.Policy) string {
	b := rediskey.AppendEscaped([]byte(":"), limiter, ":/")
	algorithm := p.Step.Numbers().Algorithm
	if algorithm != step.SlidingLog {
		return string(append(b, ":r3"...))
	}
	b = rediskey.AppendEscaped(append(b, '/'), p.Name, ":/")
	return string(append(b, ":"+algorithm.String()...))
}

// values appends the names of the values that a charge is about.
func (b *backend) values(names []string, c *store.Charge) []string {
	var room [rediskey.MaxPlain + 64]byte
	tag := b.names.AppendTag(room[:0], c.Key)
	for _, suffix := range b.prepared(c.Limiter).suffixes {
		names = append(names, string(append(tag, suffix...)))
	}
	return names
}
