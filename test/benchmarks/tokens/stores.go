package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

// Servers are the stores of those that share the limits, as if each were in a process of its own.
type servers struct {
	stores []core.Store
	close  func() error
	calls  *atomic.Int64 // scripts of Redis
}

func inMemory(context.Context) (servers, error) {
	return servers{
		[]core.Store{new(core.MemoryStore)},
		func() error { return nil }, new(atomic.Int64),
	}, nil
}

// overRedis returns four servers that share a Redis, with leases or without.
func overRedis(ctx context.Context, url string, leases bool) (s servers, err error) {
	var closers []func() error
	s.calls = new(atomic.Int64)
	s.close = func() (err error) {
		for _, end := range slices.Backward(closers) {
			err = errors.Join(err, end())
		}
		return err
	}
	c := redisstore.Config{Timeout: 5 * time.Second, Failure: redisstore.FailClosed}
	if leases {
		c.Lease = time.Second
	}
	for range 4 {
		store, err := redisstore.Open(url, c)
		if err != nil {
			return s, errors.Join(err, s.close())
		}
		closers = append(closers, func() error { return store.Close(ctx) })
		store.Client().AddHook(wire{s.calls})
		s.stores = append(s.stores, store)
	}
	return s, nil
}

// A wire counts the scripts that a client runs, and tells them the time of the bubble.
type wire struct{ calls *atomic.Int64 }

func (wire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		reply, ok := cmd.(interface{ SetVal(string) })
		if name := cmd.Name(); !ok || name != "evalsha" && name != "eval" {
			return next(ctx, cmd)
		}
		w.calls.Add(1)
		dated := redis.NewStringCmd(ctx, append(slices.Clip(cmd.Args()), strconv.FormatInt(time.Now().UnixMicro(), 10))...)
		err := next(ctx, dated)
		reply.SetVal(dated.Val())
		cmd.SetErr(err)
		return err
	}
}
