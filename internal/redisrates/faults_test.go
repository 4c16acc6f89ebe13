package redisrates

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// A load asks for units again and again, from many goroutines.
type load struct {
	bySource [8]atomic.Int64 // admitted
	asked    atomic.Int64
	failed   atomic.Int64
	longest  atomic.Int64

	end context.CancelFunc
	all sync.WaitGroup
}

func start(t *testing.T, s *Decider, ps []step.Policy, askers int, key func(asker int) string) *load {
	ctx, end := context.WithCancel(context.Background())
	n := &load{end: end}
	for i := range askers {
		n.all.Go(func() {
			for ctx.Err() == nil {
				cells := cells(ps, key(i), 1)
				start := time.Now()
				allowed, err := s.Ask(context.Background(), step.Allow, cells)
				took := int64(time.Since(start))
				for old := n.longest.Load(); took > old && !n.longest.CompareAndSwap(old, took); old = n.longest.Load() {
				}
				n.asked.Add(1)
				switch {
				case errors.Is(err, store.ErrUnavailable):
					n.failed.Add(1)
				case err != nil:
					t.Error(err)
				case allowed:
					n.bySource[cells[0].Source].Add(1)
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	t.Cleanup(n.stop)
	return n
}

func (n *load) stop() {
	n.end()
	n.all.Wait()
}

func (n *load) admitted() int64 { return n.bySource[step.SourceStore].Load() }

// eventually waits until a condition holds, and returns how long that took.
func eventually(t testing.TB, what string, holds func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("waited in vain: %s", what)
		}
		<-time.After(pause)
	}
	return time.Since(start)
}

// A fault is one way for Redis to be away, and back.
type fault struct {
	name       string
	begin, end func(*redistest.Server, *redistest.Proxy)
}

var outages = []fault{
	{"killed", func(s *redistest.Server, _ *redistest.Proxy) { s.Kill() }, func(s *redistest.Server, _ *redistest.Proxy) { s.Restart() }},
	{"stopped", func(s *redistest.Server, _ *redistest.Proxy) { s.Pause() }, func(s *redistest.Server, _ *redistest.Proxy) { s.Resume() }},
	{"cut off", func(_ *redistest.Server, p *redistest.Proxy) { p.Cut() }, func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"black hole", func(_ *redistest.Server, p *redistest.Proxy) { p.Blackhole() }, func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"deaf", func(_ *redistest.Server, p *redistest.Proxy) { p.Deafen() }, func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"slow", func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(time.Second) }, func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"read-only", func(s *redistest.Server, _ *redistest.Proxy) { s.Do("REPLICAOF", "127.0.0.1", "1") }, func(s *redistest.Server, _ *redistest.Proxy) { s.Do("REPLICAOF", "NO", "ONE") }},
	{"full", func(s *redistest.Server, _ *redistest.Proxy) { s.Do("CONFIG", "SET", "maxmemory", "1") }, func(s *redistest.Server, _ *redistest.Proxy) { s.Do("CONFIG", "SET", "maxmemory", "0") }},
}

// In an outage the failure policy decides, nothing waits beyond the Timeout, a server that is away is soon not asked, and used again
// within a second. What Redis admits is never above the limit.
func TestOutages(t *testing.T) {
	const limit = 300
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			var changes atomic.Int64
			s := open(t, Config{Timeout: 200 * time.Millisecond, Changed: func(error) { changes.Add(1) }}, proxy.Addr())
			ps := s.limiter(t, "api", fixed(limit, 400*24*time.Hour))
			n := start(t, s, ps, 10, func(int) string { return "k" })
			roomy := s.limiter(t, "roomy", bucket(1_000_000, 24*time.Hour)) // as on a server on which some are admitted
			other := start(t, s, roomy, 2, strconv.Itoa)
			eventually(t, "some to be admitted", func() bool { return n.admitted() > 50 })
			n.longest.Store(0)
			o.begin(server, proxy)
			opened := eventually(t, "the server to be away", func() bool { return s.Away() != nil })
			eventually(t, "decisions without it", func() bool { return n.bySource[step.SourceLocal].Load() > 10 })
			<-time.After(300 * time.Millisecond)
			o.end(server, proxy)
			back := eventually(t, "the server to be back", func() bool { return s.Away() == nil })
			reached := eventually(t, "the limit to be reached", func() bool {
				c := []step.Cell{cell(&ps[0], "k", 1)}
				allowed, err := s.Ask(t.Context(), step.Peek, c)
				return err == nil && !allowed && c[0].Source != step.SourceLocal
			})
			n.stop()
			other.stop()
			longest := time.Duration(n.longest.Load())
			t.Logf("away after %v, back after %v, limit reached after %v, told %d times, longest decision %v, %d admitted, %d locally", opened, back, reached, changes.Load(), longest, n.admitted(), n.bySource[step.SourceLocal].Load())
			if most := int64(limit); n.admitted() > most && o.name != "killed" || n.admitted() > 2*most { // a server that is killed forgets
				t.Errorf("%d admitted", n.admitted())
			}
			// Without fail in less time if the machine is idle; by the client's own timeouts in more.
			if most := 3 * time.Second; longest > most || back > most || opened > most {
				t.Errorf("away after %v, back after %v, longest decision %v", opened, back, longest)
			}
			if c := changes.Load(); c%2 > 0 || c > 6 {
				t.Errorf("told %d times", c)
			}
		})
	}
}

// Replies that are lost cost decisions, but charge nothing twice.
func TestLostRepliesChargeNothingTwice(t *testing.T) {
	const limit = 1_000_000
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := open(t, Config{Failure: outage.FailClosed, Timeout: time.Second}, proxy.Addr())
	ps := s.limiter(t, "api", fixed(limit, 400*24*time.Hour), sliding(limit, 24*time.Hour))
	s.charge(t, &ps[0], "other", 1)
	n := start(t, s, ps, 20, func(int) string { return "k" })
	for i := range 20 {
		seen := n.admitted()
		eventually(t, "some to be admitted", func() bool { return n.admitted() > seen+20 })
		proxy.CutMidReply(i)
	}
	n.stop()
	proxy.Heal()
	all := cells(ps, "k", 1)
	eventually(t, "an answer", func() bool { _, err := s.Ask(t.Context(), step.Peek, all); return err == nil })
	for _, c := range all {
		if charged := limit - c.Remaining; charged > n.admitted()+n.failed.Load() || charged < n.admitted() {
			t.Errorf("%d charged, %d admitted, %d failed", charged, n.admitted(), n.failed.Load())
		}
	}
	if n.failed.Load() == 0 {
		t.Error("no reply was lost")
	}
}

// A server that forgets the scripts goes on deciding.
func TestScriptsAreForgotten(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	ps := s.limiter(t, "api", fixed(500, 400*24*time.Hour), logOf(500, time.Hour))
	n := start(t, s, ps, 20, func(int) string { return "k" })
	for n.admitted() < 500 {
		server.Do("SCRIPT", "FLUSH")
		<-time.After(5 * time.Millisecond)
	}
	seen := n.asked.Load()
	eventually(t, "refusals", func() bool { return n.asked.Load() > seen+100 })
	if n.stop(); n.admitted() != 500 || n.failed.Load() > 0 {
		t.Errorf("%d admitted, %d failed", n.admitted(), n.failed.Load())
	}
}

// What is of another type, or has bytes that no script writes, makes its question fail, and no other of the call. It is
// not overwritten, and nothing else of its question is charged.
func TestForeignValuesFailAlone(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	kinds := []step.Numbers{bucket(10, time.Minute), fixed(10, 24*time.Hour), fixed(1<<40, time.Second), sliding(10, time.Minute), logOf(10, time.Minute), interval(time.Minute)}
	for i, m := range kinds {
		ps := s.limiter(t, fmt.Sprint("l", i), m, m)
		ps[1].Name = "beside"
		if err := s.Prepare(ps); err != nil {
			t.Fatal(err)
		}
		plants := [][]string{{"RPUSH", "x"}, {"SADD", "x"}, {"HSET", "x", "y"}, {"SET", ""}, {"SET", "x"}, {"SET", strings.Repeat("x", 8000)}}
		if ps[0].Stored().Algorithm == step.Level {
			for _, text := range []string{"-1", "0", "1.5", " 12", "1e3", "1e15000000000000", "100000000000e004", "0x0038d7ea4c6800", "nan", "inf", "0000000000000001", "99999999999999999999"} {
				plants = append(plants, []string{"SET", text})
			}
		}
		for j, plant := range plants {
			key := fmt.Sprint("secret", j)
			name := string(s.script.names.AppendTag(nil, key)) + suffix(&ps[0])
			server.Do(append([]string{plant[0], name}, plant[1:]...)...)
			dump, _ := server.Do("DUMP", name)
			of := func(mode step.Mode, cells ...step.Cell) *question { return &question{mode: mode, cells: cells} }
			back := cell(&ps[0], key, 1)
			back.Units, back.Instant = -1, time.Now().UnixMicro()
			good := []*question{
				of(step.Allow, cell(&ps[0], key+"good", 1)), of(step.Settle, cell(&ps[0], key+"settled", 1)),
				of(step.Allow, cell(&ps[0], key+"last", 1)),
			}
			bad := []*question{
				of(step.Allow, cell(&ps[0], key, 1)), of(step.Peek, cell(&ps[0], key, 1)), of(step.Settle, cell(&ps[0], key, 1)),
				of(step.Settle, back), of(step.Allow, cell(&ps[1], key, 1), cell(&ps[0], key, 1)), of(step.Allow, cell(&ps[0], key, 1), cell(&ps[1], key, 1)),
			}
			batch := slices.Concat(bad[:2], good[:1], bad[2:], good[1:])
			if err, failure := s.script.run(time.Now().Add(patient), batch); err != nil || failure != nil {
				t.Fatalf("%+v, %q: %v, %v", m, plant, err, failure)
			}
			for k, q := range bad {
				if q.err == nil || strings.Contains(q.err.Error(), key) {
					t.Errorf("%+v, %q, question %d: %v", m, plant, k, q.err)
				}
			}
			for k, q := range good {
				if q.err != nil || !q.allowed {
					t.Errorf("%+v, %q, good question %d: %v, %v", m, plant, k, q.allowed, q.err)
				}
			}
			if now, _ := server.Do("DUMP", name); now != dump {
				t.Errorf("%+v: %q is overwritten", m, plant)
			}
			if c := s.charge(t, &ps[1], key, 1); c.Shortfall > 0 || m.Kind != step.MinInterval && c.Remaining != ps[1].Capacity()-1 {
				t.Errorf("%+v, %q: the cell beside it was charged: %+v", m, plant, c.Reading)
			}
		}
	}
}

// permissions are what a user of Redis needs for rates. docs/redis.md has those of slots, too.
const permissions = "+eval +evalsha +time +get +set +incrby +append +setrange +del"

// With these everything works. Without one of them Check names it, and the server is away, which is told once: although it
// goes on answering some questions.
func TestPermissions(t *testing.T) {
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "    ACL SETUSER app on >password ~headgate:* -@all ")
	documented, _, _ := strings.Cut(rest, "\n\n")
	for command := range strings.FieldsSeq(permissions) {
		if !slices.Contains(strings.Fields(documented), command) {
			t.Errorf("docs/redis.md lacks %s", command)
		}
	}
	server := redistest.Start(t)
	as := func(t *testing.T, name, permissions string, c Config) *Decider {
		words := append([]string{"ACL", "SETUSER", name, "reset", "on", ">password", "~" + name + ":*", "-@all"}, strings.Fields(permissions)...)
		if _, err := server.Do(words...); err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: name, Password: "password", ContextTimeoutEnabled: true, MaxRetries: -1})
		t.Cleanup(func() { _ = client.Close() })
		c.Prefix, c.Timeout = name, patient
		s, err := New(client, c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	all := []step.Numbers{bucket(100, time.Hour), sliding(100, time.Hour), logOf(100, time.Hour)}
	use := func(t *testing.T, s *Decider, key string) error {
		ps := s.limiter(t, "api", all...)
		var faults []error
		for range 5 {
			_, err := s.Ask(t.Context(), step.Allow, cells(ps, key, 1))
			_, fault := s.Ask(t.Context(), step.Settle, cells(ps, key, 1))
			faults = append(faults, err, fault)
		}
		return errors.Join(append(faults, s.reset(t.Context(), cells(ps, key, 1)))...)
	}
	s := as(t, "headgate", permissions, Config{Failure: outage.FailClosed})
	if err := errors.Join(s.Check(t.Context()), use(t, s, "k")); err != nil {
		t.Error(err)
	}
	for missing := range strings.FieldsSeq(permissions) {
		t.Run(missing[1:], func(t *testing.T) {
			t.Parallel()
			var changes atomic.Int64
			s := as(t, missing[1:], strings.Replace(permissions+" ", missing+" ", "", 1), Config{Failure: outage.FailOpen, Changed: func(error) { changes.Add(1) }})
			if err := s.Check(t.Context()); err == nil && missing != "+evalsha" || err != nil && !strings.Contains(strings.ToLower(err.Error()), missing[1:]) {
				t.Error(err)
			}
			start := time.Now()
			for i := 0; time.Since(start) < time.Second; i++ { // also of new keys, which take other commands
				if err := use(t, s, fmt.Sprint(i/2)); err != nil && missing != "+del" && !strings.Contains(err.Error(), "not asked") {
					t.Error(err)
				}
				<-time.After(time.Millisecond)
			}
			works := missing == "+del" || missing == "+eval" // only a reset deletes; the server knows the scripts
			if n := changes.Load(); n > 1 || n == 0 && !works {
				t.Errorf("told %d times", n)
			}
		})
	}
}

func TestCheckLooksAtEvictionAndClocks(t *testing.T) {
	server := redistest.StartWithClock(t)
	s := open(t, Config{}, server.Addr())
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	server.Do("CONFIG", "SET", "maxmemory", "100mb")
	server.Do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	server.SetClock(time.Second)
	err := fmt.Sprint(s.Check(t.Context()))
	if strings.Count(err, "\n") != 1 || !strings.Contains(err, "evict") || !strings.Contains(err, "the clock of Redis is ") {
		t.Error(err)
	}
}

// Processes that ask for one key at the same time are admitted the limit, by each algorithm.
func TestProcessesTogether(t *testing.T) {
	server := redistest.Start(t)
	var others []*proctest.Process
	for range 3 {
		p := proctest.Start(t, "hammer", server.Addr())
		p.Line() // it is connected
		others = append(others, p)
	}
	sums := make([]int64, len(hammered))
	for _, p := range others {
		p.Send("go")
	}
	for _, p := range others {
		for i, line := range p.Wait() {
			n, err := strconv.ParseInt(line, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sums[i] += n
		}
	}
	for i, n := range sums {
		if want := hammered[i].Limit; n != want {
			t.Errorf("%+v: %d admitted", hammered[i], n)
		}
	}
}

var hammered = []step.Numbers{
	bucket(150, 400*24*time.Hour), fixed(150, 400*24*time.Hour), sliding(150, 400*24*time.Hour), logOf(150, 24*time.Hour),
	{Kind: step.FixedWindow, Limit: 150, Period: (400 * 24 * time.Hour).Microseconds(), CountDenied: true},
	{Kind: step.FixedWindow, Limit: 150, Period: (400 * 24 * time.Hour).Microseconds(), FromFirst: true},
}

// hammer asks from many goroutines once it is told to, and prints for each policy how many were admitted.
func hammer(args []string) error {
	client := redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true, MaxRetries: -1})
	s, err := New(client, Config{Failure: outage.FailClosed, Timeout: patient})
	if err != nil {
		return err
	}
	if err := client.Ping(context.Background()).Err(); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for i, m := range hammered {
		p, err := step.New(fmt.Sprint("l", i), "p", m)
		if err != nil {
			return err
		}
		ps := []step.Policy{p}
		if err := s.Prepare(ps); err != nil {
			return err
		}
		var admitted atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for range 10 {
					if allowed, _ := s.Ask(context.Background(), step.Allow, []step.Cell{cell(&ps[0], "k", 1)}); allowed {
						admitted.Add(1)
					}
				}
			})
		}
		all.Wait()
		fmt.Println(admitted.Load())
	}
	return nil
}

// A process that was itself stopped does not take that for a silent server: it asks once more.
func TestStoppedProcess(t *testing.T) {
	server := redistest.Start(t)
	p := proctest.Start(t, "asker", server.Addr())
	p.Line() // it asks
	for range 3 {
		<-time.After(700 * time.Millisecond) // it asks once more, not twice
		p.Pause()
		<-time.After(1500 * time.Millisecond)
		p.Resume()
	}
	<-time.After(700 * time.Millisecond)
	p.Send("end")
	if out := p.Wait(); !slices.Equal(out, []string{"0 locally"}) {
		t.Errorf("%q", out)
	}
}

// asker asks from some goroutines until it is told to end, and says how often it did so without Redis.
func asker(args []string) error {
	client := redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true, MaxRetries: -1})
	s, err := New(client, Config{Timeout: 500 * time.Millisecond})
	if err != nil {
		return err
	}
	p, err := step.New("api", "api", bucket(1_000_000, 24*time.Hour))
	if err != nil {
		return err
	}
	ps := []step.Policy{p}
	if err := s.Prepare(ps); err != nil {
		return err
	}
	var local atomic.Int64
	var all sync.WaitGroup
	ctx, end := context.WithCancel(context.Background())
	for i := range 6 {
		all.Go(func() {
			for ctx.Err() == nil {
				if source, err := s.askFor(context.Background(), &ps[0], strconv.Itoa(i)); err != nil || source != step.SourceStore {
					local.Add(1)
				}
				<-time.After(time.Duration(i) * time.Millisecond / 2)
			}
		})
	}
	fmt.Println("asking")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	end()
	all.Wait()
	fmt.Println(local.Load(), "locally")
	return nil
}
