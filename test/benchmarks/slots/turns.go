package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

// turns measures what each of several servers gets of the slots for which their callers wait: a row of Markdown for each
// limit and time for which a slot is held.
func turns(ctx context.Context, span time.Duration) (err error) {
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	fmt.Println("| callers | limit | held for | share of each, % | slots busy, % | grants a second | calls a grant |\n|---|--:|--:|---|--:|--:|--:|")
	for _, callers := range [][]int{{50, 50}, {50, 2}, {50, 5}, {50, 50, 50}} {
		for _, limit := range []int64{1, 2, 10} {
			for _, hold := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
				if err := server.contest(ctx, callers, limit, hold, max(span, 20*hold)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// contest lets the callers of several servers wait for the slots of one key.
func (s *server) contest(ctx context.Context, callers []int, limit int64, hold, span time.Duration) error {
	granted := make([]atomic.Int64, len(callers))
	var all sync.WaitGroup
	var stores []*redisstore.Store
	wait, stop := context.WithCancel(ctx)
	defer stop()
	for i, n := range callers {
		store, err := redisstore.Open("redis://"+s.addr, redisstore.Config{Failure: redisstore.FailClosed, Prefix: fmt.Sprint(callers, limit, hold)})
		if err != nil {
			return err
		}
		stores = append(stores, store)
		slots := core.NewSlots(store, "turns", limit)
		for range n {
			all.Go(func() {
				for wait.Err() == nil {
					slot, err := slots.Wait(wait, "key", n)
					if err != nil {
						continue
					}
					granted[i].Add(1)
					<-time.After(hold)
					slot.Release()
				}
			})
		}
	}
	<-time.After(time.Second) // until each has got its turn
	sum := func() (all []int64, sum int64) {
		for i := range granted {
			all = append(all, granted[i].Load())
			sum += all[i]
		}
		return all, sum
	}
	before, was := sum()
	calls, err := s.count(ctx)
	if err != nil {
		return err
	}
	<-time.After(span)
	after, is := sum()
	more, err := s.count(ctx)
	stop()
	all.Wait()
	for _, store := range stores {
		err = errors.Join(err, store.Close(ctx))
	}
	grants := is - was
	shares := ""
	for i := range after {
		shares += fmt.Sprintf(" %.0f", 100*float64(after[i]-before[i])/float64(grants))
	}
	fmt.Printf("| %v | %d | %v |%s | %.0f | %.0f | %.1f |\n", callers, limit, hold, shares,
		100*float64(grants)*hold.Seconds()/span.Seconds()/float64(limit), float64(grants)/span.Seconds(), float64(more.calls-calls.calls)/float64(grants))
	return err
}
