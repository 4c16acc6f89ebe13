// Package fleet measures what a fleet of servers needs of its Redis. Many servers run in this process, each with a store,
// a client, slots, notices, leases and a document of its own. docs/sizing.md has the results, and what to read from them.
//
//	go test -v -count 1 -timeout 2h ./benchmarks/fleet -ttl 15s -span 20s -servers 10,100,1000 -keys 20000
//	go test -v -count 1 -timeout 2h ./benchmarks/fleet -ttl 15s -span 20s -servers 10,100 -keys 20000 -cluster
//
// Without flags it only looks that each measurement works. Redis is real; its time is that of its own processes, so it is
// the same when the servers share their processors. How long a caller waits is not: with many servers on few processors
// it is an upper bound.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
)

var (
	sizes     = flag.String("servers", "4", "how many servers, with commas between `numbers`")
	cluster   = flag.Bool("cluster", false, "a Cluster of three, instead of one Redis")
	keys      = flag.Int("keys", 400, "how `many` keys the servers hold slots of, in all")
	opens     = flag.Int("opens", 200, "how many sockets are opened and closed a `second`, in all")
	perSecond = flag.Int("decisions", 200, "how many decisions are made a `second`, in all")
	span      = flag.Duration("span", 300*time.Millisecond, "how long each measurement takes")
	ttl       = flag.Duration("ttl", 2*time.Second, "SlotTTL of the servers")
)

// A fleet is servers that share one Redis, or one Cluster.
type fleet struct {
	t       *testing.T
	redis   redistest.Servers
	servers []*server
	ctx     context.Context
}

// A server is what one process of an application has.
type server struct {
	number   int
	client   redis.UniversalClient
	store    *redisstore.Store
	leased   *redisstore.Store
	usual    *redisstore.Store // with the defaults, for what is done in an outage
	slots    *core.Slots
	requests *core.Limiter
	held     []*core.Slot
	stop     []func()
	dead     bool
}

func TestFleet(t *testing.T) {
	for text := range strings.SplitSeq(*sizes, ",") {
		count, err := strconv.Atoi(text)
		if err != nil || count < 3 {
			t.Fatalf("-servers: %q is no number from 3 on", text)
		}
		t.Run(text, func(t *testing.T) {
			start(t, count).measure()
		})
	}
}

// start starts a Redis, and servers that are not used yet.
func start(t *testing.T, count int) *fleet {
	f := &fleet{t: t, ctx: t.Context()}
	if *cluster {
		f.redis = redistest.StartCluster(t, 3, 0).Masters
	} else {
		f.redis = redistest.Servers{redistest.Start(t, "maxclients 20000")}
	}
	for number := range count {
		f.servers = append(f.servers, f.newServer(number))
	}
	t.Cleanup(func() {
		for _, one := range f.servers {
			one.end()
		}
	})
	return f
}

func (f *fleet) newServer(number int) *server {
	one := &server{number: number}
	options := redis.UniversalOptions{
		Addrs: f.redis.Addrs(), ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 8, DialerRetries: 1,
		IsClusterMode: *cluster,
	}
	one.client = redis.NewUniversalClient(&options)
	config := redisstore.Config{Failure: redisstore.FailClosed, Timeout: 5 * time.Second, SlotTTL: *ttl, SlotTimeout: *ttl / 3}
	one.store = must(redisstore.New(one.client, config))
	config.Lease = time.Second
	one.leased = must(redisstore.New(one.client, config))
	one.usual = must(redisstore.New(one.client, redisstore.Config{}))
	one.slots = core.NewSlots(one.store, "sockets", 4)
	one.requests = core.NewLimiter(one.usual, "requests", core.FixedWindow(1_000_000_000, time.Hour))
	return one
}

// kill ends a server as if its process had been killed: it says no more.
func (s *server) kill() {
	if !s.dead {
		s.dead = true
		_ = s.client.Close()
	}
}

// end ends what the server has begun.
func (s *server) end() {
	for _, stop := range s.stop {
		stop()
	}
	s.stop = nil
	s.kill()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A usage is what Redis has used since its start.
type usage struct {
	cpu      time.Duration
	commands int64
	bytes    int64
	memory   int64
	busiest  time.Duration // of the server of a Cluster that has used most
}

func (f *fleet) usage() (all usage) {
	number := func(fields map[string]string, name string) int64 {
		n, err := strconv.ParseInt(fields[name], 10, 64)
		if err != nil {
			f.t.Fatal(err)
		}
		return n
	}
	for _, one := range f.redis {
		cpu := one.CPU()
		stats := one.Info("stats")
		all.cpu += cpu
		all.busiest = max(all.busiest, cpu)
		all.commands += number(stats, "total_commands_processed")
		all.bytes += number(stats, "total_net_input_bytes") + number(stats, "total_net_output_bytes")
		all.memory += number(one.Info("memory"), "used_memory")
	}
	return all
}

// A rate is what Redis uses each second.
type rate struct{ cpu, commands, bytes, busiest float64 }

// during measures what Redis uses while something goes on.
func (f *fleet) during(what func()) rate {
	before := f.usage()
	begin := time.Now()
	what()
	seconds := time.Since(begin).Seconds()
	after := f.usage()
	return rate{
		cpu:      (after.cpu - before.cpu).Seconds() / seconds,
		commands: float64(after.commands-before.commands) / seconds,
		bytes:    float64(after.bytes-before.bytes) / seconds,
		busiest:  (after.busiest - before.busiest).Seconds() / seconds,
	}
}

func (r rate) minus(other rate) rate {
	return rate{r.cpu - other.cpu, r.commands - other.commands, r.bytes - other.bytes, r.busiest - other.busiest}
}

// row prints a row: what Redis used in a second, and of that for one of so many things.
func (f *fleet) row(name string, used rate, things float64, thing string) {
	f.t.Logf("%-34s %5.1f %% of a core, %8.0f commands/s, %7.1f kB/s;  a %s: %8.2f µs, %6.2f commands, %7.0f bytes",
		name, 100*used.cpu, used.commands, used.bytes/1000, thing, 1e6*used.cpu/things, used.commands/things,
		used.bytes/things)
}

// idle waits while nothing is done.
func (f *fleet) idle() { <-time.After(*span) }

// each calls a function for all servers that live, at the same time.
func (f *fleet) each(do func(one *server)) {
	var all sync.WaitGroup
	for _, one := range f.servers {
		if !one.dead {
			all.Go(func() { do(one) })
		}
	}
	all.Wait()
}

// measure makes all measurements, each on top of what the ones before have begun.
func (f *fleet) measure() {
	nothing := f.during(f.idle)
	beats := f.measureIdle("idle: beats", nothing, f.beat)
	listening := f.measureIdle("idle: listening for notices", nothing.plus(beats), f.listen)
	documents := f.measureIdle("idle: documents", nothing.plus(beats).plus(listening), f.openBooks)
	all := nothing.plus(beats).plus(listening).plus(documents)
	f.measureOpen()
	held := f.measureHeld(all)
	all = all.plus(held)
	f.measurePairs(all)
	f.measureNotices("notices that pass", false, 0)
	f.measureNotices("notices that last", true, time.Second)
	f.measureDecisions(all)
	f.measureRefusals(all)
	f.measureLeases(all)
	f.measureDocument()
	f.measureTombstones()
	f.measureOutage()
	f.measureKilled()
}

func (r rate) plus(other rate) rate {
	return rate{r.cpu + other.cpu, r.commands + other.commands, r.bytes + other.bytes, r.busiest + other.busiest}
}

// measureIdle begins something on each server, and measures what it costs a second while nothing is done.
func (f *fleet) measureIdle(name string, before rate, begin func(one *server)) rate {
	f.each(begin)
	<-time.After(min(*span, 3*time.Second)) // until all have begun
	used := f.during(f.idle).minus(before)
	f.row(name, used, float64(len(f.servers)), "server")
	return used
}

// beat makes a server a member of the fleet: it holds one slot.
func (f *fleet) beat(one *server) {
	_, err := one.slots.Acquire(f.ctx, one.first())
	if err != nil {
		f.t.Error(err)
	}
}

// listen listens for notices, as a guard of sockets does.
func (f *fleet) listen(one *server) {
	notices := one.slots.Backend().Notices()
	own := notices.Topic("sockets", one.first())
	stop := notices.Listen("sockets", func(heard slots.Heard) slots.NoticeAnswer {
		if heard.Topic != own {
			return slots.NoticeAnswer{}
		}
		return slots.NoticeAnswer{Text: "here"}
	})
	one.stop = append(one.stop, stop)
}

const document = `{"limits": {"api": {"plans": {"all": "fixed-window 1000000/second"}}}}`

// openBooks opens the document that all servers share.
func (f *fleet) openBooks(one *server) {
	config := limits.Config{Initial: []byte(document)}
	book, err := redisdoc.Open(f.ctx, one.store, one.client, "{limits}", config)
	if err != nil {
		f.t.Error(err)
		return
	}
	one.stop = append(one.stop, book.Close)
}

// first returns the key of which a server holds a slot from the beginning.
func (s *server) first() string { return "server-" + strconv.Itoa(s.number) }

// key returns the i-th key of a server.
func (s *server) key(i int) string { return fmt.Sprintf("user-%d-%d", s.number, i) }

// measureOpen has all servers open their sockets at once, as after a deployment.
func (f *fleet) measureOpen() {
	perServer := *keys / len(f.servers)
	before := f.usage()
	waits := new(waits)
	peak := f.peak()
	begin := time.Now()
	f.each(func(one *server) {
		var all sync.WaitGroup
		for worker := range 4 {
			all.Go(func() {
				for i := worker; i < perServer; i += 4 {
					asked := time.Now()
					slot, err := one.slots.Acquire(f.ctx, one.key(i))
					if err != nil {
						f.t.Error(err)
						return
					}
					waits.add(time.Since(asked))
					one.keep(slot)
				}
			})
		}
		all.Wait()
	})
	took := time.Since(begin)
	after := f.usage()
	sockets := float64(perServer * len(f.servers))
	f.t.Logf("all open %.0f sockets at once: in %v, peak %.0f commands/s, a wait of %v at most, %v of one in a hundred; "+
		"an open: %.1f µs of Redis, %.2f commands, %.0f bytes; %.0f bytes of memory a key", sockets, took.Round(time.Millisecond),
		peak(), waits.longest().Round(time.Millisecond), waits.percentile(99).Round(time.Millisecond),
		1e6*(after.cpu-before.cpu).Seconds()/sockets, float64(after.commands-before.commands)/sockets,
		float64(after.bytes-before.bytes)/sockets, float64(after.memory-before.memory)/sockets)
}

var heldMutex sync.Mutex

func (s *server) keep(slot *core.Slot) {
	heldMutex.Lock()
	defer heldMutex.Unlock()
	s.held = append(s.held, slot)
}

// measureHeld measures what it costs to hold slots: they are stated again from time to time.
func (f *fleet) measureHeld(before rate) rate {
	<-time.After(min(4**span, 20*time.Second)) // changes are stated once more, two beats later
	used := f.during(f.idle).minus(before)
	f.row("held sockets, of a key each", used, float64(*keys), "key")
	return used
}

// measurePairs opens and closes sockets, one after the other on each server.
func (f *fleet) measurePairs(before rate) {
	var pairs atomic.Int64
	used := f.during(func() {
		end := time.Now().Add(*span)
		f.each(func(one *server) {
			for i := 0; time.Now().Before(end); i++ {
				slot, err := one.slots.Acquire(f.ctx, one.key(-1-i%100))
				if err != nil {
					f.t.Error(err)
					return
				}
				slot.Release()
				pairs.Add(1)
				f.pace(*opens)
			}
		})
	})
	f.row("opened and closed", used.minus(before), float64(pairs.Load())/span.Seconds(), "pair")
}

// measureNotices announces something to one server after the other: the same costs all that listen. What passes is of an
// eviction. What lasts is of CloseAll: it stays for a minute, and is read again with each that follows.
func (f *fleet) measureNotices(name string, lasting bool, pause time.Duration) {
	const announcers = 4
	var notices atomic.Int64
	waits := new(waits)
	quiet := f.during(f.idle)
	used := f.during(func() {
		end := time.Now().Add(*span)
		var all sync.WaitGroup
		for announcer := range announcers {
			all.Go(func() {
				for i := announcer; time.Now().Before(end); i += announcers {
					from := f.servers[i%len(f.servers)]
					to := f.servers[(i+1)%len(f.servers)]
					asked := time.Now()
					notice := slots.Notice{Name: "sockets", Key: to.first(), Text: "who", All: lasting}
					_, err := from.slots.Backend().Notices().Announce(f.ctx, notice, func(string) bool { return true })
					if err != nil {
						f.t.Error(err)
					}
					waits.add(time.Since(asked))
					notices.Add(1)
					<-time.After(pause)
				}
			})
		}
		all.Wait()
	})
	perSecond := float64(notices.Load()) / span.Seconds()
	f.row(name, used.minus(quiet), perSecond, "notice")
	f.t.Logf("    %.1f notices/s; an answer after %v, %v at most", perSecond,
		waits.percentile(50).Round(time.Millisecond), waits.longest().Round(time.Millisecond))
}

// pace waits so long that all servers together do something so often in a second.
func (f *fleet) pace(perSecond int) {
	<-time.After(time.Second * time.Duration(len(f.servers)) / time.Duration(perSecond))
}

// measureDecisions has all servers decide about requests, each of another of many keys.
func (f *fleet) measureDecisions(before rate) {
	var decisions atomic.Int64
	used := f.during(func() {
		end := time.Now().Add(*span)
		f.each(func(one *server) {
			requests := core.NewLimiter(one.store, "decisions", core.TokenBucket(1_000_000, time.Hour))
			for i := one.number; time.Now().Before(end); i += 7919 {
				_, err := requests.Allow(f.ctx, "client-"+strconv.Itoa(i%100_000))
				if err != nil {
					f.t.Error(err)
					return
				}
				decisions.Add(1)
				f.pace(*perSecond)
			}
		})
	})
	f.t.Logf("all that is idle, and %.0f decisions/s: %.1f %% of a core", float64(decisions.Load())/span.Seconds(), 100*used.cpu)
	f.row("decisions", used.minus(before), float64(decisions.Load())/span.Seconds(), "decision")
}

// measureRefusals has all servers refuse one key as fast as they can.
func (f *fleet) measureRefusals(before rate) {
	var refused atomic.Int64
	used := f.during(func() {
		end := time.Now().Add(*span)
		f.each(func(one *server) {
			blocked := core.NewLimiter(one.store, "storm", core.FixedWindow(1, 24*time.Hour))
			for time.Now().Before(end) {
				decision, err := blocked.Allow(f.ctx, "storm")
				if err != nil {
					f.t.Error(err)
					return
				}
				if !decision.Allowed {
					refused.Add(1)
				}
				<-time.After(time.Millisecond)
			}
		})
	})
	f.row("refusals of one key", used.minus(before), float64(len(f.servers)), "server")
	f.t.Logf("    %.0f refusals/s", float64(refused.Load())/span.Seconds())
}

// measureLeases has all servers decide about one hot key.
func (f *fleet) measureLeases(before rate) {
	var decisions atomic.Int64
	used := f.during(func() {
		end := time.Now().Add(*span)
		f.each(func(one *server) {
			hot := core.NewLimiter(one.leased, "hot", core.FixedWindow(1_000_000_000, time.Hour))
			for time.Now().Before(end) {
				_, err := hot.Allow(f.ctx, "hot")
				if err != nil {
					f.t.Error(err)
					return
				}
				decisions.Add(1)
				<-time.After(5 * time.Millisecond)
			}
		})
	})
	f.row("leases of one hot key", used.minus(before), float64(len(f.servers)), "server")
	f.t.Logf("    %.0f decisions/s", float64(decisions.Load())/span.Seconds())
}

// measureDocument publishes another document, and waits until all servers have it.
func (f *fleet) measureDocument() {
	peak := f.peak()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	text := strings.Replace(document, "1000000/second", "1000001/second", 1)
	err := redisdoc.Push(ctx, f.servers[0].client, "{limits}", []byte(text))
	if err != nil {
		f.t.Error(err)
	}
	f.t.Logf("a document changes: all have it in %v, peak %.0f commands/s", time.Since(begin).Round(time.Millisecond), peak())
}

// measureTombstones measures beats after many servers have been replaced: the dead are remembered for a day.
func (f *fleet) measureTombstones() {
	const dead = 1024 // the most that are kept
	names := rediskey.New("headgate", nil)
	quiet := f.during(f.idle)
	for i := range dead {
		one := redis.Z{Score: -float64(i + 2), Member: fmt.Sprintf("dead%012d", i)}
		err := f.servers[0].client.ZAdd(f.ctx, names.Common("slots", "servers"), one).Err()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	used := f.during(f.idle).minus(quiet)
	f.row("beats after 1,024 were replaced", used, float64(len(f.servers)), "server")
}

// measureOutage stops Redis for a while, empties it, and looks how the fleet comes back.
func (f *fleet) measureOutage() {
	if *cluster {
		return // the herd is that of one server
	}
	stated := func() int64 {
		n, _ := f.redis[0].Do("DBSIZE")
		size, _ := n.(int64)
		return size
	}
	want := stated()
	waits := new(waits)
	ctx, stop := context.WithCancel(f.ctx)
	var callers sync.WaitGroup
	for _, one := range f.servers[:min(len(f.servers), 20)] {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				asked := time.Now()
				_, err := one.requests.Allow(f.ctx, "user-"+strconv.Itoa(i))
				if err == nil {
					waits.add(time.Since(asked))
				}
				<-time.After(20 * time.Millisecond)
			}
		})
	}
	f.redis[0].Flush()
	f.redis[0].Pause()
	<-time.After(min(8*time.Second, 2**ttl))
	peak := f.peak()
	f.redis[0].Resume()
	begin := time.Now()
	for stated() < want*9/10 && time.Since(begin) < 2*time.Minute {
		<-time.After(50 * time.Millisecond)
	}
	took := time.Since(begin)
	stop()
	callers.Wait()
	f.t.Logf("Redis is back, and empty: %d of %d keys stated again in %v, peak %.0f commands/s; a decision took %v at most, %v of one in a hundred",
		stated(), want, took.Round(time.Millisecond), peak(), waits.longest().Round(time.Millisecond), waits.percentile(99).Round(time.Millisecond))
}

// measureKilled kills a third of the servers, and looks when their slots are free.
func (f *fleet) measureKilled() {
	third := len(f.servers) / 3
	var lost []string
	for _, one := range f.servers[:third] {
		lost = append(lost, one.key(0))
		one.kill()
	}
	asker := f.servers[len(f.servers)-1]
	peak := f.peak()
	begin := time.Now()
	used := f.during(func() {
		for _, key := range lost {
			for time.Since(begin) < 2*time.Minute {
				held, err := asker.slots.Count(f.ctx, key)
				if err == nil && held == 0 {
					break
				}
				<-time.After(100 * time.Millisecond)
			}
		}
	})
	f.t.Logf("a third is killed: the slots of all %d are free after %v, peak %.0f commands/s, %.1f %% of a core meanwhile",
		third, time.Since(begin).Round(100*time.Millisecond), peak(), 100*used.cpu)
}

// peak begins to look how many commands Redis gets in a fifth of a second, and returns a function that ends it.
func (f *fleet) peak() (most func() float64) {
	const step = 200 * time.Millisecond
	ctx, stop := context.WithCancel(f.ctx)
	done := make(chan float64, 1)
	go func() {
		peak := 0.0
		last := f.commands()
		for ctx.Err() == nil {
			begin := time.Now()
			<-time.After(step)
			next := f.commands()
			if last > 0 && next > 0 {
				peak = max(peak, float64(next-last)/time.Since(begin).Seconds())
			}
			last = next
		}
		done <- peak
	}()
	return func() float64 {
		stop()
		return <-done
	}
}

// commands returns how many commands Redis has run, or 0 if it does not answer.
func (f *fleet) commands() (sum int64) {
	for _, one := range f.redis {
		reply, err := one.Do("INFO", "stats")
		text, _ := reply.(string)
		_, rest, found := strings.Cut(text, "total_commands_processed:")
		line, _, _ := strings.Cut(rest, "\r\n")
		n, errNumber := strconv.ParseInt(line, 10, 64)
		if errors.Join(err, errNumber) != nil || !found {
			return 0
		}
		sum += n
	}
	return sum
}

// waits are how long callers have waited.
type waits struct {
	mu  sync.Mutex
	all []time.Duration
}

func (w *waits) add(wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, wait)
}

func (w *waits) percentile(percent int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return 0
	}
	slices.SortFunc(w.all, cmp.Compare[time.Duration])
	return w.all[min(len(w.all)*percent/100, len(w.all)-1)]
}

func (w *waits) longest() time.Duration { return w.percentile(100) }
