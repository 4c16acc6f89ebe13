package conformance

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	old "github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	oldredis "github.com/headgate/headgate/internal/old/core/redisstore"
	oldhttp "github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

var differentialRequests = flag.Int("requests", 10_000, "of TestDifferential, in memory; over Redis there are a tenth as many")

// pairRequests is how many requests a pair is asked.
const pairRequests = 100

// A pair is a guard as it was before the names changed, and one as it is now, with the same rules over stores of their
// own.
type pair struct {
	t        *testing.T
	rnd      *rand.Rand
	redis    bool // the clock is real, so windows of the clock may end between two questions
	oldStore old.Store
	store    core.Store

	oldConfig   oldhttp.Config
	config      nethttp.Config
	oldLimiters []*old.Limiter
	limiters    []*core.Limiter
	settles     bool

	handlers [2]http.Handler
	answers  [2][pairRequests]answer
	lines    []string // what is asked, for the report

	mu       sync.Mutex
	observed [2][]int // statuses
}

// policies adds random policies, and those of the plan gold.
func (p *pair) policies(name string) (o, og []old.Policy, n, ng []core.Policy) {
	events, per := 1+p.rnd.Int64N(6), []time.Duration{time.Second, 7 * time.Second, time.Minute, time.Hour}[p.rnd.IntN(4)]
	if p.redis {
		per = time.Hour
	}
	of := func(n int64, per time.Duration) old.Rate { return old.Rate{Events: n, Per: per} }
	kind := p.rnd.IntN(8)
	if p.redis {
		kind = p.rnd.IntN(4)
	}
	switch kind {
	case 0:
		return []old.Policy{old.TokenBucket(of(events, per), events+2)}, []old.Policy{old.TokenBucket(of(9*events, per), 9*events)},
			[]core.Policy{core.TokenBucket(events, per).Burst(events + 2)}, []core.Policy{core.TokenBucket(9*events, per)}
	case 1:
		return []old.Policy{old.TokenBucket(of(events, per), events).Debt(20)}, []old.Policy{old.Unlimited()},
			[]core.Policy{core.TokenBucket(events, per).Debt(20)}, []core.Policy{core.Unlimited()}
	case 2:
		return []old.Policy{old.SlidingLog(of(events, per)).Named(name + "a"), old.SlidingLog(of(5*events, 24*time.Hour)).Named(name + "b")},
			[]old.Policy{old.SlidingLog(of(9*events, per)).Named(name + "a"), old.SlidingLog(of(50*events, 24*time.Hour)).Named(name + "b")},
			[]core.Policy{core.SlidingLog(events, per).Named(name + "a"), core.SlidingLog(5*events, 24*time.Hour).Named(name + "b")},
			[]core.Policy{core.SlidingLog(9*events, per).Named(name + "a"), core.SlidingLog(50*events, 24*time.Hour).Named(name + "b")}
	case 3:
		return []old.Policy{old.SlidingLog(of(events, per))}, []old.Policy{old.Blocked()}, []core.Policy{core.SlidingLog(events, per)}, []core.Policy{core.Blocked()}
	case 4:
		return []old.Policy{old.FixedWindow(of(events, per))}, []old.Policy{old.FixedWindow(of(9*events, per))},
			[]core.Policy{core.FixedWindow(events, per)}, []core.Policy{core.FixedWindow(9*events, per)}
	case 5:
		return []old.Policy{old.FixedWindow(of(events, per)).FromFirst()}, []old.Policy{old.FixedWindow(of(9*events, per)).FromFirst()},
			[]core.Policy{core.FixedWindow(events, per).FromFirst()}, []core.Policy{core.FixedWindow(9*events, per).FromFirst()}
	case 6:
		return []old.Policy{old.MinInterval(per)}, []old.Policy{old.MinInterval(per / 5)}, []core.Policy{core.MinInterval(per)}, []core.Policy{core.MinInterval(per / 5)}
	default:
		return []old.Policy{old.SlidingWindow(of(events, per)).CountDenied()}, []old.Policy{old.SlidingWindow(of(9*events, per)).CountDenied()},
			[]core.Policy{core.SlidingWindow(events, per).CountDenied()}, []core.Policy{core.SlidingWindow(9*events, per).CountDenied()}
	}
}

func (p *pair) oneIn(n int) bool { return p.rnd.IntN(n) == 0 }

// rate adds a random rate.
func (p *pair) rate(i int) {
	name := fmt.Sprintf("rate%d", i)
	o, og, n, ng := p.policies(name)
	ol := old.Must(old.New(p.oldStore, name, o...))
	gold := old.Must(ol.With(og...))
	or := oldhttp.Rule{Limiter: ol, Key: keyfuncs.Header("X-Client")}
	nr := nethttp.Rate{Limiter: core.NewLimiter(p.store, name, n...).WithPlan("gold", ng...), Key: client}
	if p.oneIn(2) {
		or.Plan = func(r *http.Request, _ string) *old.Limiter {
			if r.Header.Get("X-Plan") == "gold" {
				return gold
			}
			return nil
		}
		nr.Plan = keyfuncs.Header("X-Plan")
	}
	if p.oneIn(2) {
		cost := func(r *http.Request) int64 {
			n, _ := strconv.ParseInt(r.Header.Get("X-Cost"), 10, 64)
			return n
		}
		or.Cost, nr.Cost, or.Settle = cost, cost, oldhttp.StatedCost
	}
	switch p.rnd.IntN(6) {
	case 0:
		or.Settle, nr.Settle = oldhttp.FailuresOnly, nethttp.FailuresOnly
	case 1:
		or.Settle = func(_ *http.Request, o oldhttp.Outcome) int64 { return o.Written }
		nr.Settle = nethttp.BytesWritten
	}
	p.settles = p.settles || nr.Settle != nil
	or.Service = p.oneIn(4)
	nr.Service = or.Service
	p.oldConfig.Rules, p.config.Rates = append(p.oldConfig.Rules, or), append(p.config.Rates, nr)
	p.oldLimiters, p.limiters = append(p.oldLimiters, ol), append(p.limiters, nr.Limiter)
}

// build makes the guards: several rules, or a single one that only observes.
func (p *pair) build() {
	if p.oneIn(6) {
		p.oldConfig.ObserveOnly = true
		p.rate(0)
		p.config.Rates[0].ObserveOnly = true
	} else {
		for i := range 1 + p.rnd.IntN(4) {
			p.rate(i)
		}
	}
	p.oldConfig.Observe = func(_ *http.Request, v oldhttp.Verdict) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if v.Status() != 0 {
			p.observed[0] = append(p.observed[0], v.Status())
		}
	}
	p.config.Observe = func(_ *http.Request, v *nethttp.Verdict) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if v.Status != 0 {
			p.observed[1] = append(p.observed[1], v.Status)
		}
	}
	oldGuard := oldhttp.New(p.oldConfig)
	guard, err := nethttp.New(p.config)
	if err != nil {
		p.t.Fatal(err)
	}
	handler := func(set func(ctx context.Context, i int, units int64)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n, err := strconv.ParseInt(r.Header.Get("X-Set"), 10, 64); err == nil {
				for i := range p.limiters {
					set(r.Context(), i, n)
				}
			}
			status, _ := strconv.Atoi(r.Header.Get("X-Status"))
			w.WriteHeader(status)
			fmt.Fprint(w, "hello")
		})
	}
	p.handlers[0] = oldGuard.Handler(handler(func(ctx context.Context, i int, units int64) { oldhttp.SetCost(ctx, p.oldLimiters[i].Name(), units) }))
	p.handlers[1] = guard.Handler(handler(func(ctx context.Context, i int, units int64) { _ = nethttp.SetCost(ctx, p.limiters[i], units) }))
}

// ask sends one random request to both, and compares the answers.
func (p *pair) ask() {
	fields := []string{
		"X-Client", []string{"anna", "ben", ""}[min(p.rnd.IntN(9)/4, 2)], "X-Plan", []string{"", "gold"}[p.rnd.IntN(2)],
		"X-Cost", strconv.Itoa(p.rnd.IntN(5)), "X-Status", []string{"200", "401"}[p.rnd.IntN(2)],
		"X-Set", []string{"", "", "0", "3", "9"}[p.rnd.IntN(5)],
	}
	p.lines = append(p.lines, fmt.Sprint(fields))
	n := len(p.lines) - 1
	for i, h := range p.handlers {
		p.answers[i][n] = ask(h, request("GET", "/", fields...))
	}
	p.compare(n)
}

// soon is when there is a unit again of a rate that is used up.
var soon = regexp.MustCompile(`(;r=0);t=\d+`)

// compare compares the answers to the n-th request. Beside r=0 of a rule with Settle, the fields differ as they are
// meant to.
func (p *pair) compare(n int) {
	p.t.Helper()
	want, got := p.answers[0][n], p.answers[1][n]
	want.Fields, got.Fields = want.Fields.Clone(), got.Fields.Clone()
	for _, a := range []answer{want, got} {
		for i, v := range a.Fields["Ratelimit"] {
			if p.settles && a.Fields.Get("Cache-Control") == "" { // admitted
				v = soon.ReplaceAllString(v, "$1")
			}
			a.Fields["Ratelimit"][i] = v
		}
	}
	if p.redis {
		alike(want.Fields, got.Fields)
	}
	if !reflect.DeepEqual(want, got) {
		p.t.Fatalf("%d, after %s\n%+v\nwant %+v", n, strings.Join(p.lines[max(0, n-9):], "\n"), got, want)
	}
}

var seconds = regexp.MustCompile(`;t=\d+`)

// alike makes times equal that differ by a second, between which the clock has gone on.
func alike(a, b http.Header) {
	for _, name := range []string{"Ratelimit", "Retry-After"} {
		x, y := seconds.FindAllString(";t="+a.Get("Retry-After")+a.Get("Ratelimit"), -1), seconds.FindAllString(";t="+b.Get("Retry-After")+b.Get("Ratelimit"), -1)
		if len(x) != len(y) || !slices.EqualFunc(x, y, func(x, y string) bool {
			n, _ := strconv.Atoi(x[3:])
			m, _ := strconv.Atoi(y[3:])
			return max(n-m, m-n) <= 1
		}) {
			return
		}
		if a.Get(name) != "" && b.Get(name) != "" {
			b.Set(name, a.Get(name))
		}
	}
}

// end compares what was observed, and what was used.
func (p *pair) end() {
	p.t.Helper()
	slices.Sort(p.observed[0])
	slices.Sort(p.observed[1])
	if !slices.Equal(p.observed[0], p.observed[1]) {
		p.t.Fatalf("observed %d, want %d", p.observed[1], p.observed[0])
	}
	for i, l := range p.limiters {
		for _, key := range []string{"anna", "ben"} {
			want, err := p.oldLimiters[i].Peek(p.t.Context(), key)
			got, fault := l.Peek(p.t.Context(), key)
			if err != nil || fault != nil || got.Remaining != want.Remaining {
				p.t.Fatalf("%s has %d left of %v, want %d; %v, %v; after %s", key, got.Remaining, l, want.Remaining, err, fault, strings.Join(p.lines, "\n"))
			}
		}
	}
}

// run asks a hundred random requests of a random pair of guards.
func (p *pair) run(seed int) (refused map[int]int) {
	p.rnd = rand.New(rand.NewPCG(uint64(seed), 7))
	p.build()
	for range pairRequests {
		if p.ask(); !p.redis {
			time.Sleep(time.Duration(p.rnd.Int64N(int64(3 * time.Second)))) // of the bubble
		}
	}
	p.end()
	refused = make(map[int]int)
	for _, a := range p.answers[1] {
		refused[a.Status]++
	}
	return refused
}

// Random guards of rates, plans, costs, services and settlements, and those that only observe, answer
// random requests as those did before the names changed: status, fields and body; and leave the same units.
func TestDifferential(t *testing.T) {
	sums := make(map[int]int)
	add := func(refused map[int]int) {
		for status, n := range refused {
			sums[status] += n
		}
	}
	for seed := range *differentialRequests / pairRequests {
		synctest.Test(t, func(t *testing.T) {
			p := &pair{t: t, oldStore: memstore.New(memstore.Config{}), store: new(core.MemoryStore)}
			add(p.run(seed))
		})
		if t.Failed() {
			t.Fatalf("the seed is %d", seed)
		}
	}
	t.Logf("in memory: %v", sums)
}

// The same over Redis.
func TestDifferentialOverRedis(t *testing.T) {
	server := redistest.Start(t)
	for seed := range *differentialRequests / pairRequests / 10 {
		oldStore, err := oldredis.OpenURL("redis://"+server.Addr(), oldredis.Config{Prefix: fmt.Sprint("old", seed), Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		store, err := redisstore.Open("redis://"+server.Addr(), redisstore.Config{Prefix: fmt.Sprint("new", seed), Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		p := &pair{t: t, redis: true, oldStore: oldStore, store: store}
		p.run(seed)
		oldStore.Client().Close()
		store.Client().Close()
	}
}
