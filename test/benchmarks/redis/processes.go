package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/redisstore"
)

// hot are the systems that several processes limit one hot key with. The first two have the
// same policy, and the others a token bucket that admits as much.
var hot = []system{
	{name: "headgate, leased", open: headgate(leased, slidingWindow)},
	{name: "headgate", open: headgate(merged, slidingWindow)},
	{name: reference, open: redisRate},
	{name: "rueidis, GCRA script", open: rueidisGCRA(0)},
}

// In the first load the limit is not reached, and everyone asks as fast as it can. In the
// second all together ask for twice the limit, if they can.
var (
	endless = limit{1_000_000_000, time.Second}
	shared  = limit{100_000, time.Second}
)

const notReached = "limit not reached"

const asked = 200_000 // a second

const callers = 32 // in each process

var leased = redisstore.Config{Failure: redisstore.FailClosed, Timeout: 3 * time.Second, Lease: time.Second}

// A share is what one process measured.
type share struct {
	Decisions int64   `json:"decisions"`
	Admitted  int64   `json:"admitted"`
	Took      []int64 `json:"took"` // nanoseconds, of some of the decisions
}

// serve is one of the processes: it says when it is connected, waits for a line, and asks for
// the hot key until the time is over.
func serve(ctx context.Context, name, addr string, l limit, duration, gap time.Duration) error {
	i := slices.IndexFunc(hot, func(s system) bool { return s.name == name })
	if i < 0 {
		return fmt.Errorf("no system %q", name)
	}
	if l == endless && i >= 2 {
		l.n = 1_000_000 // a script that counts in microseconds has no more; it is not reached
	}
	o, err := hot[i].open(redis.Options{Addr: addr})
	if err != nil {
		return err
	}
	defer o.close()
	ask, err := o.ask(l)
	if err != nil {
		return err
	}
	if _, err := ask(ctx, "connects"); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	var mu sync.Mutex
	var all share
	var faults []error
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			var own share
			var fault error
			next := time.Now()
			end := next.Add(duration)
			for now := next; now.Before(end) && fault == nil; {
				if l == shared {
					next = next.Add(16 * gap)
					<-time.After(time.Until(next))
				}
				for j := range 16 { // the clock takes about as long as a decision in memory
					if j == 15 {
						now = time.Now()
					}
					ok, err := ask(ctx, hotKey)
					if err != nil {
						fault = err
						break
					}
					own.Decisions++
					if ok {
						own.Admitted++
					}
				}
				if own.Took = append(own.Took, int64(time.Since(now))); len(own.Took) >= 1<<14 {
					own.Took = own.Took[:1<<13] // enough
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all.Decisions, all.Admitted = all.Decisions+own.Decisions, all.Admitted+own.Admitted
			all.Took, faults = append(all.Took, own.Took...), append(faults, fault)
		})
	}
	wait.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// A result is what all processes measured, in one round.
type result struct {
	decisions, admitted float64 // a second
	p50, p99            time.Duration
	commands            float64 // for a thousand decisions
	cpu                 float64 // microseconds of the server for a decision
}

// A line is the medians of what a hot system did under a load.
type line struct {
	load, system string
	processes    int
	result
}

// processes measures the hot systems with that many processes.
func processes(ctx context.Context, c config, s *server, counts []int) ([]line, error) {
	var lines []line
	for _, load := range []struct {
		name string
		limit
	}{{notReached, endless}, {"limit of 100,000/s", shared}} {
		for _, n := range counts {
			rounds := make(map[string][]result)
			for range c.rounds {
				for _, system := range hot {
					if !c.run.MatchString(system.name) {
						continue
					}
					r, err := together(ctx, c, s, system.name, load.limit, n)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", system.name, err)
					}
					rounds[system.name] = append(rounds[system.name], r)
				}
			}
			for _, system := range hot {
				if all := rounds[system.name]; len(all) > 0 {
					lines = append(lines, line{load.name, system.name, n, middle(all)})
				}
			}
		}
	}
	return lines, nil
}

// middle returns the median of each value.
func middle(all []result) result {
	return result{
		decisions: median(all, func(r result) float64 { return r.decisions }),
		admitted:  median(all, func(r result) float64 { return r.admitted }),
		p50:       median(all, func(r result) time.Duration { return r.p50 }),
		p99:       median(all, func(r result) time.Duration { return r.p99 }),
		commands:  median(all, func(r result) float64 { return r.commands }),
		cpu:       median(all, func(r result) float64 { return r.cpu }),
	}
}

func median[V cmp.Ordered](all []result, value func(result) V) V {
	values := make([]V, 0, len(all))
	for _, r := range all {
		values = append(values, value(r))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// table is the lines in Markdown.
func table(lines []line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| load | processes | system | decisions/s | admitted/s | p50 µs | p99 µs | commands | Redis µs |\n|---|--:|---|--:|--:|--:|--:|--:|--:|\n")
	micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s | %d | %s | %.0f | %.0f | %.2f | %.1f | %.2f | %.3f |\n", l.load, l.processes, l.system,
			l.decisions, l.admitted, micro(l.p50), micro(l.p99), l.commands, l.cpu)
	}
	return b.String()
}

// together measures one system with n processes at once.
func together(ctx context.Context, c config, s *server, name string, l limit, n int) (r result, err error) {
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return r, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	type child struct {
		in  io.WriteCloser
		out *bufio.Reader
		cmd *exec.Cmd
	}
	var children []child
	defer func() {
		for _, p := range children {
			if err != nil {
				_ = p.cmd.Process.Kill()
			}
			err = errors.Join(err, p.cmd.Wait())
		}
	}()
	for range n {
		cmd := exec.CommandContext(ctx, self, "-serve", name, "-addr", s.addr, "-limit", strconv.Itoa(l.n),
			"-duration", c.duration.String(), "-gap", (time.Second * callers * time.Duration(n) / asked).String())
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return r, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return r, err
		}
		if err := cmd.Start(); err != nil {
			return r, err
		}
		children = append(children, child{in, bufio.NewReader(out), cmd})
	}
	for _, p := range children {
		if _, err := p.out.ReadString('\n'); err != nil { // it is ready
			return r, err
		}
	}
	before, err := s.count(ctx)
	if err != nil {
		return r, err
	}
	for _, p := range children {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			return r, err
		}
	}
	var all share
	for _, p := range children {
		var own share
		if err := json.NewDecoder(p.out).Decode(&own); err != nil {
			return r, err
		}
		all.Decisions, all.Admitted, all.Took = all.Decisions+own.Decisions, all.Admitted+own.Admitted, append(all.Took, own.Took...)
	}
	after, err := s.count(ctx)
	if err != nil {
		return r, err
	}
	slices.Sort(all.Took)
	count := float64(all.Decisions)
	return result{
		decisions: count / c.duration.Seconds(),
		admitted:  float64(all.Admitted) / c.duration.Seconds(),
		p50:       time.Duration(all.Took[len(all.Took)/2]),
		p99:       time.Duration(all.Took[len(all.Took)*99/100]),
		commands:  float64(after.commands-before.commands) * 1000 / count,
		cpu:       float64((after.cpu - before.cpu).Microseconds()) / count,
	}, nil
}
