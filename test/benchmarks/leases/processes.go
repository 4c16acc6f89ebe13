package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/redisstore"
)

// A system is a limit, with leases or without.
type system struct {
	name   string
	policy core.Policy
	leased bool
}

const without = "without leases"

var systems = []system{
	{without, core.FixedWindow(core.PerSecond(limit)), false},
	{"sub-windows of 100 ms", core.SlidingWindow(core.PerSecond(limit)), true},
	{"sub-windows of 250 ms", core.SlidingWindow(core.PerSecond(limit)).Resolution(4), true},
	{"windows of 1 s", core.FixedWindow(core.PerSecond(limit)), true},
	{"a bucket, leased for 500 ms", core.TokenBucket(core.PerSecond(limit), 2*limit).Leasable(500 * time.Millisecond), true},
}

// A share is what one process did.
type share struct {
	Asked    int64 `json:"asked"`
	Admitted int64 `json:"admitted"`
	Leased   int64 `json:"leased"` // decisions, refusals too
}

const (
	callers = 1024 // of each process: many, as most of them wait for a Redis that is far away
	batch   = 16   // a timer for each request would take longer than a decision
	warmUp  = 2 * time.Second
)

// ask is one of the processes: it connects, waits for a line, and asks for its part of the demand
// until the time is over.
func ask(ctx context.Context, name, addr string, duration time.Duration) (err error) {
	s := systems[slices.IndexFunc(systems, func(s system) bool { return s.name == name })]
	below, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, redisstore.Config{
		Timeout: 5 * time.Second, Failure: redisstore.FailClosed,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, below.Client().Close()) }()
	var store core.Store = below
	if s.leased {
		leases, err := lease.New(below, lease.Config{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, leases.Close(context.WithoutCancel(ctx))) }()
		store = leases
	}
	limiter, err := core.New(store, "api", s.policy)
	if err != nil {
		return err
	}
	if _, err := limiter.Allow(ctx, "connects"); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	begin := time.Now().Add(warmUp)
	begin = begin.Truncate(time.Second).Add(time.Second) // windows are counted whole
	end := begin.Add(duration)
	var mu sync.Mutex
	var all share
	var faults []error
	var wait sync.WaitGroup
	for i := range callers {
		wait.Go(func() {
			own, fault := call(ctx, limiter, i, begin, end)
			mu.Lock()
			defer mu.Unlock()
			all.Asked, all.Admitted, all.Leased = all.Asked+own.Asked, all.Admitted+own.Admitted, all.Leased+own.Leased
			faults = append(faults, fault)
		})
	}
	wait.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// call is the i-th caller of a process. It counts what it asks from begin to end.
func call(ctx context.Context, l *core.Limiter, i int, begin, end time.Time) (own share, err error) {
	const gap = time.Second * batch * callers * processes / (demand * limit)
	<-time.After(gap * time.Duration(i) / callers)
	for next := time.Now(); ; next = next.Add(gap) {
		if late := time.Since(next); late > time.Second {
			next = time.Now() // what was missed is not caught up with
		}
		<-time.After(time.Until(next))
		for range batch {
			now := time.Now()
			if !now.Before(end) {
				return own, nil
			}
			d, err := l.Allow(ctx, "hot")
			if err != nil {
				return own, err
			}
			if now.Before(begin) {
				continue
			}
			own.Asked++
			if d.Allowed {
				own.Admitted++
			}
			if d.Source == core.SourceLease {
				own.Leased++
			}
		}
	}
}

// A worker is one of the processes.
type worker struct {
	in  io.Writer
	out *bufio.Reader
	end func()
}

// launch starts a process that asks, and waits until it is ready.
func launch(ctx context.Context, name, addr string, duration time.Duration) (w worker, err error) {
	self, err := os.Executable()
	if err != nil {
		return w, err
	}
	cmd := exec.CommandContext(ctx, self, "-serve", name, "-addr", addr, "-duration", duration.String())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return w, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return w, err
	}
	if err := cmd.Start(); err != nil {
		return w, err
	}
	w = worker{in, bufio.NewReader(out), func() {
		_ = cmd.Process.Kill() // unless it has ended
		_ = cmd.Wait()
	}}
	if _, err = w.out.ReadString('\n'); err != nil {
		w.end()
	}
	return w, err
}

// together measures a system with all processes at once.
func (s *server) together(ctx context.Context, name string, trip, duration time.Duration) (l line, err error) {
	l = line{system: name, trip: trip, seconds: duration.Seconds()}
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return l, err
	}
	addr, closeProxy, err := delayed(ctx, s.addr, trip)
	if err != nil {
		return l, err
	}
	defer closeProxy()
	var workers []worker
	for range processes {
		w, err := launch(ctx, name, addr, duration)
		if err != nil {
			return l, err
		}
		defer w.end()
		workers = append(workers, w)
	}
	for _, w := range workers {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return l, err
		}
	}
	<-time.After(warmUp + time.Second)
	before, err := s.calls(ctx)
	if err != nil {
		return l, err
	}
	<-time.After(duration - time.Second)
	after, err := s.calls(ctx)
	if err != nil {
		return l, err
	}
	l.calls = int64(float64(after-before) * l.seconds / (l.seconds - 1))
	for _, w := range workers {
		var own share
		if err := json.NewDecoder(w.out).Decode(&own); err != nil {
			return l, err
		}
		l.Asked, l.Admitted, l.Leased = l.Asked+own.Asked, l.Admitted+own.Admitted, l.Leased+own.Leased
	}
	return l, nil
}
