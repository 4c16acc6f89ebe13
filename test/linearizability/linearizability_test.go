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

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

var histories = flag.Int("histories", 400, "how many random histories are checked, of all stores together")

// A world is where a history takes place.
type world struct {
	// stores have the same state, each as if in a process of its own.
	stores func(t *testing.T) []core.Store

	// bubble means that the time is that of a bubble of package synctest, which passes only
	// between operations. Otherwise it is real, and the instant of a settlement is unknown:
	// then there are only those that do not depend on it.
	bubble bool

	operations int // of each caller; 0 means 10
}

func TestLinearizable(t *testing.T) {
	server := redistest.Start(t)
	worlds := map[string]world{
		"memstore, bubble":    {stores: memory, bubble: true},
		"memstore, real time": {stores: memory, operations: 40},
	}
	for _, processes := range []int{1, 3} {
		for _, memoryFor := range []time.Duration{0, -1} {
			for _, unmerged := range []bool{false, true} {
				c := redisstore.Config{RefusalTTL: memoryFor, NoMerging: unmerged}
				name := fmt.Sprintf("redisstore, processes: %d, memory: %t, merging: %t", processes, memoryFor == 0, !unmerged)
				worlds[name+", bubble"] = world{stores: inRedis(server.Addr(), processes, c, true), bubble: true}
				worlds[name+", real time"] = world{stores: inRedis(server.Addr(), processes, c, false)}
			}
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
			cached := 0
			for _, h := range all { // not in the bubble, where no time passes meanwhile
				cached += countCached(h)
				check(t, h)
			}
			t.Logf("%d histories with %d cached refusals", len(all), cached)
		})
	}
}

func memory(*testing.T) []core.Store { return []core.Store{memstore.New(memstore.Config{})} }

func inRedis(addr string, processes int, c redisstore.Config, bubble bool) func(*testing.T) []core.Store {
	c.Failure = redisstore.FailClosed
	c.Timeout = 20 * time.Second
	return func(t *testing.T) (stores []core.Store) {
		c.Prefix = strconv.FormatUint(rand.Uint64(), 36)
		for range processes {
			s, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, c)
			if err != nil {
				t.Fatal(err)
			}
			s.Client().AddHook(wire{bubble})
			t.Cleanup(func() { s.Client().Close() })
			stores = append(stores, s)
		}
		return stores
	}
}

// A wire delays commands and replies at random, and tells the scripts the time of a bubble.
type wire struct{ bubble bool }

func (w wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if keys, ok := args[min(2, len(args)-1)].(int); ok && w.bubble && len(args) == 3+keys+3 { // not a reset
			args[3+keys] = strconv.FormatInt(time.Now().UnixMicro(), 10)
		}
		linger()
		err := next(ctx, cmd)
		linger()
		return err
	}
}

func (wire) DialHook(next redis.DialHook) redis.DialHook { return next }

func (wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// linger lets others run, at times for long.
func linger() {
	if rand.IntN(3) == 0 {
		for range rand.IntN(600) {
			runtime.Gosched()
		}
	}
}

// policies are random plans of a limiter. With real time, nothing expires during a history.
func policies(rng *rand.Rand, inRealTime bool) (plans [2][]core.Policy) {
	per := time.Duration(1+rng.IntN(5)) * 200 * time.Millisecond
	if inRealTime {
		per = 24 * time.Hour
	}
	limit := 2 + rng.Int64N(6)
	rate := core.Rate{Events: limit, Per: per}
	all := []core.Policy{
		core.FixedWindow(rate), core.FixedWindow(rate).CountDenied(),
		core.SlidingWindow(rate), core.SlidingWindow(rate).Resolution(3).NeverOver(), core.SlidingWindow(rate).CountDenied(),
		core.SlidingLog(rate), core.SlidingLog(rate).CountDenied(),
		core.SlidingLog(core.Rate{Events: 70, Per: per}), // read by range
		core.TokenBucket(rate, limit), core.TokenBucket(rate, limit).Debt(4 * limit),
	}
	if inRealTime {
		all[0] = core.FixedWindow(core.Rate{Events: limit, Per: 400 * 24 * time.Hour})
		all[1] = all[0].CountDenied()
	} else {
		all = append(all, core.MinInterval(per))
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, p := range all[:1+rng.IntN(2)] {
		p = p.Named(strconv.Itoa(i))
		plans[0] = append(plans[0], p)
		if p.Limit() > 1 {
			p = p.Share(2)
		}
		plans[1] = append(plans[1], p)
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
func (w world) history(t *testing.T, rng *rand.Rand, stores []core.Store, name string) []porcupine.Operation {
	const callers = 4
	var r recorder
	var all sync.WaitGroup
	plans := policies(rng, !w.bubble)
	hammered := len(stores) == 1 && rng.IntN(2) == 0 // the relaxed refusals of several take long to check
	start := make(chan struct{})
	for i := range callers {
		c := &caller{
			T: t, world: w, recorder: &r, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)),
			number: i % len(stores), store: stores[i%len(stores)],
			hammers: hammered && i >= callers/2,
		}
		for _, p := range plans {
			l, err := core.New(c.store, name, p...)
			if err != nil {
				t.Fatal(err)
			}
			c.plans = append(c.plans, l.Prepared())
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
	store  core.Store
	plans  []*store.Limiter
	held   []store.Charge // to settle

	// hammers means that most operations are one question, which is refused for as long as
	// any unit is used.
	hammers bool
}

// charge draws one of few, so that some are refused from memory.
func (c *caller) charge(key string) store.Charge {
	l := c.plans[0]
	if c.rng.IntN(10) == 0 {
		l = c.plans[1]
	}
	n := l.Spec().Most()
	return store.Charge{Limiter: l, Key: key, N: []int64{1, (n + 1) / 2, n}[c.rng.IntN(3)]}
}

// check returns the charge or, at times, one that only checks.
func (c *caller) check(charge store.Charge) store.Charge {
	if c.rng.IntN(4) == 0 {
		charge.N = 0
	}
	return charge
}

// report draws a charge for what has been used, at times more than any limit.
func (c *caller) report(key string) store.Charge {
	charge := c.charge(key)
	charge.Anyway = true
	charge.N = min(charge.N*(1+c.rng.Int64N(3)), step.MaxInt)
	return charge
}

func (c *caller) operate() error {
	if c.bubble && c.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(1+c.rng.IntN(4)) * 50 * time.Millisecond)
	}
	linger() // so that a key is at rest at times
	if c.hammers && c.rng.IntN(4) > 0 {
		return c.ask(store.Charge{Limiter: c.plans[0], Key: "a", N: c.plans[0].Spec().Most()}, 0)
	}
	keys := [2]string{"a", "b"}
	if c.rng.IntN(8) == 0 {
		keys = [2]string{"b", "a"}
	}
	switch x := c.rng.IntN(20); {
	case x < 4:
		in := &input{kind: peek, charges: []store.Charge{c.charge(keys[0])}}
		in.charges[0].N = 1
		in.charges[0] = c.check(in.charges[0])
		return c.decide(in)
	case x == 4:
		return c.together(keys)
	case x < 10 && len(c.held) > 0:
		return c.settle()
	case x == 12 && c.rng.IntN(2) == 0:
		return c.ask(c.report(keys[0]), 0)
	case x == 13 && c.rng.IntN(2) == 0:
		return c.ask(c.check(c.charge(keys[0])), 0)
	case 10 <= x && x < 12:
		in := &input{kind: reset, charges: []store.Charge{c.charge(keys[0])}}
		called := c.call()
		err := c.store.Ask(c.Context(), &store.Question{Mode: store.Reset, Charges: in.charges})
		c.returned(c.number, called, in, &output{})
		return err
	default:
		extra := int64(0)
		if c.rng.IntN(4) == 0 {
			extra = 1 + c.rng.Int64N(3)
		}
		return c.ask(c.charge(keys[0]), extra)
	}
}

// together makes a decision about two keys, of which one may be counted anyway, or both.
func (c *caller) together(keys [2]string) error {
	in := &input{kind: ask, charges: make([]store.Charge, 2)}
	if c.rng.IntN(8) == 0 {
		in.kind = peek
	}
	for i, key := range keys {
		if in.charges[i] = c.check(c.charge(key)); c.rng.IntN(4) == 0 {
			in.charges[i] = c.report(key)
		}
	}
	return c.decide(in)
}

func (c *caller) ask(charge store.Charge, extra int64) error {
	return c.decide(&input{kind: ask, charges: []store.Charge{charge}, extra: extra})
}

func (c *caller) decide(in *input) error {
	called := c.call()
	q := &store.Question{Charges: slices.Clone(in.charges), Extra: in.extra}
	if in.kind == peek {
		q.Mode = store.Peek
	}
	err := c.store.Ask(c.Context(), q)
	r := q.Result
	out := &output{result: r}
	for _, charge := range q.Charges {
		out.uncovered = append(out.uncovered, charge.Uncovered)
	}
	c.returned(c.number, called, in, out)
	if err == nil && in.kind == ask && r.Allowed {
		for _, charge := range in.charges {
			charge.N += r.Extra
			if !charge.Anyway && (c.bubble || !dated(charge.Limiter)) {
				charge.At, charge.Source = r.At, r.Source
				c.held = append(c.held, charge)
			}
		}
	}
	return err
}

// dated reports whether a settlement depends on its very instant.
func dated(l *store.Limiter) bool {
	return slices.ContainsFunc(l.Spec().Policies, func(p store.Policy) bool { return p.Step.Numbers().Algorithm == step.TokenBucket })
}

func (c *caller) settle() error {
	i := c.rng.IntN(len(c.held))
	s := c.held[i]
	c.held = slices.Delete(c.held, i, i+1)
	out := &output{}
	switch {
	case s.N > 0 && c.rng.IntN(2) == 0:
		s.Actual = c.rng.Int64N(s.N)
	case c.bubble:
		s.Actual = min(s.N+c.rng.Int64N(s.N+1), step.MaxInt)
	}
	if c.bubble {
		out.now = time.Now().UnixMicro()
	}
	called := c.call()
	q := &store.Question{Mode: store.Settle, Charges: []store.Charge{s}}
	err := c.store.Ask(c.Context(), q)
	out.uncovered = []int64{q.Charges[0].Uncovered}
	c.returned(c.number, called, &input{kind: settle, charges: []store.Charge{s}}, out)
	return err
}

// relax lets a cached refusal take effect before its call where there are several processes,
// as it does not show what others have done to the keys since. It must show what its own has.
func relax(h []porcupine.Operation, processes int) {
	if processes == 1 {
		return
	}
	for i := range h {
		if h[i].Output.(*output).result.Source != core.SourceCache {
			continue
		}
		var since int64
		for _, o := range h {
			in, out := o.Input.(*input), o.Output.(*output)
			charges := slices.ContainsFunc(in.charges, func(c store.Charge) bool { return c.N > 0 })
			changes := in.kind == settle || in.kind == reset || in.kind == ask && (out.result.Allowed && charges || in.counts())
			if changes && o.ClientId == h[i].ClientId && o.Return < h[i].Call && shareKey(in, h[i].Input.(*input)) {
				since = max(since, o.Return)
			}
		}
		h[i].Call = since
		h[i].Output.(*output).ofPeek = slices.ContainsFunc(h, func(o porcupine.Operation) bool {
			return o.ClientId == h[i].ClientId && o.Call >= since && o.Return < h[i].Return && remembers(&h[i], &o)
		})
	}
}

// remembers reports whether a cached refusal is that of a peek, later. A peek of one plan adopts what processes have
// charged under another as of its instant, and stores nothing. So a peek of now may show other units.
func remembers(cached, peeked *porcupine.Operation) bool {
	before, now := &peeked.Output.(*output).result, &cached.Output.(*output).result
	in := peeked.Input.(*input)
	equal := slices.EqualFunc(in.charges, cached.Input.(*input).charges, func(a, b store.Charge) bool {
		return a.Limiter == b.Limiter && a.Key == b.Key && a.N == b.N && a.Anyway == b.Anyway
	})
	if in.kind != peek || !equal || before.Source != store.SourceStore || before.Allowed || now.Allowed || before.Len() != now.Len() {
		return false
	}
	later := now.At - before.At
	for i := range now.Len() {
		was, is := *before.Reading(i), *now.Reading(i)
		for _, d := range []*int64{&was.NextAfter, &was.ResetAfter, &was.RetryAfter} {
			*d = max(*d-later, 0)
		}
		if was != is || before.Admitted(i) != now.Admitted(i) {
			return false
		}
	}
	return later >= 0
}

func shareKey(a, b *input) bool {
	return slices.ContainsFunc(a.charges, func(c store.Charge) bool {
		return slices.ContainsFunc(b.charges, func(d store.Charge) bool { return c.Key == d.Key })
	})
}

func countCached(h []porcupine.Operation) (n int) {
	for _, o := range h {
		if o.Output.(*output).result.Source == core.SourceCache {
			n++
		}
	}
	return n
}

func check(t *testing.T, h []porcupine.Operation) {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(model, h, time.Minute)
	if result == porcupine.Ok {
		return
	}
	slices.SortFunc(h, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range h {
		t.Logf("%d to %d, process %d: %s", o.Call, o.Return, o.ClientId, describe(o.Input.(*input), o.Output.(*output)))
	}
	t.Fatalf("not linearizable, as far as was found out: %s", result)
}
