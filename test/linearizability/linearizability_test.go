package linearizability

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redisrates"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

var histories = flag.Int("histories", 400, "how many random histories are checked, of all stores together")

// A world is where a history takes place.
type world struct {
	// stores have the same state, each as if in a process of its own.
	stores func(t *testing.T) []store.Rates

	// bubble means that the time is that of a bubble of package synctest, which passes only
	// between operations. Otherwise it is real.
	bubble bool

	operations int // of each caller; 0 means 10
}

func TestLinearizable(t *testing.T) {
	server := redistest.Start(t)
	worlds := map[string]world{
		"memory, bubble":    {stores: inMemory, bubble: true},
		"memory, real time": {stores: inMemory, operations: 40},
	}
	for _, processes := range []int{1, 3} {
		for _, remembered := range []time.Duration{0, -1} {
			name := fmt.Sprintf("Redis, processes: %d, remembered: %t", processes, remembered == 0)
			worlds[name+", bubble"] = world{stores: inRedis(server.Addr(), processes, remembered, true), bubble: true}
			worlds[name+", real time"] = world{stores: inRedis(server.Addr(), processes, remembered, false)}
		}
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(rand.Uint64(), 0)) // a schedule is not repeatable anyway
			around := func(f func(*testing.T)) { f(t) }
			if w.bubble {
				around = func(f func(*testing.T)) { synctest.Test(t, f) }
			}
			var all [][]porcupine.Operation
			around(func(t *testing.T) {
				stores := w.stores(t)
				for i := range max(1, *histories/len(worlds)) {
					if all = append(all, w.history(t, rng, stores, fmt.Sprint("h", i))); t.Failed() {
						return
					}
				}
			})
			cached, unknown := 0, 0
			for _, h := range all { // not in the bubble, where no time passes meanwhile
				for _, o := range h {
					if o.Output.(*output).cached() {
						cached++
					}
				}
				if !check(t, h) {
					unknown++
				}
			}
			if unknown > 1+len(all)/50 {
				t.Errorf("of %d histories, it is unknown whether they are linearizable", unknown)
			}
			t.Logf("%d histories, %d of them not decided, with %d cached refusals", len(all), unknown, cached)
		})
	}
}

func inMemory(*testing.T) []store.Rates { return []store.Rates{memory.New(0)} }

func inRedis(addr string, processes int, remembered time.Duration, bubble bool) func(*testing.T) []store.Rates {
	return func(t *testing.T) (stores []store.Rates) {
		c := redisrates.Config{
			Failure: outage.FailClosed, Timeout: 20 * time.Second, RefusalTTL: remembered, Prefix: strconv.FormatUint(rand.Uint64(), 36),
		}
		for range processes {
			client := redis.NewClient(&redis.Options{
				Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 100,
				// Whoever listens for maintenance never ends, which no bubble outlives.
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
			client.AddHook(wire{bubble})
			t.Cleanup(func() { _ = client.Close() })
			s, err := redisrates.New(client, c)
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, s)
		}
		return stores
	}
}

// A wire delays commands and replies at random, and tells the scripts the time of a bubble.
type wire struct{ bubble bool }

// dated returns the command that is sent instead.
func (w wire) dated(ctx context.Context, cmd redis.Cmder) redis.Cmder {
	words := cmd.Args()
	if name := words[0]; !w.bubble || name != "evalsha" && name != "eval" {
		return cmd
	}
	return redis.NewStringCmd(ctx, append(slices.Clone(words), strconv.FormatInt(time.Now().UnixMicro(), 10))...)
}

func answer(cmd, sent redis.Cmder) {
	if text, ok := sent.(*redis.StringCmd); ok && sent != cmd {
		cmd.(interface{ SetVal(string) }).SetVal(text.Val())
		cmd.SetErr(sent.Err())
	}
}

func (w wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		linger()
		sent := w.dated(ctx, cmd)
		err := next(ctx, sent)
		answer(cmd, sent)
		linger()
		return err
	}
}

func (w wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		linger()
		var sent []redis.Cmder
		for _, cmd := range cmds {
			sent = append(sent, w.dated(ctx, cmd))
		}
		err := next(ctx, sent)
		for i, cmd := range cmds {
			answer(cmd, sent[i])
		}
		linger()
		return err
	}
}

func (wire) DialHook(next redis.DialHook) redis.DialHook { return next }

// linger lets others run, at times for long.
func linger() {
	if rand.IntN(3) == 0 {
		for range rand.IntN(600) {
			runtime.Gosched()
		}
	}
}

// numbers are those of random plans of a limiter: the second has half the limits.
func numbers(rng *rand.Rand, inRealTime bool) (plans [2][]step.Numbers) {
	per := int64(1+rng.IntN(5)) * 200_000
	if inRealTime {
		per = 24 * 3600 * 1_000_000 // nothing expires during a history
	}
	limit := []int64{2, 4, 5, 8}[rng.IntN(4)] // of which a unit takes whole microseconds
	of := func(a step.Kind) step.Numbers { return step.Numbers{Kind: a, Limit: limit, Period: per} }
	all := []step.Numbers{
		of(step.FixedWindow), of(step.FixedWindow), of(step.FixedWindow), of(step.SlidingWindow), of(step.SlidingWindow), of(step.SlidingWindow),
		of(step.SlidingLog), of(step.SlidingLog), of(step.TokenBucket), of(step.TokenBucket), {Kind: step.MinInterval, Period: per},
	}
	all[1].CountDenied, all[2].FromFirst = true, true
	all[3].Resolution, all[4].Resolution, all[5].Resolution = 10, 5, 1
	all[4].NeverOver, all[5].CountDenied, all[7].CountDenied = true, true, true
	all[8].Burst, all[9].Burst, all[9].Debt = limit, limit, 4*limit
	if inRealTime {
		for i := range 3 {
			all[i].Period = 400 * 24 * 3600 * 1_000_000
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, m := range all[:1+rng.IntN(2)] {
		plans[0] = append(plans[0], m)
		if m.Kind != step.TokenBucket && m.Limit > 1 {
			m.Limit /= 2
		}
		plans[1] = append(plans[1], m)
	}
	return plans
}

// A recorder writes down a history.
type recorder struct {
	clock atomic.Int64 // counts calls and returns
	mu    sync.Mutex
	all   []porcupine.Operation // the client is the number of the store
}

func (r *recorder) call() int64 { return r.clock.Add(1) }

func (r *recorder) returned(store int, called int64, in *input, out *output) {
	now := r.clock.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, porcupine.Operation{ClientId: store, Input: in, Call: called, Output: out, Return: now})
}

// history lets callers operate on keys at the same time, each through one of the stores.
func (w world) history(t *testing.T, rng *rand.Rand, stores []store.Rates, name string) []porcupine.Operation {
	const callers = 4
	var r recorder
	var all sync.WaitGroup
	plans := numbers(rng, !w.bubble)
	hammered := len(stores) == 1 && rng.IntN(2) == 0 // the relaxed refusals of several take long to check
	start := make(chan struct{})
	for i := range callers {
		c := &caller{
			T: t, world: w, recorder: &r, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)),
			number: i % len(stores), store: stores[i%len(stores)],
			hammers: hammered && i >= callers/2,
		}
		for _, plan := range plans {
			var ps []step.Policy
			for j, m := range plan {
				p, err := step.New(name, strconv.Itoa(j), m)
				if err != nil {
					t.Fatal(err)
				}
				ps = append(ps, p)
			}
			if err := c.store.Prepare(ps); err != nil {
				t.Fatal(err)
			}
			c.plans = append(c.plans, ps)
		}
		all.Go(func() {
			<-start
			for range cmp.Or(w.operations, 10) {
				if err := c.operate(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	all.Wait()
	relax(r.all, len(stores))
	return r.all
}

type caller struct {
	*testing.T
	world
	*recorder

	rng    *rand.Rand
	number int
	store  store.Rates
	plans  [][]step.Policy
	held   [][]step.Cell // to settle

	// hammers means that most operations are one question, which is refused for as long as
	// any unit is used.
	hammers bool
}

func most(ps []step.Policy) int64 {
	n := ps[0].Capacity()
	for i := range ps {
		n = min(n, ps[i].Capacity())
	}
	return n
}

func cells(ps []step.Policy, key string, n int64) []step.Cell {
	all := make([]step.Cell, len(ps))
	for i := range ps {
		all[i].Set(&ps[i], key, step.Hash(key), n)
	}
	return all
}

// charge draws one of few, so that some are refused from memory.
func (c *caller) charge(key string) []step.Cell {
	ps := c.plans[0]
	if c.rng.IntN(10) == 0 {
		ps = c.plans[1]
	}
	n := most(ps)
	return cells(ps, key, []int64{0, 1, 1, (n + 1) / 2, n}[c.rng.IntN(5)])
}

func (c *caller) operate() error {
	if c.bubble && c.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(1+c.rng.IntN(4)) * 50 * time.Millisecond)
	}
	linger() // so that a key is at rest at times
	if c.hammers && c.rng.IntN(4) > 0 {
		return c.do(step.Allow, cells(c.plans[0], "a", most(c.plans[0])))
	}
	keys := [2]string{"a", "b"}
	if c.rng.IntN(8) == 0 {
		keys = [2]string{"b", "a"}
	}
	switch x := c.rng.IntN(20); {
	case x < 4:
		return c.do(step.Peek, c.charge(keys[0]))
	case x == 4:
		return c.do(step.Mode(c.rng.IntN(8)/7), append(c.charge(keys[0]), c.charge(keys[1])...)) // Allow, or Peek
	case x < 10 && len(c.held) > 0:
		return c.settle()
	case x == 11: // a report, at times of more than any limit
		return c.do(step.Settle, cells(c.plans[0], keys[0], 1+c.rng.Int64N(3*most(c.plans[0]))))
	case x == 12:
		return c.do(step.Reset, c.charge(keys[0]))
	default:
		return c.do(step.Allow, c.charge(keys[0]))
	}
}

func (c *caller) do(mode step.Mode, asked []step.Cell) error {
	in, out := &input{mode, slices.Clone(asked)}, &output{cells: asked}
	called := c.call()
	var err error
	out.allowed, err = c.store.Ask(c.Context(), mode, asked)
	c.returned(c.number, called, in, out)
	if err == nil && mode == step.Allow && out.allowed && asked[0].Units > 0 {
		c.held = append(c.held, slices.Clone(asked))
	}
	return err
}

func (c *caller) settle() error {
	i := c.rng.IntN(len(c.held))
	all := c.held[i]
	c.held = slices.Delete(c.held, i, i+1)
	for j := range all {
		if all[j].Units = -all[j].Units; c.rng.IntN(4) == 0 {
			all[j].Units = 1
		}
	}
	return c.do(step.Settle, all)
}

// relax lets a cached refusal take effect before its call where there are several processes,
// as it does not show what others have done to the keys since. It must show what its own has.
func relax(h []porcupine.Operation, processes int) {
	if processes == 1 {
		return
	}
	for i := range h {
		if !h[i].Output.(*output).cached() {
			continue
		}
		var since int64
		for _, o := range h {
			if o.ClientId == h[i].ClientId && o.Return < h[i].Call && changes(o.Input.(*input), o.Output.(*output)) && shareKey(o.Input.(*input), h[i].Input.(*input)) {
				since = max(since, o.Return)
			}
		}
		h[i].Call = since
	}
}

// changes reports whether an operation may have written.
func changes(in *input, out *output) bool {
	return in.mode >= step.Settle || in.mode == step.Allow && slices.ContainsFunc(in.cells, func(c step.Cell) bool {
		return c.Units > 0 && (out.allowed || c.Policy.CountDenied)
	})
}

func shareKey(a, b *input) bool {
	return slices.ContainsFunc(a.cells, func(c step.Cell) bool {
		return slices.ContainsFunc(b.cells, func(d step.Cell) bool { return c.Key.Reveal() == d.Key.Reveal() })
	})
}

// check reports whether it is known that a history is linearizable. If all its operations overlap, as on a busy machine,
// there may be too many orders.
func check(t *testing.T, h []porcupine.Operation) (known bool) {
	t.Helper()
	switch porcupine.CheckOperationsTimeout(model, h, 20*time.Second) {
	case porcupine.Ok:
		return true
	case porcupine.Unknown:
		return false
	}
	slices.SortFunc(h, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range h {
		t.Logf("%d to %d, process %d: %s", o.Call, o.Return, o.ClientId, describe(o.Input.(*input), o.Output.(*output)))
	}
	t.Error("not linearizable")
	return true
}
