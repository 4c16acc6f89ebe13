package lease_test

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

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var troubles = flag.Int("troubles", 1, "how often the processes that share limits get each kind of trouble")

func TestMain(m *testing.M) { proctest.Main(m, proctest.Funcs{"spender": spender}) }

const (
	patience = 2 * time.Minute // bounds every wait
	key      = "key"
	part     = 200 * time.Millisecond // the sub-windows of the sliding window
	pulse    = 700 * time.Millisecond // of the demand, and the fixed window
)

// shared are what the processes limit by. The last is never leased, and admits all.
var shared = []struct {
	policy core.Policy
	limit  int64
	period time.Duration
}{
	{core.SlidingWindow(2000, 5*part).NeverOver().Resolution(5), 2000, 5 * part},
	{core.FixedWindow(1000, pulse), 1000, pulse},
	{core.TokenBucket(100_000, time.Second), 0, 0},
}

// A spent is what one process spent, at some time from start to end, in nanoseconds. It is written with one call, so that
// what a process did before it was killed is there.
type spent struct {
	Start, End, N int64
	Limiter       int8
	Leased        bool
}

// spender is a process that spends as much as it may, until it is told to stop. It is told the file of its log, whether
// its leases have an end, and the addresses of Redis, after the name of the master if they are Sentinels.
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
	if args[1] == "endless" {
		clients.Go(func() {
			for ctx.Err() == nil {
				<-time.After(time.Millisecond)
				s.Backend().Leases.Prolong()
			}
		})
	}
	for range 6 {
		clients.Go(func() {
			for ctx.Err() == nil {
				spend(ctx, log, limiters, args[1] == "endless")
			}
		})
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stop()
	clients.Wait()
	return s.Close(context.Background())
}

// spend makes one decision, about one limiter or several. If they rest, all processes rush together: in every other pulse
// they lease and do not spend it.
func spend(ctx context.Context, log *os.File, limiters []*core.Limiter, rests bool) {
	now := time.Now().UnixNano()
	if passed := time.Duration(now % int64(pulse)); rests && now/int64(pulse)%3 != 0 && passed > pulse/10 {
		<-time.After(pulse - passed)
	}
	<-time.After(rand.N(time.Millisecond))
	all := []int{rand.IntN(2)}
	if rand.IntN(5) == 0 {
		all = [][]int{{0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}[rand.IntN(4)]
	}
	n := 1 + rand.Int64N(2)
	var charges []core.Charge
	for _, i := range all {
		charges = append(charges, core.Charge{Limiter: limiters[i], Key: key, Units: n})
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
	var b bytes.Buffer
	leased := d.Backend(nil).Source().String() == "lease"
	for _, i := range all {
		_ = binary.Write(&b, binary.LittleEndian, spent{start, end, n, int8(i), leased})
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
	aligned bool // the clock of Redis is ours
	losses  []loss
}

// A loss is a time in which the store lost what it had counted, or skipped time.
type loss struct{ start, end int64 }

func newCrew(t *testing.T, kind string, aligned bool, redis ...string) *crew {
	t.Helper()
	c := &crew{t: t, dir: t.TempDir(), args: append([]string{kind}, redis...), aligned: aligned}
	for range 4 {
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
		if _, err := binary.Decode(b, binary.LittleEndian, records); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, records...)
	}
	return all
}

// works waits until the processes have spent more from leases, for longer than leases last.
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
	<-time.After(5 * part)
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

func (c *crew) over() (over int64) {
	all := c.all()
	leased := 0
	for _, x := range all {
		if x.Leased {
			leased++
		}
	}
	over = c.exceeds(all, 0)
	if c.aligned {
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
	last := int64(0)
	for first := range own {
		from := own[first].Start
		if i == 1 {
			if from -= from % period; from == last {
				continue
			}
			last = from
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

// Processes that share limits never spend more than they admit, while they are stopped and killed, Redis forgets, and its
// clock is five seconds off and is set.
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
			c := newCrew(t, "", !skewed, "", server.Addr())
			c.works()
			for range *troubles {
				for _, trouble := range []func(){
					func() { // one is stopped for longer than its leases last
						c.members[0].Pause()
						<-time.After(part * 3 / 2)
						c.members[0].Resume()
					},
					func() { // and for a shorter time
						c.members[1].Pause()
						<-time.After(part / 4)
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
	c := newCrew(t, "", true, append([]string{redistest.MasterName}, sentinel.Addrs()...)...)
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
func TestProcessesFindLeasesWithoutEnd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newCrew(t, "endless", true, "", server.Addr())
	for deadline := time.Now().Add(patience); c.over() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("leases without an end were not noticed")
		}
		<-time.After(pulse)
	}
}
