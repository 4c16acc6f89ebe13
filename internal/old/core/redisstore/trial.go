package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
)

// trialSpec is a limiter with each algorithm, and a log that is too long to be read whole:
// whoever may decide with it may decide with any. Its name is none that a user may give, so
// that its states are nobody else's. They last for seconds.
var trialSpec = newTrialSpec()

func newTrialSpec() store.Spec {
	const often, second = 1 << 40, int64(time.Second / time.Microsecond)
	var spec store.Spec
	for i, n := range []step.Numbers{
		{Algorithm: step.TokenBucket, Limit: 1000, Period: second, Burst: 1000},
		{Algorithm: step.FixedWindow, Limit: often, Period: second},
		{Algorithm: step.SlidingWindow, Limit: often, Period: second, Resolution: 1},
		{Algorithm: step.MinInterval, Period: 1},
		{Algorithm: step.SlidingLog, Limit: nearEntries, Period: second, CountDenied: true},
		{Algorithm: step.SlidingLog, Limit: 16 * nearEntries, Period: second, CountDenied: true},
	} {
		s, err := step.New(n)
		if err != nil {
			panic(err)
		}
		spec.Policies = append(spec.Policies, store.Policy{Name: strconv.Itoa(i), Step: s})
	}
	return spec
}

// trialKey returns a key in a hash slot; without a Cluster any.
func (b *backend) trialKey(hashSlot int) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("trial", i)
		if !b.isCluster() || rediskey.HashSlot(b.names.AppendTag(nil, key)) == hashSlot {
			return key
		}
	}
}

// try makes decisions as users do, and corrects one: all that a server has to be able to do
// for limits.
func (b *backend) try(ctx context.Context, hashSlot int) error {
	err := bounded(ctx, b.timeout, func(ctx context.Context) error {
		return b.may(ctx, string(b.names.AppendTag(nil, b.trialKey(hashSlot))), limitCommands)
	})
	if err != nil {
		return err
	}
	spec, all := trialSpec, trialSpec.Policies
	for _, policies := range [][]store.Policy{all[:len(all)-1], all, all[len(all)-1:]} {
		spec.Policies = policies
		n := min(spec.Most(), nearEntries+1) // of a log alone, more than is read whole
		l := store.NewLimiter(spec)
		if err := b.Prepare(l); err != nil {
			return err
		}
		charges := []store.Charge{{Limiter: l, Key: b.trialKey(hashSlot), N: n, At: time.Now().UnixMicro()}}
		for _, mode := range []store.Mode{store.Allow, store.Allow, store.Settle} { // the second of a state that is there
			q := &question{Question: store.Question{Mode: mode, Charges: charges}, Part: hashSlot}
			err := bounded(ctx, b.timeout, func(ctx context.Context) error {
				if err, _ := b.Ask(ctx, []*question{q}); err != nil {
					return err
				}
				return q.Err
			})
			if err != nil {
				return err
			}
		}
		err := bounded(ctx, b.timeout, func(ctx context.Context) error {
			return b.Reset(ctx, l, charges[0].Key)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Probe implements [remote.Backend].
func (b *backend) Probe(ctx context.Context, hashSlot int) error {
	return b.probe(ctx, hashSlot, b.try)
}

// probe does what the calls did that failed: a server that accepts writes, but not those,
// is of no use.
func (b *backend) probe(ctx context.Context, hashSlot int, try func(ctx context.Context, hashSlot int) error) error {
	if err := b.reload(ctx); err != nil {
		return err
	}
	err := gone(try(ctx, hashSlot))
	if err != nil && !errors.Is(err, remote.ErrGone) && serverFailure(err) == nil {
		return nil // it is about the hash slot
	}
	return err
}

// reload lets the client of a Cluster load its table again, as a replica may have taken over, and
// the client would find that out only after seconds. The first master that was called is
// unavailable; others may not be.
func (b *backend) reload(ctx context.Context) error {
	if !b.isCluster() {
		return nil
	}
	err := bounded(ctx, b.timeout, func(ctx context.Context) error {
		return b.servers.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
	})
	if err == nil {
		b.servers.learn()
	}
	return gone(err)
}

// bounded makes a call of a trial, which is many: of a server that is far away, each takes a
// large part of what a decision may.
func bounded(ctx context.Context, timeout time.Duration, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// gone tells that a closed client is not opened again.
func gone(err error) error {
	if errors.Is(err, redis.ErrClosed) {
		return remote.ErrGone
	}
	return err
}
