// Heavy measures what the largest charges of some clients do to the decisions of another, over one
// Redis: SECURITY.md has the result.
//
//	cd test && go run ./benchmarks/heavy
//
// 32 clients of so many servers charge fresh keys 16,384 units, each one after the other. Another
// client of one of these servers charges a key one unit, 200 times a second. The table says how
// many of its decisions Redis did not make. It has rows with and without other work for the
// processors, and for a window in the place of the log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/redisstore"
)

const (
	clients = 32
	heavy   = 1 << 14 // units, the most that a log may store
)

func main() {
	took := flag.Duration("for", 10*time.Second, "measure each line for so `long`")
	binary := flag.String("redis-server", "redis-server", "the `program`")
	flag.Parse()
	if err := run(*binary, *took); err != nil {
		log.Fatal(err)
	}
}

func run(binary string, took time.Duration) error {
	addr, stop, err := startRedis(binary)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Printf("%d processors, %v each\n\n| 32 clients charge | servers | other work | their charges/s | decisions of another | not by Redis | p50 | p99.9 | longest |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n", runtime.NumCPU(), took)
	log, window := core.SlidingLog(core.PerMinute(heavy)), core.SlidingWindow(core.PerMinute(heavy))
	for _, burners := range []int{0, 2 * runtime.NumCPU()} {
		for _, c := range []load{
			{"nothing", log, 0, 1},
			{"16,384 of a SlidingLog", log, clients, 1},
			{"16,384 of a SlidingLog", log, clients, 4},
			{"16,384 of a SlidingLog", log, clients, clients},
			{"16,384 of a SlidingWindow", window, clients, clients},
		} {
			line, err := measure(addr, c, burners, took)
			if err != nil {
				return err
			}
			fmt.Printf("| %s | %d | %d programs | %s\n", c.name, c.servers, burners, line)
		}
	}
	return nil
}

// A load is what clients charge, through so many servers.
type load struct {
	name             string
	policy           core.Policy
	clients, servers int
}

// measure returns a line of the table.
func measure(addr string, l load, burners int, took time.Duration) (string, error) {
	stop, err := burn(burners)
	if err != nil {
		return "", err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), took)
	defer cancel()

	var other *core.Limiter
	limiters := make([]*core.Limiter, l.servers)
	for i := range limiters {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		defer func() { _ = client.Close() }()
		if err := client.FlushAll(ctx).Err(); err != nil {
			return "", err
		}
		store, err := redisstore.New(client, redisstore.Config{})
		if err != nil {
			return "", err
		}
		limiters[i] = core.Must(core.New(store, "heavy", l.policy))
		other = core.Must(core.New(store, "other", core.TokenBucket(core.PerSecond(1_000_000), 1_000_000)))
	}
	var group sync.WaitGroup
	charges := make([]int, l.clients)
	for i := range charges {
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				d, err := limiters[i%l.servers].AllowN(ctx, fmt.Sprintf("%d, %d", i, n), heavy)
				if err == nil && d.Source == core.SourceStore {
					charges[i]++
				}
			}
		})
	}
	times, away, err := ask(ctx, other)
	if err != nil {
		return "", err
	}
	group.Wait()
	all := 0
	for _, n := range charges {
		all += n
	}
	slices.Sort(times)
	quantile := func(q float64) time.Duration {
		return times[int(q*float64(len(times)-1))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("%.0f | %d | %d (%.3f %%) | %v | %v | %v |", float64(all)/took.Seconds(), len(times),
		away, 100*float64(away)/float64(len(times)), quantile(0.5), quantile(0.999), quantile(1)), nil
}

// ask returns how long decisions took, and how many Redis did not make.
func ask(ctx context.Context, l *core.Limiter) (times []time.Duration, away int, err error) {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return times, away, nil
		case <-tick.C:
		}
		begin := time.Now()
		d, err := l.Allow(context.WithoutCancel(ctx), "key")
		if err != nil {
			return nil, 0, err
		}
		times = append(times, time.Since(begin))
		if d.Source != core.SourceStore {
			away++
		}
	}
}

// burn starts programs that keep a processor each.
func burn(n int) (stop func(), err error) {
	var all []*exec.Cmd
	stop = func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait() // says that it was killed
		}
	}
	for range n {
		c := exec.Command("sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			stop()
			return nil, err
		}
		all = append(all, c)
	}
	return stop, nil
}

// startRedis starts a server that keeps nothing.
func startRedis(binary string) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	_ = l.Close()
	c := exec.Command(binary, "--port", addr[strings.LastIndexByte(addr, ':')+1:], "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = c.Process.Kill(); _ = c.Wait() }
	for range 200 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return addr, stop, conn.Close()
		}
		<-time.After(20 * time.Millisecond) // there is no event to wait for
	}
	stop()
	return "", nil, errors.New("redis-server on port " + strconv.Quote(addr) + " does not answer")
}
