package lease_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
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

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var troubles = flag.Int("troubles", 1, "how often the processes that share limits get each kind of trouble")

func TestMain(m *testing.M) { proctest.Main(m, proctest.Funcs{"spender": spender, "user": user}) }

const (
	patience = 2 * time.Minute        // bounds every wait
	part     = 200 * time.Millisecond // the sub-windows of the sliding window
	window   = 700 * time.Millisecond // the fixed one
)

// shared are what the processes limit by. The last is never leased, and admits all.
var shared = []struct {
	policy core.Policy
	limit  int64
	period time.Duration
}{
	{core.SlidingWindow(2000, 5*part).NeverOver().Resolution(5), 2000, 5 * part},
	{core.FixedWindow(1000, window), 1000, window},
	{core.TokenBucket(100_000, time.Second), 0, 0},
}

// A spent is what one process spent, at some time from start to end, in nanoseconds. It is appended to one log with one
// call, so that what a process did before it was killed is there.
type spent struct {
	Start, End, N int64
	Limiter       int8
	Leased        bool
}

// spender is a process that spends as much as it may, until it is told to stop. It is told the file of its log, whether
// its clocks are late, and the addresses of Redis, after the name of the master if they are Sentinels.
func spender(args []string) error {
	log, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	client := redis.NewUniversalClient(&redis.UniversalOptions{MasterName: args[2], Addrs: args[3:], ContextTimeoutEnabled: true, MaxRetries: -1})
	defer client.Close()
	s, err := redisstore.New(client, redisstore.Config{Failure: redisstore.FailClosed, Timeout: 5 * time.Second, Lease: time.Second})
	if err != nil {
		return err
	}
	var limiters []*core.Limiter
	for i, p := range shared {
		limiters = append(limiters, core.NewLimiter(s, fmt.Sprint("shared", i), p.policy))
	}
	ctx, stop := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	if args[1] == "late" {
		s.Backend().Leases.SlowDown()
	}
	for range 6 {
		clients.Go(func() {
			for ctx.Err() == nil {
				spend(ctx, log, limiters)
			}
		})
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stop()
	clients.Wait()
	return s.Close(context.Background())
}

// spend makes one decision, about one limiter or several. All processes rush together, and in two of three windows they rest
// soon: then they have leased what they do not spend.
func spend(ctx context.Context, log *os.File, limiters []*core.Limiter) {
	now := time.Now().UnixNano()
	if passed := time.Duration(now % int64(window)); now/int64(window)%3 != 0 && passed > window/10 {
		<-time.After(window - passed)
	}
	<-time.After(rand.N(time.Millisecond))
	all := []int{rand.IntN(2)}
	if rand.IntN(5) == 0 {
		all = [][]int{{0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}[rand.IntN(4)]
	}
	n := 1 + rand.Int64N(2)
	var charges []core.Charge
	for _, i := range all {
		charges = append(charges, limiters[i].Charge("key", n))
	}
	start := time.Now().UnixNano()
	d, err := core.AllowAll(ctx, charges...)
	end := time.Now().UnixNano()
	if err != nil || !d.Allowed {
		return
	}
	if rand.IntN(10) == 0 {
		_ = d.Refund(ctx)
		return
	}
	var records []spent
	for _, i := range all {
		records = append(records, spent{start, end, n, int8(i), d.Backend(nil).Source().String() == "lease"})
	}
	if err := binary.Write(log, binary.LittleEndian, records); err != nil {
		panic(err)
	}
}

// A crew is processes that share limits.
type crew struct {
	t       *testing.T
	args    []string // the first is the log
	members []*proctest.Process
	losses  []loss
}

// A loss is a time in which the store lost what it had counted, or skipped time.
type loss struct{ start, end int64 }

func newCrew(t *testing.T, kind string, redis ...string) *crew {
	t.Helper()
	c := &crew{t: t, args: append([]string{filepath.Join(t.TempDir(), "log"), kind}, redis...)}
	for range 4 {
		c.members = append(c.members, c.start())
	}
	return c
}

func (c *crew) start() *proctest.Process { return proctest.Start(c.t, "spender", c.args...) }

// during notes a loss while f runs.
func (c *crew) during(f func()) func() {
	return func() {
		start := time.Now().UnixNano()
		f()
		c.losses = append(c.losses, loss{start, time.Now().UnixNano()})
	}
}

// all returns what was spent, and how often by leases.
func (c *crew) all() (all []spent, leased int) {
	b, _ := os.ReadFile(c.args[0]) // the processes make it
	all = make([]spent, len(b)/binary.Size(spent{}))
	if _, err := binary.Decode(b, binary.LittleEndian, all); err != nil {
		c.t.Fatal(err)
	}
	for _, x := range all {
		if x.Leased {
			leased++
		}
	}
	return all, leased
}

// works waits until the processes have spent more from leases, for longer than leases last.
func (c *crew) works() {
	c.t.Helper()
	_, before := c.all()
	<-time.After(5 * part)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		if _, leased := c.all(); leased >= before+200 {
			return
		}
	}
	c.t.Fatal("too few decisions from leases")
}

// survive checks that the processes work on after each trouble, and have not spent too much when they stop. The window of
// the clock of Redis is known only if that is ours.
func (c *crew) survive(aligned bool, all ...func()) {
	c.t.Helper()
	c.works()
	for range *troubles {
		for _, trouble := range all {
			trouble()
			c.works()
		}
	}
	for _, p := range c.members {
		p.Send("stop")
	}
	for _, p := range c.members {
		p.Wait()
	}
	if over := c.over(aligned); over > 0 {
		c.t.Errorf("%d too many were admitted", over)
	}
}

// over returns by how much a limit was exceeded at worst.
func (c *crew) over(aligned bool) (over int64) {
	all, leased := c.all()
	if over = c.exceeds(all, 0); aligned {
		over = max(over, c.exceeds(all, 1))
	}
	c.t.Logf("%d charges admitted, %d in decisions by leases; at worst %d too many", len(all), leased, over)
	return over
}

// exceeds returns by how much a limit was exceeded at worst, in any span of a period, or of a fixed window in each
// window. What was spent at a time that is not known exactly counts only in spans that hold all of that time.
func (c *crew) exceeds(all []spent, i int) (over int64) {
	limit, period := shared[i].limit, int64(shared[i].period)
	own := slices.DeleteFunc(slices.Clone(all), func(x spent) bool { return int(x.Limiter) != i || x.End-x.Start >= period })
	slices.SortFunc(own, func(a, b spent) int { return cmp.Compare(a.Start, b.Start) })
	for first := range own {
		from := own[first].Start
		if i == 1 {
			from -= from % period
		}
		sum, most := int64(0), limit
		for _, x := range own[first:] {
			if x.Start >= from+period {
				break
			}
			if x.End < from+period {
				sum += x.N
			}
		}
		for _, l := range c.losses {
			if from < l.end+int64(part) && from+period > l.start {
				most += limit
			}
		}
		over = max(over, sum-most)
	}
	return over
}

// Processes that share limits never spend more than they admit, while they are stopped and killed, and Redis forgets and is
// killed.
func TestProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newCrew(t, "", "", server.Addr())
	c.survive(true, c.pauses(0, part*3/2), c.pauses(1, part/4), c.killed, c.during(server.Flush), c.during(func() {
		server.Kill()
		server.Restart()
	}))
}

// pauses stops a process: for longer than its leases last, or not.
func (c *crew) pauses(member int, span time.Duration) func() {
	return func() {
		c.members[member].Pause()
		<-time.After(span)
		c.members[member].Resume()
	}
}

// killed kills a process, and starts another.
func (c *crew) killed() {
	c.members[2].Kill()
	c.members[2] = c.start()
}

// The same holds if the clock of Redis is five seconds off, and is set.
func TestProcessesClock(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	set := func(ahead time.Duration) func() {
		return func() { server.SetClock(ahead) }
	}
	set(5 * time.Second)()
	c := newCrew(t, "", "", server.Addr())
	c.survive(false, c.pauses(0, part*3/2), c.killed, c.during(set(-5*time.Second)), c.during(set(5*time.Second)))
}

// And when a replica takes over.
func TestProcessesFailover(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	c := newCrew(t, "", append([]string{redistest.MasterName}, sentinel.Addrs()...)...)
	c.survive(true, c.during(func() {
		old := sentinel.KillMaster()
		sentinel.WaitFailover(old)
		old.Restart()
		sentinel.WaitReady()
	}))
}

// The test finds it if leases outlive their ends.
func TestProcessesFindLateClocks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newCrew(t, "late", "", server.Addr())
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(window) {
		if c.over(true) > 0 {
			return
		}
	}
	t.Error("late clocks were not noticed")
}
