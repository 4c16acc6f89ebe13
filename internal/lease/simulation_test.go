package lease

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

var (
	schedules = flag.Int("schedules", 200, "how many random schedules the simulation runs")
	begin     = flag.Int("first", 0, "the number of the first of them")
)

var errLink = errors.New("the link is down")

// A link is the way from one server to the shared store. It is slow, and loses calls and replies.
type link struct {
	store.Store

	slow atomic.Int64 // nanoseconds, at most, each way
	even bool
	loss int // of a hundred
	dead atomic.Bool

	calls, settles atomic.Int64

	mu      sync.Mutex
	rng     *rand.Rand
	longest time.Duration
}

func (l *link) random(n int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.Int64N(n)
}

func (l *link) travel() {
	if l.even {
		time.Sleep(time.Duration(l.slow.Load()))
		return
	}
	time.Sleep(time.Duration(l.random(l.slow.Load() + 1)))
}

func (l *link) lost() bool { return l.loss > 0 && l.random(100) < int64(l.loss) || l.dead.Load() }

func (l *link) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	if first, _ := ctx.Value(called{}).(*int64); first != nil && *first == 0 {
		*first = time.Now().UnixMicro()
	}
	if mode == step.Settle {
		l.settles.Add(1)
	} else {
		l.calls.Add(1)
	}
	defer func(began time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.longest = max(l.longest, time.Since(began))
	}(time.Now())
	far := slices.Clone(cells)
	l.travel()
	if l.lost() {
		return false, errLink
	}
	if allowed, err = l.Store.Ask(ctx, mode, far); err != nil {
		return false, err
	}
	if !l.even && l.random(50) == 0 {
		time.Sleep(time.Duration(20 * l.slow.Load()))
	}
	l.travel()
	if l.lost() {
		return false, errLink
	}
	copy(cells, far)
	return allowed, nil
}

// called is the key of a context whose value is set to the instant of the first call of the store: then leased units of
// the same question are spent.
type called struct{}

// A limiter is policies of one name.
type limiter []step.Policy

func newLimiter(name string, ms ...step.Numbers) limiter {
	var l limiter
	for i, m := range ms {
		p, err := step.New(name, fmt.Sprint("p", i), m)
		if err != nil {
			panic(err)
		}
		p.Last = i == len(ms)-1
		l = append(l, p)
	}
	return l
}

func (l limiter) cells(key string, n int64) []step.Cell {
	cells, hash := make([]step.Cell, len(l)), step.Hash(key)
	for i := range l {
		cells[i].Set(&l[i], key, hash, n)
	}
	return cells
}

// A charge is units of a limiter.
type charge struct {
	l limiter
	n int64
}

func cellsOf(cs []charge) (cells []step.Cell) {
	for _, c := range cs {
		cells = append(cells, c.l.cells(key, c.n)...)
	}
	return cells
}

const key = "key"

// A server is one process with its clocks.
type server struct {
	*Store

	link      *link
	begin     time.Time
	ppm       int64
	suspended atomic.Int64 // the monotonic clock stood still for so long
	stepped   atomic.Int64 // the wall clock was set ahead
	stopped   atomic.Int64 // until then, since it began
}

func (s *server) clocks() instant {
	ns := int64(time.Since(s.begin))
	ns += ns * s.ppm / 1_000_000
	return instant{ns - s.suspended.Load(), ns + s.stepped.Load() + 1e15}
}

// An admitted is units that were admitted at an instant of the store's clock.
type admitted struct {
	at, n int64
	half  bool // under the plan of half the limits
}

// A schedule is one random run.
type schedule struct {
	*testing.T

	rng      *rand.Rand
	endless  bool      // a mutant: leases are spent after they are over
	stubborn bool      // a mutant: refusals hold for long
	limiters []limiter // plans of one name: the first is the largest
	others   []limiter // of other names: one that is leased, one that is not
	pulse    time.Duration

	shared *ledger
	mu     sync.Mutex
	all    []*admitted
	beside []*admitted
	local  int
	resets int64
	hoard  []*hoarded
	lost   int64 // units that were leased when a key was reset

	refused int
	without []string // refusals without a cause
}

// A ledger is a store that writes down what is left in it.
type ledger struct {
	store.Store

	limiters []limiter
	mu       sync.Mutex
	lefts    []left
}

type left struct {
	at    time.Time
	units []int64
}

func (l *ledger) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (bool, error) {
	allowed, err := l.Store.Ask(ctx, mode, cells)
	if mode != step.Peek {
		l.look()
	}
	return allowed, err
}

// look writes down what is left now.
func (l *ledger) look() {
	now := left{at: time.Now()}
	for _, x := range l.limiters {
		cells := x.cells(key, 1)
		if _, err := l.Store.Ask(context.Background(), step.Peek, cells); err != nil {
			panic(err)
		}
		least := cells[0].Remaining
		for _, c := range cells {
			least = min(least, c.Remaining)
		}
		now.units = append(now.units, least)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lefts = append(l.lefts, now)
}

func (l *ledger) hadLess(since time.Time, which int, units int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range slices.Backward(l.lefts) {
		if x.at.Before(since) {
			return false
		}
		if x.units[which] < units {
			return true
		}
	}
	return false
}

const (
	leaseFor = 200 * time.Millisecond
	stated   = leaseFor/pauses + time.Millisecond // for how long a refusal holds at most
	looking  = 5 * time.Millisecond
)

// because notes a refusal of charges by a server that was asked at that time, and whether the store had too little
// for one of them: meanwhile, or before, by no more than a pause and a call.
func (sc *schedule) because(s *server, asked time.Time, cs []charge) {
	s.link.mu.Lock()
	call := s.link.longest
	s.link.mu.Unlock()
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.refused++
	for _, c := range cs {
		since := asked.Add(-stated - time.Duration(s.suspended.Load()) - call - looking)
		which := slices.IndexFunc(slices.Concat(sc.limiters, sc.others), func(l limiter) bool { return &l[0] == &c.l[0] })
		if sc.shared.hadLess(since, which, c.n) {
			return
		}
	}
	sc.without = append(sc.without, fmt.Sprintf("%v at %v, with calls of up to %v", cs[0].n, asked, call))
}

func (sc *schedule) server() *server {
	s := &server{begin: time.Now(), ppm: []int64{-999, 0, 999}[sc.rng.IntN(3)]}
	s.link = &link{Store: sc.shared, rng: rand.New(rand.NewPCG(sc.rng.Uint64(), 1)), loss: []int{0, 0, 3, 20}[sc.rng.IntN(4)]}
	s.link.slow.Store(sc.rng.Int64N(5) * int64(time.Millisecond))
	s.Store = New(s.link, s.link, leaseFor, time.Second)
	s.clock = s.clocks
	return s
}

// ask asks as core does: first what can be answered without a call.
func ask(ctx context.Context, s *Store, cells []step.Cell) (allowed bool, err error) {
	var receipt store.Receipt
	if allowed, answered := s.Answer(step.Allow, cells, &receipt); answered {
		if allowed != receipt.Exists() {
			panic("the receipt")
		}
		return allowed, nil
	}
	return s.Ask(ctx, step.Allow, cells)
}

// client asks for a while, as fast as gap says, and settles and reports some.
func (sc *schedule) client(s *server, rng *rand.Rand, gap time.Duration, end time.Time) {
	for time.Now().Before(end) {
		if sc.pulse > 0 { // all rush together, and rest
			gap = time.Millisecond / 2
			if passed := time.Duration(time.Now().UnixNano()) % sc.pulse; passed > sc.pulse/4 || passed > sc.pulse/40 && time.Now().UnixNano()/int64(sc.pulse)%2 == 0 {
				time.Sleep(sc.pulse - passed)
			}
		}
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(gap)))
		time.Sleep(time.Duration(s.stopped.Load()) - time.Since(s.begin))
		if rng.IntN(500) == 0 { // a lull
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		}
		n := int64(1)
		if rng.IntN(5) == 0 {
			n += rng.Int64N(4)
		}
		cs := []charge{{sc.limiters[rng.IntN(len(sc.limiters))], n}}
		mode := rng.IntN(40)
		switch {
		case mode < 6:
			for _, l := range sc.others {
				if rng.IntN(2) == 0 {
					cs = append(cs, charge{l, 1 + rng.Int64N(2)})
				}
			}
			rng.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
		case mode == 6:
			_, _ = s.Ask(context.Background(), step.Peek, cellsOf(cs))
			continue
		case mode == 7: // a report, of which what had room is as if it had been admitted
			cells := cs[0].l.cells(key, n)
			if _, err := s.Ask(context.Background(), step.Settle, cells); err == nil {
				sc.note(&sc.all, cells[0].At, fitted(cells))
			}
			continue
		}
		sc.request(s, rng, cs)
	}
}

func (sc *schedule) note(to *[]*admitted, at, n int64) *admitted {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	a := &admitted{at: at, n: n}
	*to = append(*to, a)
	return a
}

// fitted returns how many of the units of a settlement had room.
func fitted(cells []step.Cell) int64 {
	n := cells[0].N
	for _, c := range cells {
		n = min(n, c.N-c.Short)
	}
	return n
}

// request asks for charges, notes what is admitted, and settles some of it.
func (sc *schedule) request(s *server, rng *rand.Rand, cs []charge) {
	var first int64
	asked, cells := time.Now(), cellsOf(cs)
	allowed, err := ask(context.WithValue(context.Background(), called{}, &first), s.Store, cells)
	if err != nil {
		return
	}
	if !allowed {
		sc.because(s, asked, cs)
		return
	}
	now := time.Now().UnixMicro()
	notes := make([]*admitted, len(cs))
	at := 0
	for i, c := range cs {
		// What a lease covers is spent now, or when the store is called for the rest. What the store charges is
		// spent at its instant.
		spent := cells[at].At
		if at += len(c.l); cells[at-1].Source == step.SourceLease {
			if spent = now; len(cs) > 1 && first > 0 {
				spent = first
			}
			sc.mu.Lock()
			sc.local++
			sc.mu.Unlock()
		}
		if to := sc.list(c.l); to != nil {
			notes[i] = sc.note(to, spent, c.n)
			notes[i].half = len(sc.limiters) > 1 && &c.l[0] == &sc.limiters[1][0]
		}
	}
	if rng.IntN(10) > 0 {
		return
	}
	time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
	sc.settle(s, rng, cs, cells, notes)
}

// list returns where what a limiter admits is noted, or nil.
func (sc *schedule) list(l limiter) *[]*admitted {
	switch &l[0] {
	case &sc.others[0][0]:
		return &sc.beside
	case &sc.others[1][0]:
		return nil
	}
	return &sc.all
}

// settle corrects charges. Units that are given back may be used by others as soon as the call is sent.
func (sc *schedule) settle(s *server, rng *rand.Rand, cs []charge, cells []step.Cell, notes []*admitted) {
	sc.mu.Lock()
	var all []step.Cell
	for i, c := range cs {
		own := cells[:len(c.l)]
		cells = cells[len(c.l):]
		actual := rng.Int64N(c.n + 1)
		if rng.IntN(4) == 0 {
			actual = c.n + rng.Int64N(3)
		}
		if actual == c.n {
			continue
		}
		if notes[i] != nil {
			notes[i].n = min(actual, c.n)
		}
		for j := range own {
			own[j].N = actual - c.n
		}
		all = append(all, own...)
	}
	sc.mu.Unlock()
	if len(all) == 0 {
		return
	}
	var first int64
	if _, err := s.Ask(context.WithValue(context.Background(), called{}, &first), step.Settle, all); err != nil {
		return
	}
	if first == 0 {
		first = time.Now().UnixMicro()
	}
	for _, c := range cs {
		if len(all) == 0 || all[0].Policy.Limiter != c.l[0].Limiter {
			continue
		}
		if to, own := sc.list(c.l), all[:len(c.l)]; to != nil && own[0].N > 0 {
			at := own[0].At
			if own[0].Source == step.SourceLease {
				at = first
			}
			sc.note(to, at, fitted(own))
		}
		all = all[len(c.l):]
	}
}

// A hoarded lease was taken away from a server.
type hoarded struct {
	server *server
	left   int64
	until  instant
}

func (h *hoarded) live() bool {
	now := h.server.now()
	return now.mono < h.until.mono && now.wall < h.until.wall
}

// adversary takes leases away from a server. At the last instant of one it spends all that are hoarded and not over,
// and charges all that is left in the store.
func (sc *schedule) adversary(s *server, rng *rand.Rand, end time.Time) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		h := &hoarded{server: s}
		s.entryOf(sc.limiters[0], func(e *entry) { h.left, h.until, e.left = e.left, e.until, 0 })
		now := s.now()
		if h.left == 0 || !h.live() {
			continue
		}
		sc.mu.Lock()
		sc.hoard = append(sc.hoard, h)
		sc.mu.Unlock()
		rest := min(h.until.mono-now.mono, h.until.wall-now.wall)
		time.Sleep(time.Duration(rest - rest/1000 - 1)) // the fastest clock
		if sc.endless && rng.IntN(10) > 0 {
			continue
		}
		sc.mu.Lock()
		hoard := sc.hoard
		sc.hoard = nil
		sc.mu.Unlock()
		for _, h := range hoard {
			if h.live() || sc.endless {
				sc.note(&sc.all, time.Now().UnixMicro(), h.left)
			}
		}
		for n := int64(256); n > 0; n /= 2 {
			cells := sc.limiters[0].cells(key, n)
			if allowed, err := sc.shared.Ask(context.Background(), step.Allow, cells); err == nil && allowed {
				sc.note(&sc.all, cells[0].At, n)
			}
		}
	}
}

// leased returns what the servers have leased.
func (sc *schedule) leased(servers []*server) (n int64) {
	sc.mu.Lock()
	for _, h := range sc.hoard {
		n += h.left
	}
	sc.mu.Unlock()
	for _, s := range servers {
		s.entryOf(sc.limiters[0], func(e *entry) { n += e.left })
	}
	return n
}

// run runs the schedule, and returns by how much a policy was exceeded at worst.
func (sc *schedule) run() (over int64) {
	sc.shared = &ledger{Store: memory.New(0), limiters: slices.Concat(sc.limiters, sc.others)}
	end := time.Now().Add(3 * time.Second)
	var wait sync.WaitGroup
	wait.Go(func() {
		for ; time.Now().Before(end); time.Sleep(looking) {
			sc.shared.look()
		}
	})
	var servers []*server
	var mu sync.Mutex
	start := func(s *server) {
		mu.Lock()
		servers = append(servers, s)
		mu.Unlock()
		gap := time.Duration(1+sc.rng.IntN(20)) * time.Millisecond
		for range 1 + sc.rng.IntN(3) {
			rng := rand.New(rand.NewPCG(sc.rng.Uint64(), 2))
			wait.Go(func() { sc.client(s, rng, gap, end) })
		}
		if len(sc.limiters) == 1 && (sc.endless || sc.rng.IntN(3) == 0) {
			rng := rand.New(rand.NewPCG(sc.rng.Uint64(), 3))
			wait.Go(func() { sc.adversary(s, rng, end) })
		}
	}
	for range 1 + sc.rng.IntN(4) {
		start(sc.server())
	}
	if sc.stubborn {
		wait.Go(func() {
			for ; time.Now().Before(end); time.Sleep(time.Millisecond) {
				mu.Lock()
				for _, s := range servers {
					s.holdOn(sc.limiters[0])
				}
				mu.Unlock()
			}
		})
	}
	events := sc.rng.IntN(3) // what happens to servers
	for time.Now().Before(end) {
		time.Sleep(time.Duration(100+sc.rng.IntN(400)) * time.Millisecond)
		s := servers[sc.rng.IntN(len(servers))]
		pause := time.Duration(sc.rng.IntN(400)) * time.Millisecond
		if events == 0 {
			continue
		}
		switch sc.rng.IntN(5) {
		case 0: // it stops
			s.stopped.Store(int64(time.Since(s.begin) + pause))
		case 1: // the machine is suspended
			s.stopped.Store(int64(time.Since(s.begin) + pause))
			if s.stepped.Load() == 0 {
				s.suspended.Add(int64(pause))
			}
		case 2: // the wall clock is set: if it is set back while the machine is suspended, no clock tells
			if by := sc.rng.IntN(1000) - 500; s.suspended.Load() == 0 {
				s.stepped.Add(int64(by) * int64(time.Millisecond))
			}
		case 3: // it crashes, and another starts
			s.link.dead.Store(true)
			start(sc.server())
		case 4:
			if events == 2 {
				for range 2 { // before, and as it arrives
					sc.lost += sc.leased(servers)
				}
				sc.resets++
				_, _ = sc.shared.Ask(context.Background(), step.Reset, sc.limiters[0].cells(key, 0))
			}
		}
	}
	wait.Wait()
	for _, s := range servers {
		_ = s.Close(context.Background())
	}
	for _, p := range sc.limiters[0] {
		over = max(over, exceeded(p.Numbers, sc.all, sc.resets, sc.lost, false))
	}
	if len(sc.limiters) > 1 && len(servers) == 1 {
		for _, p := range sc.limiters[1] {
			over = max(over, exceeded(p.Numbers, sc.all, sc.resets, sc.lost, true))
		}
	}
	return max(over, exceeded(sc.others[0][0].Numbers, sc.beside, 0, 0, false))
}

// entryOf looks at the entry of a limiter, whatever the plan, if there is one.
func (s *Store) entryOf(l limiter, f func(*entry)) {
	cells := l.cells(key, 1)
	sh := s.lock(cells)
	defer sh.mu.Unlock()
	if e := sh.find(&cells[0]); e != nil {
		f(e)
	}
}

// holdOn makes a refusal hold for another while.
func (s *server) holdOn(l limiter) {
	now := s.now()
	s.entryOf(l, func(e *entry) {
		if now.mono < e.pause {
			e.pause = now.mono + int64(40*time.Millisecond)
		}
	})
}

// exceeded returns by how much a policy was exceeded at worst, by brute force over all instants of admissions, or of those
// under the plan of half the limits.
func exceeded(m step.Numbers, all []*admitted, resets, lost int64, half bool) (over int64) {
	slices.SortFunc(all, func(a, b *admitted) int { return int(a.at - b.at) })
	most, g := m.Limit*(1+resets)+lost, m.Period
	if m.Algorithm == step.SlidingWindow {
		g = (m.Period + m.Resolution - 1) / m.Resolution
	}
	for i, a := range all {
		if a.n == 0 || half && !a.half {
			continue
		}
		var sum, old int64 // in the window that ends with a; in the sub-window partly inside
		for _, b := range slices.Backward(all[:i+1]) {
			back := (a.at-a.at%g)/g - (b.at-b.at%g)/g // sub-windows
			if back > m.Resolution && a.at-b.at >= m.Period {
				break
			}
			switch {
			case m.Algorithm == step.FixedWindow:
				if back == 0 {
					sum += b.n
				}
			case m.NeverOver:
				if a.at-b.at < m.Period {
					sum += b.n
				}
			case back < m.Resolution:
				sum += b.n
			case back == m.Resolution:
				old += b.n
			}
		}
		sum += (old*(g-a.at%g) + g - 1) / g
		over = max(over, sum-most)
	}
	return over
}

func fixed(n int64, d time.Duration) step.Numbers {
	return step.Numbers{Algorithm: step.FixedWindow, Limit: n, Period: d.Microseconds()}
}

func sliding(n int64, d time.Duration, k int64) step.Numbers {
	return step.Numbers{Algorithm: step.SlidingWindow, Limit: n, Period: d.Microseconds(), Resolution: k}
}

func neverOver(m step.Numbers) step.Numbers { m.NeverOver = true; return m }

// sets are what the schedules limit by.
func sets() [][]step.Numbers {
	ms := time.Millisecond
	return [][]step.Numbers{
		{fixed(100, 500*ms)},
		{fixed(40, 100*ms)},
		{sliding(200, 700*ms, 10)},
		{neverOver(sliding(200, 700*ms, 7))},
		{neverOver(sliding(100, 100*ms, 1))},
		{sliding(60, 300*ms, 2), fixed(150, 1000*ms)},
		{neverOver(sliding(300, 1000*ms, 20)), fixed(400, 2000*ms)},
	}
}

func simulate(t *testing.T, seed uint64, mutate func(*schedule)) (over int64, sc *schedule) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 7))
		numbers := sets()[seed%uint64(len(sets()))]
		sc = &schedule{T: t, rng: rng, limiters: []limiter{newLimiter("api", numbers...)}}
		if mutate == nil && rng.IntN(4) == 0 { // a plan of half the limits, which shares their state
			half := slices.Clone(numbers)
			for i := range half {
				half[i].Limit /= 2
			}
			sc.limiters = append(sc.limiters, newLimiter("api", half...))
		}
		sc.others = []limiter{
			newLimiter("beside", neverOver(sliding(30, 200*time.Millisecond, 4))),
			newLimiter("log", step.Numbers{Algorithm: step.SlidingLog, Limit: 1000, Period: 60e6}),
		}
		if rng.IntN(3) == 0 {
			sc.pulse = time.Duration(100+rng.IntN(500)) * time.Millisecond
		}
		if mutate != nil {
			mutate(sc)
		}
		time.Sleep(time.Duration(rng.IntN(1_000_000)) * time.Microsecond)
		over = sc.run()
	})
	return over, sc
}

// In no schedule does a window of any policy hold more than its limit, and each refusal has a cause.
func TestNeverOver(t *testing.T) {
	local, all, refused := 0, 0, 0
	for i := *begin; i < *begin+*schedules; i++ {
		over, sc := simulate(t, uint64(i), nil)
		if over > 0 {
			t.Errorf("schedule %d: %d more than admitted (resets %d, plans %d)", i, over, sc.resets, len(sc.limiters))
		}
		if len(sc.without) > 0 {
			t.Errorf("schedule %d: %d of %d refusals have no cause: %s", i, len(sc.without), sc.refused, sc.without[0])
		}
		local, all, refused = local+sc.local, all+len(sc.all), refused+sc.refused
	}
	t.Logf("%d schedules: %d of %d were admitted from leases, %d were refused", *schedules, local, all, refused)
	if local < all/5 {
		t.Errorf("only %d of %d were admitted from leases: the test shows little", local, all)
	}
}

// The schedules find it if leases have no end, under each set of policies.
func TestNeverOverFindsLeasesWithoutEnd(t *testing.T) {
	for set := range sets() {
		found := false
		for i := range uint64(200) {
			if over, _ := simulate(t, uint64(set)+i*uint64(len(sets())), func(sc *schedule) { sc.endless = true }); over > 0 {
				t.Logf("set %d: found by schedule %d", set, i)
				found = true
				break
			}
		}
		if !found {
			t.Errorf("set %d: not found", set)
		}
	}
}

// They find it if refusals hold for longer than is stated.
func TestNeverOverFindsStubbornRefusals(t *testing.T) {
	for i := range uint64(200) {
		if _, sc := simulate(t, i*uint64(len(sets())), func(sc *schedule) { sc.stubborn = true }); len(sc.without) > 0 {
			t.Logf("found by schedule %d: %s", i, sc.without[0])
			return
		}
	}
	t.Error("not found")
}
