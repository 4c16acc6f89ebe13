package lease_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var stops = flag.Int("stops", 21, "how often processes that charge and give back are stopped")

const (
	stopTimeout = 60 * time.Millisecond
	century     = 400 * 24 * time.Hour // so that nothing expires
)

// used are the limits of the processes that are stopped. All units of the first are charges; of the others, some are
// reported, or settled to more than was charged.
var used = []struct {
	policy core.Policy
	limit  int64
	within bool // the limit: nothing is reported
}{
	{core.FixedWindow(40, century), 40, true},
	{core.TokenBucket(40, century), 40, true},
	{core.SlidingWindow(40, century), 40, true},
	{core.SlidingLog(40, 24*time.Hour), 40, true},
	{core.FixedWindow(1_000_000, century), 1_000_000, false},
	{core.SlidingWindow(1_000_000, century), 1_000_000, false},
	{core.TokenBucket(1_000_000, century), 1_000_000, false},
}

// A meter counts what is in use of a limit and key: it is raised after units were charged, and lowered before they are given
// back. So the store must have counted as many at any time.
type meter struct{ units, most atomic.Int64 }

func (m *meter) add(n int64) {
	now := m.units.Add(n)
	for old := m.most.Load(); now > old && !m.most.CompareAndSwap(old, now); old = m.most.Load() {
	}
}

// A pace is a clock that stands still while the process does.
type pace struct{ elapsed atomic.Int64 }

func (p *pace) run(ctx context.Context) {
	const tick = time.Millisecond
	for last := time.Now(); ctx.Err() == nil; {
		<-time.After(tick)
		now := time.Now()
		p.elapsed.Add(int64(min(now.Sub(last), 4*tick)))
		last = now
	}
}

// user is a process that uses limits for each key that it is told, for a moment, and prints how much of each is in use
// then, how much was at most, and how long a call took at most, and how many were made without Redis.
func user(args []string) error {
	failure, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var limiters []*core.Limiter
	for _, lease := range []time.Duration{0, time.Second} {
		client := redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1})
		defer client.Close()
		s, err := redisstore.New(client, redisstore.Config{Failure: redisstore.Failure(failure), Timeout: stopTimeout, Lease: lease})
		if err != nil {
			return err
		}
		for i, p := range used {
			limiters = append(limiters, core.NewLimiter(s, fmt.Sprint("used", i), p.policy))
		}
	}
	var clock pace
	go clock.run(context.Background())
	lines := bufio.NewScanner(os.Stdin)
	for fmt.Println("ready"); lines.Scan(); {
		u := &usage{limiters: limiters, meters: make([]meter, len(used)), clock: &clock}
		u.during(lines.Text(), 200*time.Millisecond)
		var line strings.Builder
		for i := range u.meters {
			fmt.Fprint(&line, u.meters[i].units.Load(), " ", u.meters[i].most.Load(), " ")
		}
		fmt.Println(line.String()+fmt.Sprint(u.longest.Load()), u.degraded.Load())
	}
	return nil
}

// A usage is what is used of the limits for one key.
type usage struct {
	limiters          []*core.Limiter // without leases, then with
	meters            []meter
	clock             *pace
	longest, degraded atomic.Int64
}

func (u *usage) during(key string, span time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), span)
	defer cancel()
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() {
			for ctx.Err() == nil {
				i := rand.IntN(len(u.limiters))
				u.use(u.limiters[i], i%len(used), key)
				<-time.After(rand.N(2 * time.Millisecond))
			}
		})
	}
	all.Wait()
}

// use charges units, works for a moment, and gives some or all of them back.
func (u *usage) use(l *core.Limiter, i int, key string) {
	m := &u.meters[i]
	ctx := context.Background()
	if rand.IntN(3) == 0 { // as a server does, whose clients may leave
		deadline, cancel := context.WithTimeout(ctx, stopTimeout*9/10+rand.N(stopTimeout/5))
		defer cancel()
		ctx = deadline
	}
	n := 1 + rand.Int64N(4)
	start := u.clock.elapsed.Load()
	d, err := l.AllowN(ctx, key, n)
	u.took(start)
	switch {
	case err != nil || !d.Allowed:
		return
	case d.Degraded: // it is counted here
		u.degraded.Add(1)
		return
	}
	m.add(n)
	<-time.After(rand.N(3 * time.Millisecond))
	start = u.clock.elapsed.Load()
	switch left := rand.Int64N(n + 1); {
	case rand.IntN(20) == 0: // stays
		return
	case !used[i].within && rand.IntN(3) == 0:
		if err := d.Settle(ctx, n+left); err == nil {
			m.add(left)
		}
	case !used[i].within && rand.IntN(3) == 0:
		if r, err := l.Report(ctx, key, n); err == nil && !r.Degraded {
			m.add(n)
		}
	case left == 0:
		m.add(-n)
		_ = d.Refund(ctx)
	default:
		m.add(left - n)
		_ = d.Settle(ctx, left)
	}
	u.took(start)
}

func (u *usage) took(start int64) {
	took := u.clock.elapsed.Load() - start
	for old := u.longest.Load(); took > old && !u.longest.CompareAndSwap(old, took); old = u.longest.Load() {
	}
}

// Processes that are stopped at any instant of their calls, while what they send or are answered may be held up, never use
// more than Redis has counted, nor more than a limit, whatever the failure policy. No call outlasts its Timeout in
// the time that its process has.
func TestStops(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct, err := redisstore.Open("redis://"+server.Addr()+"/0", redisstore.Config{Failure: redisstore.FailClosed, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close(context.Background())
	var users []*proctest.Process
	var proxies []*redistest.Proxy
	for failure := range 3 {
		proxies = append(proxies, redistest.NewProxy(t, server.Addr()))
		users = append(users, proctest.Start(t, "user", proxies[failure].Addr(), strconv.Itoa(failure)))
		users[failure].Line() // ready
	}
	longest, degraded := time.Duration(0), int64(0)
	for round := range (*stops + 2) / 3 {
		for i, u := range users {
			u.Send(fmt.Sprint(round, "-", i))
		}
		for i, u := range users {
			<-time.After(rand.N(30 * time.Millisecond))
			if rand.IntN(2) == 0 {
				proxies[i].Hold()
				<-time.After(rand.N(time.Millisecond))
			}
			u.Pause()
			proxies[i].Heal()
		}
		<-time.After(rand.N(2 * stopTimeout))
		for _, u := range users {
			u.Resume()
		}
		for i, u := range users {
			numbers := strings.Fields(u.Line())
			number := func(k int) int64 {
				n, err := strconv.ParseInt(numbers[k], 10, 64)
				if err != nil {
					t.Fatal(numbers, err)
				}
				return n
			}
			key := fmt.Sprint(round, "-", i)
			for k, p := range used {
				d, err := core.NewLimiter(direct, fmt.Sprint("used", k), p.policy).Peek(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				units, most, counted := number(2*k), number(2*k+1), p.limit-d.Remaining
				if units > counted || p.within && most > p.limit {
					t.Errorf("key %s of %v: %d are in use, and were %d, but %d are counted", key, p.policy, units, most, counted)
				}
			}
			longest = max(longest, time.Duration(number(2*len(used))))
			degraded += number(2*len(used) + 1)
		}
	}
	t.Logf("the longest call took %v, %d decisions were made without Redis", longest, degraded)
	if longest > 4*stopTimeout { // a busy machine takes its time, too
		t.Errorf("a call took %v", longest)
	}
}
