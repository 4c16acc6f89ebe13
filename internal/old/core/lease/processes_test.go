package lease

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var troubles = flag.Int("troubles", 1, "how often the processes that share limits get each kind of trouble")

// patience bounds every wait. Nothing waits longer than it must.
const patience = 2 * time.Minute

const (
	short   = 200 * time.Millisecond // the sub-windows, and the leases of the bucket
	pulse   = 700 * time.Millisecond // of the demand
	windows = 5 * short
)

// shared are what the processes limit by: never over in any window, and a bucket.
var shared = []core.Policy{
	core.SlidingWindow(core.Rate{Events: 2000, Per: windows}).Resolution(5).NeverOver(),
	core.TokenBucket(core.PerSecond(1500), 1200).Leasable(short),
}

// most returns what a shared policy admits in any span of this length.
func most(i int, span time.Duration) int64 {
	if i == 0 {
		return 2000 * int64((span+windows-1)/windows)
	}
	return 1200 + int64(1500*span/time.Second) + 1
}

// A spent is what one process spent, at some time from start to end, in nanoseconds. It is
// written to its log with one call, so that what a process did before it was killed is there.
type spent struct {
	Start, End int64
	N          int64
	Limiter    int8
	Leased     bool
}

// What a spender does beside spending.
const (
	endless  = "endless"  // its leases have no end
	settling = "settling" // it settles and reports
)

// spender is a process that spends as much as it may, until it is told to stop. It is told the
// file of its log, what it does beside, and the addresses of Redis, after the name of the master if
// they are Sentinels.
func spender(args []string) error {
	log, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	below, err := redisstore.Open(&redis.UniversalOptions{MasterName: args[2], Addrs: args[3:]}, redisstore.Config{
		Failure: redisstore.FailClosed, Timeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	defer below.Client().Close()
	s, err := New(below, Config{})
	if err != nil {
		return err
	}
	var limiters []*core.Limiter
	for i, p := range shared {
		l, err := core.New(s, fmt.Sprint("shared", i), p)
		if err != nil {
			return err
		}
		limiters = append(limiters, l)
	}
	ctx, stop := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	if args[1] == endless {
		clients.Go(func() { s.prolong(ctx) })
	}
	for range 6 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if args[1] == settling {
					settle(ctx, log, limiters)
				} else {
					spend(ctx, log, limiters, args[1] == endless)
				}
			}
		})
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stop()
	clients.Wait()
	return s.Close(context.Background())
}

// prolong keeps leases from being over.
func (s *Store) prolong(ctx context.Context) {
	for ctx.Err() == nil {
		<-time.After(time.Millisecond)
		now := s.now()
		for i := range s.shards {
			sh := &s.shards[i]
			sh.mu.Lock()
			for _, e := range sh.entries {
				e.asked = now.mono
				for j := range e.leases {
					e.leases[j].until = now.add(int64(time.Hour))
				}
			}
			sh.mu.Unlock()
		}
	}
}

// spend makes one decision. All processes rush together, and rest: in every other pulse they
// lease and do not spend it.
func spend(ctx context.Context, log *os.File, limiters []*core.Limiter, rests bool) {
	now := time.Now().UnixNano()
	if passed := time.Duration(now % int64(pulse)); rests && now/int64(pulse)%3 != 0 && passed > pulse/10 {
		<-time.After(pulse - passed)
	}
	<-time.After(time.Duration(rand.Int64N(int64(time.Millisecond))))
	n := 1 + rand.Int64N(2)
	var records []spent
	add := func(i int) { records = append(records, spent{N: n, Limiter: int8(i)}) }
	var d core.Decision
	var err error
	start := time.Now().UnixNano()
	if i := rand.IntN(5); i > 0 {
		add(i % 2)
		d, err = limiters[i%2].AllowN(ctx, key, n)
	} else {
		add(0)
		add(1)
		d, err = core.AllowAll(ctx, core.Charge{Limiter: limiters[0], Key: key, N: n}, core.Charge{Limiter: limiters[1], Key: key, N: n})
	}
	end := time.Now().UnixNano()
	if err != nil || !d.Allowed {
		return
	}
	for i := range records {
		records[i].Start, records[i].End, records[i].Leased = start, end, d.Source == core.SourceLease
	}
	note(log, records...)
}

// note writes records to the log.
func note(log *os.File, records ...spent) {
	var b bytes.Buffer
	for _, r := range records {
		_ = binary.Write(&b, binary.LittleEndian, r)
	}
	if _, err := log.Write(b.Bytes()); err != nil {
		panic(err)
	}
}

// A crew is processes that share limits.
type crew struct {
	t       *testing.T
	dir     string
	args    []string
	members []*proctest.Process
	started int
	losses  []loss
}

// A loss is a time in which the store lost what it had counted, or skipped time.
type loss struct{ start, end int64 }

func newCrew(t *testing.T, members int, kind string, redis ...string) *crew {
	t.Helper()
	c := &crew{t: t, dir: t.TempDir(), args: append([]string{kind}, redis...)}
	for range members {
		c.members = append(c.members, c.start())
	}
	return c
}

func (c *crew) start() *proctest.Process {
	c.t.Helper()
	c.started++
	log := filepath.Join(c.dir, fmt.Sprint(c.started))
	return proctest.Start(c.t, "spender", append([]string{log}, c.args...)...)
}

// during notes a loss while f runs.
func (c *crew) during(f func()) {
	start := time.Now().UnixNano()
	f()
	c.losses = append(c.losses, loss{start, time.Now().UnixNano()})
}

// all returns what was spent.
func (c *crew) all() (all []spent) {
	c.t.Helper()
	for i := range c.started {
		b, err := os.ReadFile(filepath.Join(c.dir, fmt.Sprint(i+1)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			c.t.Fatal(err)
		}
		records := make([]spent, len(b)/binary.Size(spent{}))
		if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, records); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, records...)
	}
	return all
}

// works waits until the processes have spent more, some of it from leases, for longer than
// leases last.
func (c *crew) works() {
	c.t.Helper()
	leased := func() (n int) {
		for _, x := range c.all() {
			if x.Leased {
				n++
			}
		}
		return n
	}
	before, deadline := leased(), time.Now().Add(patience)
	<-time.After(windows)
	for leased() < before+200 {
		if time.Now().After(deadline) {
			c.t.Fatalf("only %d decisions from leases", leased()-before)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// stop stops the processes, and returns by how much a limit was exceeded at worst.
func (c *crew) stop() (over int64) {
	c.t.Helper()
	for _, p := range c.members {
		p.Send("stop")
	}
	for _, p := range c.members {
		p.Wait()
	}
	return c.over()
}

// over returns by how much a limit was exceeded at worst. What was spent at a time that is not
// known exactly counts only in spans that hold all of that time.
func (c *crew) over() (over int64) {
	all := c.all()
	leased := 0
	for _, x := range all {
		if x.Leased {
			leased++
		}
	}
	for i := range shared {
		own := slices.DeleteFunc(slices.Clone(all), func(x spent) bool { return int(x.Limiter) != i })
		spans := []time.Duration{windows}
		if i == 1 {
			spans = []time.Duration{time.Millisecond, 20 * time.Millisecond, short, 2 * short, time.Second, 3 * time.Second}
		}
		for _, span := range spans {
			over = max(over, c.exceeds(own, i, span))
		}
	}
	c.t.Logf("%d admitted, %d from leases; at worst %d too many", len(all), leased, over)
	return over
}

func (c *crew) exceeds(all []spent, i int, span time.Duration) (over int64) {
	ends := slices.SortedFunc(slices.Values(all), func(a, b spent) int { return cmp.Compare(a.End, b.End) })
	starts := slices.SortedFunc(slices.Values(all), func(a, b spent) int { return cmp.Compare(a.Start, b.Start) })
	wide := slices.DeleteFunc(slices.Clone(all), func(x spent) bool { return x.End-x.Start < int64(span) })
	ended, began, next := int64(0), int64(0), 0 // units that ended before the span does, and began before it
	for j := range starts {
		from := starts[j].Start
		to := from + int64(span)
		for ; next < len(ends) && ends[next].End < to; next++ {
			ended += ends[next].N
		}
		inside := ended - began
		for _, x := range wide { // those that began before it, and did not end in it
			if x.Start < from && x.End >= to {
				inside += x.N
			}
		}
		limit := most(i, span)
		for _, l := range c.losses {
			if from < l.end+int64(short) && to > l.start {
				limit += most(i, span)
			}
		}
		over = max(over, inside-limit)
		began += starts[j].N
	}
	return over
}

// Processes that share limits never spend more than they admit, while they are stopped and
// killed, Redis forgets, and its clock is five seconds off and is set.
func TestProcesses(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t testing.TB, lines ...string) *redistest.Server{
		"the clocks agree": redistest.Start, "the clocks differ": redistest.StartWithClock,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			skewed := name == "the clocks differ"
			if skewed {
				server.SetClock(5 * time.Second)
			}
			c := newCrew(t, 3, "", "", server.Addr())
			c.works()
			for range *troubles {
				for _, trouble := range []func(){
					func() { // one is stopped for longer than its leases last
						c.members[0].Pause()
						<-time.After(short * 3 / 2)
						c.members[0].Resume()
					},
					func() { // and for a shorter time
						c.members[1].Pause()
						<-time.After(short / 4)
						c.members[1].Resume()
					},
					func() { // one is killed, and another starts
						c.members[2].Kill()
						c.members[2] = c.start()
					},
					func() { c.during(server.Flush) },
					func() { // Redis is killed
						if !skewed {
							c.during(func() {
								server.Kill()
								server.Restart()
							})
						}
					},
					func() { // its clock is set
						if skewed {
							c.during(func() { server.SetClock(-5 * time.Second) })
							c.works()
							c.during(func() { server.SetClock(5 * time.Second) })
						}
					},
				} {
					trouble()
					c.works()
				}
			}
			if over := c.stop(); over > 0 {
				t.Errorf("%d too many were admitted", over)
			}
		})
	}
}

// The same holds when a replica takes over.
func TestProcessesFailover(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	c := newCrew(t, 3, "", append([]string{redistest.MasterName}, sentinel.Addrs()...)...)
	for range *troubles {
		c.works()
		c.during(func() {
			old := sentinel.KillMaster()
			sentinel.WaitFailover(old)
			old.Restart()
			sentinel.WaitReady()
		})
		c.works()
	}
	if over := c.stop(); over > 0 {
		t.Errorf("%d too many were admitted", over)
	}
}

// The test finds it if leases have no end.
func TestProcessesFindsLeasesWithoutEnd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newCrew(t, 3, endless, "", server.Addr())
	for deadline := time.Now().Add(patience); c.over() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("leases without an end were not noticed")
		}
		<-time.After(pulse)
	}
}
