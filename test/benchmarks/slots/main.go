// Command slots measures what it costs to hold slots in Redis: one process holds many,
// which is what a server of WebSockets does. It starts a redis-server of its own. Run it
// in the folder above:
//
//	go run ./benchmarks/slots                       # 100,000 slots of 50,000 users
//	go run ./benchmarks/slots -slots 10000 -users 5000 -idle 10s
//	go run ./benchmarks/slots -turns 5s             # what each of several servers gets whose callers wait
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

type config struct {
	slots, users, askers int
	idle                 time.Duration
}

func main() {
	var c config
	flag.IntVar(&c.slots, "slots", 100_000, "how `many` are held")
	flag.IntVar(&c.users, "users", 50_000, "by how `many` keys")
	flag.IntVar(&c.askers, "askers", 32, "how many `goroutines` acquire")
	flag.DurationVar(&c.idle, "idle", 30*time.Second, "how long nothing is done but to stay alive")
	span := flag.Duration("turns", 0, "measure turns of servers whose callers wait, each so `long`, instead")
	flag.Parse()
	if flag.NArg() > 0 || c.slots < 1 || c.users < 1 || c.askers < 1 || c.idle <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	run := func() error { return study(ctx, c) }
	if *span > 0 {
		run = func() error { return turns(ctx, *span) }
	}
	err := run()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\nslots:", err)
		os.Exit(1)
	}
}

// study measures, and prints a table.
func study(ctx context.Context, c config) (err error) {
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	store, err := redisstore.Open("redis://"+server.addr, redisstore.Config{Failure: redisstore.FailClosed})
	if err != nil {
		return err
	}
	defer func() { _ = store.Client().Close() }()
	b := bench{config: c, server: server, slots: core.NewSlots(store, "sockets", int64(c.slots))}
	for _, step := range []func(context.Context) error{b.pairs, b.acquire, b.alone, b.stayAlive, b.flush, b.release, b.close} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	progressf("")
	for _, line := range b.lines {
		fmt.Println(line)
	}
	return nil
}

type bench struct {
	config
	server *server
	slots  *core.Slots
	held   []*core.Slot
	lines  []string
}

func (b *bench) report(what, format string, args ...any) {
	b.lines = append(b.lines, fmt.Sprintf("%-58s %s", what, fmt.Sprintf(format, args...)))
}

// progressf replaces the line that the terminal shows.
func progressf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// pairs acquires and releases for some seconds.
func (b *bench) pairs(ctx context.Context) error {
	for _, c := range []struct{ goroutines, keys int }{{1, 10_000}, {64, 1}, {64, 10_000}, {256, 100_000}} {
		progressf("pairs: %v", c)
		before, err := b.server.count(ctx)
		if err != nil {
			return err
		}
		const span = 4 * time.Second
		var n atomic.Int64
		var all sync.WaitGroup
		until := time.Now().Add(span)
		for g := range c.goroutines {
			all.Go(func() {
				for i := g; time.Now().Before(until); i += 7919 {
					if slot, err := b.slots.Acquire(ctx, "pair-"+strconv.Itoa(i%c.keys)); err == nil {
						slot.Release()
						n.Add(1)
					}
				}
			})
		}
		all.Wait()
		after, err := b.server.count(ctx)
		if err != nil {
			return err
		}
		b.report(fmt.Sprintf("pairs a second; calls, server CPU of one: %d of %d keys", c.goroutines, c.keys), "%.0f; %.2f, %v",
			float64(n.Load())/span.Seconds(), float64(after.calls-before.calls)/float64(n.Load()), round((after.cpu-before.cpu)/time.Duration(n.Load())))
	}
	return nil
}

// acquire acquires all slots.
func (b *bench) acquire(ctx context.Context) error {
	b.held = make([]*core.Slot, b.config.slots)
	keys := make([]string, b.users)
	for i := range keys {
		keys[i] = "user-" + strconv.Itoa(i)
	}
	if _, err := b.slots.Acquire(ctx, "first"); err != nil {
		return err
	}
	before := heap()
	cpu, err := b.server.count(ctx)
	if err != nil {
		return err
	}
	times := make([]time.Duration, len(b.held))
	start := time.Now()
	var all sync.WaitGroup
	faults := make([]error, b.askers)
	for a := range b.askers {
		all.Go(func() {
			for i := a; i < len(b.held); i += b.askers {
				if a == 0 && i%1024 == 0 {
					progressf("acquiring: %d of %d", i, len(b.held))
				}
				asked := time.Now()
				slot, err := b.slots.Acquire(ctx, keys[i%b.users])
				if err != nil {
					faults[a] = err
					return
				}
				b.held[i], times[i] = slot, time.Since(asked)
			}
		})
	}
	all.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	took := time.Since(start)
	after, err := b.server.count(ctx)
	if err != nil {
		return err
	}
	slices.Sort(times)
	n := len(times)
	b.report(fmt.Sprintf("acquire, %d goroutines: p50, p99", b.askers), "%v, %v", round(times[n/2]), round(times[n*99/100]))
	b.report("acquires a second", "%.0f", float64(n)/took.Seconds())
	b.report("server CPU of an acquire", "%v", round((after.cpu-cpu.cpu)/time.Duration(n)))
	clear(times)
	b.report("memory of the process, a slot", "%d bytes", (heap()-before)/uint64(n))
	b.report("memory of the server, a key", "%d bytes", (after.memory-cpu.memory)/int64(b.users))
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Nanosecond) }

// alone acquires and releases one after the other.
func (b *bench) alone(ctx context.Context) error {
	times := make([]time.Duration, 5000)
	for i := range times {
		if i%100 == 0 {
			progressf("one goroutine: %d of %d", i, len(times))
		}
		start := time.Now()
		slot, err := b.slots.Acquire(ctx, "alone-"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		times[i] = time.Since(start)
		slot.Release()
	}
	slices.Sort(times)
	n := len(times)
	b.report("acquire, 1 goroutine: p50, p99", "%v, %v", round(times[n/2]), round(times[n*99/100]))
	return nil
}

// stayAlive does nothing.
func (b *bench) stayAlive(ctx context.Context) error {
	// What has changed is stated twice more.
	if err := b.wait(ctx, "settling", 20*time.Second, nil); err != nil {
		return err
	}
	before, err := b.server.count(ctx)
	if err != nil {
		return err
	}
	if err := b.wait(ctx, "idle", b.idle, nil); err != nil {
		return err
	}
	after, err := b.server.count(ctx)
	if err != nil {
		return err
	}
	seconds := b.idle.Seconds()
	b.report("idle: calls a second (beats, and the sweep)", "%.1f", float64(after.calls-before.calls)/seconds)
	b.report("idle: server CPU a second", "%v", round(time.Duration(float64(after.cpu-before.cpu)/seconds)))
	b.report("idle: beats a second", "%.2f", float64(after.beats-before.beats)/seconds)
	return nil
}

// wait waits for so long, or until done.
func (b *bench) wait(ctx context.Context, what string, most time.Duration, done func() bool) error {
	start := time.Now()
	for i := 0; time.Since(start) < most && (done == nil || !done()); i++ {
		if i%20 == 0 {
			progressf("%s: %v of %v", what, time.Since(start).Round(time.Second), most)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// flush empties the server, and waits until it knows everything again.
func (b *bench) flush(ctx context.Context) error {
	keys := func() int64 { return b.server.admin.DBSize(ctx).Val() }
	want := keys()
	if err := b.server.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	var found time.Time
	start := time.Now()
	err := b.wait(ctx, "telling again", time.Minute, func() bool {
		n := keys()
		if n > 0 && found.IsZero() {
			found = time.Now()
		}
		return n >= want
	})
	if keys() < want {
		return errors.New("the server was not told everything again")
	}
	b.report("emptied: found after, told again in", "%v, %v", found.Sub(start).Round(time.Millisecond), time.Since(found).Round(time.Millisecond))
	return err
}

// release releases all slots.
func (b *bench) release(ctx context.Context) error {
	start := time.Now()
	for _, slot := range b.held {
		slot.Release()
	}
	b.report("release, until it returns", "%v", round(time.Since(start)/time.Duration(len(b.held))))
	left := func() int64 { return b.server.admin.DBSize(ctx).Val() }
	err := b.wait(ctx, "releasing", time.Minute, func() bool { return left() <= 3 })
	b.report(fmt.Sprintf("%d releases told in", len(b.held)), "%v", time.Since(start).Round(time.Millisecond))
	return err
}

func (b *bench) close(ctx context.Context) error {
	start := time.Now()
	err := b.slots.Close(ctx)
	b.report("close", "%v", round(time.Since(start)))
	return err
}

// A server is a redis-server for this program alone.
type server struct {
	addr  string
	admin *redis.Client
	stop  func() error
}

func startServer(ctx context.Context) (*server, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not installed: apt-get install redis-server, or brew install redis")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := l.Close(); err != nil { // nobody is given the port again so soon
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{addr: addr, admin: redis.NewClient(&redis.Options{Addr: addr})}
	s.stop = func() error {
		_ = s.admin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		return nil
	}
	for range 200 {
		if err = s.admin.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		<-time.After(25 * time.Millisecond)
	}
	return nil, errors.Join(fmt.Errorf("redis-server does not answer: %w", err), s.stop())
}

// A count has the server's memory, and what it did since its start.
type count struct {
	cpu    time.Duration
	calls  int64 // of scripts
	beats  int64
	memory int64
}

func (s *server) count(ctx context.Context) (c count, err error) {
	info, err := s.admin.InfoMap(ctx, "cpu", "commandstats", "memory").Result()
	if err != nil {
		return c, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		d, err := time.ParseDuration(info["CPU"][name] + "s")
		if err != nil {
			return c, err
		}
		c.cpu += d
	}
	calls := func(name string) int64 {
		text, _, _ := strings.Cut(strings.TrimPrefix(info["Commandstats"]["cmdstat_"+name], "calls="), ",")
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	c.calls, c.beats = calls("evalsha")+calls("eval"), calls("time")
	c.memory, err = strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	return c, err
}
