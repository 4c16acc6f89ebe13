package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Servers are the stores of those that share the limits, as if each were in a process of its own.
type servers struct {
	stores []core.Store
	close  func() error
	calls  *atomic.Int64 // scripts of Redis
}

func inMemory(context.Context) (servers, error) {
	return servers{
		[]core.Store{memstore.New(memstore.Config{})},
		func() error { return nil }, new(atomic.Int64),
	}, nil
}

// overRedis returns four servers that share a Redis, with leases or without.
func overRedis(ctx context.Context, addr string, leases bool) (s servers, err error) {
	var closers []func() error
	s.calls = new(atomic.Int64)
	s.close = func() (err error) {
		for _, end := range slices.Backward(closers) {
			err = errors.Join(err, end())
		}
		return err
	}
	for range 4 {
		below, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, redisstore.Config{
			Timeout: 5 * time.Second, Failure: redisstore.FailClosed,
		})
		if err != nil {
			return s, errors.Join(err, s.close())
		}
		closers = append(closers, below.Client().Close)
		below.Client().AddHook(wire{s.calls})
		if !leases {
			s.stores = append(s.stores, below)
			continue
		}
		leased, err := lease.New(below, lease.Config{})
		if err != nil {
			return s, errors.Join(err, s.close())
		}
		closers = append(closers, func() error { return leased.Close(ctx) })
		s.stores = append(s.stores, leased)
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
		args := cmd.Args()
		if keys, ok := args[min(2, len(args)-1)].(int); ok && len(args) == 3+keys+3 {
			args[3+keys] = strconv.FormatInt(time.Now().UnixMicro(), 10)
			w.calls.Add(1)
		}
		return next(ctx, cmd)
	}
}

// instant is the key of where a context wants the instant of a decision, in microseconds.
type instant struct{}

// A dated store tells contexts the instants of its decisions.
type dated struct{ core.Store }

func (d dated) Ask(ctx context.Context, q *store.Question) error {
	err := d.Store.Ask(ctx, q)
	if at, ok := ctx.Value(instant{}).(*int64); ok {
		*at = q.Result.At
	}
	return err
}
