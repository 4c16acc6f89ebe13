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

// A link is the way from one server to the shared store. It is slow, and loses calls and replies. Without random numbers
// each way takes the same time, and nothing is lost.
type link struct {
	store.Rates

	local store.Rates  // decides while the way is lost, as in redisstore; nil: nobody does
	slow  atomic.Int64 // nanoseconds, at most, each way
	loss  int64        // of a hundred
	dead  atomic.Bool
	calls atomic.Int64

	mu      sync.Mutex
	rng     *rand.Rand
	refused map[step.Cell]time.Time // when the last call was sent about a policy and units that the store refused
}

func newLink(s store.Rates) *link { return &link{Rates: s, refused: make(map[step.Cell]time.Time)} }

// random returns a number below n.
func (l *link) random(n int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rng == nil {
		return n - 1
	}
	return l.rng.Int64N(n)
}

// travel takes its time, and reports whether nothing was lost.
func (l *link) travel() bool {
	time.Sleep(time.Duration(l.random(l.slow.Load() + 1)))
	return l.random(100) >= l.loss && !l.dead.Load()
}

func (l *link) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	began := time.Now()
	first, _ := ctx.Value(called{}).(*int64)
	if first != nil && *first == 0 {
		*first = began.UnixMicro()
	}
	l.calls.Add(1)
	far := slices.Clone(cells)
	if mode == step.Settle && cells[0].Source == step.SourceLocal || !l.travel() {
		return l.lost(ctx, mode, cells)
	}
	if allowed, err = l.Rates.Ask(ctx, mode, far); err != nil {
		return false, err
	}
	if l.random(50) == 0 {
		time.Sleep(time.Duration(20 * l.slow.Load()))
	}
	if !l.travel() {
		return l.lost(ctx, mode, cells)
	}
	if ctx.Err() != nil { // nobody waits for the answer
		return false, ctx.Err()
	}
	if first != nil && l.random(300) == 0 {
		panic(l) // as an observer may
	}
	copy(cells, far)
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := (step.Cell{Policy: far[0].Policy, Units: far[0].Units}); !allowed && l.refused[q].Before(began) {
		l.refused[q] = began
	}
	return allowed, nil
}

func (l *link) lost(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	if l.local == nil || mode == step.Settle && cells[0].Source != step.SourceLocal {
		return false, errLink
	}
	allowed, err = l.local.Ask(ctx, mode, cells)
	for i := range cells {
		cells[i].Source = step.SourceLocal
	}
	return allowed, err
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

const key = "key"

// ask asks as core does: first what can be answered without a call.
func ask(ctx context.Context, s *Leases, cells []step.Cell) (allowed bool, err error) {
	var receipt store.Receipt
	if allowed, answered := s.Answer(step.Allow, cells, &receipt); answered {
		if allowed != receipt.Exists() {
			panic("the receipt")
		}
		return allowed, nil
	}
	return s.Ask(ctx, step.Allow, cells)
}

// entryOf looks at the entry of a limiter, whatever the plan, if there is one.
func (s *Leases) entryOf(l limiter, f func(*entry)) {
	cells := l.cells(key, 1)
	sh := s.lock(cells)
	defer sh.mu.Unlock()
	if e := sh.find(&cells[0]); e != nil {
		f(e)
	}
}

// A server is one process with its clocks.
type server struct {
	*Leases

	link      *link
	ppm       int64
	suspended atomic.Int64 // the monotonic clock stood still for so long
	stepped   atomic.Int64 // the wall clock was set ahead
	stopped   atomic.Int64 // until then, since it began
}

func (s *server) clocks() instant {
	ns := int64(time.Since(s.origin)) * (1_000_000 + s.ppm) / 1_000_000
	return instant{ns - s.suspended.Load(), ns + s.stepped.Load() + 1e15}
}

// The limiters of a schedule.
const (
	api    = iota
	beside // is leased, too
	log    // is not
	half   // a plan of half the limits of api, which shares its state. It may be missing.
)

// A charge is units of a limiter.
type charge struct {
	which int
	n     int64
}

// An admitted is units that were admitted at an instant of the store's clock.
type admitted struct {
	which int
	at, n int64
}

// A schedule is one random run.
type schedule struct {
	rng      *rand.Rand
	limiters []limiter
	ppm      []int64       // by which clocks are ahead
	pulse    time.Duration // of the demand; 0: it has none
	end      time.Time

	shared  *memory.States
	servers []*server
	wait    sync.WaitGroup
	hoard   atomic.Int64 // units that adversaries have taken

	mu      sync.Mutex
	all     []*admitted
	local   int
	resets  int64
	lost    int64    // units that were leased when a key was reset
	without []string // refusals without a cause
}

// split returns random numbers for one goroutine.
func (sc *schedule) split() *rand.Rand { return rand.New(rand.NewPCG(sc.rng.Uint64(), 2)) }

func cellsOf(ls []limiter, cs []charge) (cells []step.Cell) {
	for _, c := range cs {
		cells = append(cells, ls[c.which].cells(key, c.n)...)
	}
	return cells
}

// remaining returns how many units a store has left of a limiter.
func remaining(s store.Rates, l limiter) int64 {
	cells, least := l.cells(key, 1), int64(step.MaxInt)
	if _, err := s.Ask(context.Background(), step.Peek, cells); err != nil {
		panic(err)
	}
	for _, c := range cells {
		least = min(least, c.Remaining)
	}
	return least
}

const leaseFor = 200 * time.Millisecond

// because notes a refusal of charges by a server that was asked at that time, and whether the store has refused to it as
// many units: now, or as long ago as a refusal holds. Several charges are refused by the store only, now.
func (sc *schedule) because(s *server, asked time.Time, cells []step.Cell, called bool) {
	s.link.mu.Lock()
	last := s.link.refused[step.Cell{Policy: cells[0].Policy, Units: cells[0].Units}]
	s.link.mu.Unlock()
	since := asked.Add(-leaseFor/partsOfLife - time.Millisecond - time.Duration(s.suspended.Load()))
	if last.Before(since) && (!called || cells[len(cells)-1].Policy.Limiter == cells[0].Policy.Limiter) {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		sc.without = append(sc.without, fmt.Sprintf("%v at %v", cells, asked))
	}
}

// client asks for a while, as fast as gap says.
func (sc *schedule) client(s *server, rng *rand.Rand, gap time.Duration) {
	for time.Now().Before(sc.end) {
		if sc.pulse > 0 { // all rush together, and rest
			gap = time.Millisecond / 2
			now := time.Duration(time.Now().UnixNano())
			if passed := now % sc.pulse; passed > sc.pulse/4 || passed > sc.pulse/40 && now/sc.pulse%2 == 0 {
				time.Sleep(sc.pulse - passed)
			}
		}
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(gap)))
		time.Sleep(time.Duration(s.stopped.Load()) - time.Since(s.origin))
		cs := []charge{{api, 1}}
		if len(sc.limiters) > half && rng.IntN(2) == 0 {
			cs[0].which = half
		}
		if rng.IntN(5) == 0 {
			cs[0].n += rng.Int64N(4)
		}
		if rng.IntN(6) == 0 {
			for which := beside; which <= log; which++ {
				if rng.IntN(2) == 0 {
					cs = append(cs, charge{which, 1 + rng.Int64N(2)})
				}
			}
			rng.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
		}
		sc.request(s, rng, cs)
	}
}

// request asks for charges, notes what is admitted, and settles some of the first.
func (sc *schedule) request(s *server, rng *rand.Rand, cs []charge) {
	defer func() {
		if r := recover(); r != nil && r != s.link {
			panic(r)
		}
	}()
	var first int64
	asked, cells := time.Now(), cellsOf(sc.limiters, cs)
	allowed, err := ask(context.WithValue(context.Background(), called{}, &first), s.Leases, cells)
	switch {
	case err != nil:
	case allowed:
		notes := sc.note(cs, cells, first)
		if rng.IntN(10) == 0 {
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			sc.settle(s, rng, cs[:1], cells[:len(sc.limiters[cs[0].which])], notes[0])
		}
	case !slices.ContainsFunc(cells, func(c step.Cell) bool { return c.Source == step.SourceLocal }):
		sc.because(s, asked, cells, first > 0)
	}
}

// note notes what was admitted of charges. What a lease covers is spent now, or when the store was first called for the
// rest. What the store charges is spent at its instant. Of a settlement, only what had room is spent. What is decided
// while the way is lost is not noted.
func (sc *schedule) note(cs []charge, cells []step.Cell, first int64) (notes []*admitted) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for _, c := range cs {
		a := &admitted{which: c.which, at: cells[0].Instant, n: cells[0].Units}
		switch cells[0].Source {
		case step.SourceLocal:
			a.n = 0
		case step.SourceLease:
			sc.local++
			if a.at = first; first == 0 {
				a.at = time.Now().UnixMicro()
			}
		}
		for range sc.limiters[c.which] {
			a.n = min(a.n, cells[0].Units-cells[0].Shortfall)
			cells = cells[1:]
		}
		if notes = append(notes, a); a.n > 0 {
			sc.all = append(sc.all, a)
		}
	}
	return notes
}

// settle corrects a charge. Units that are given back may be used by others as soon as the call is sent.
func (sc *schedule) settle(s *server, rng *rand.Rand, cs []charge, cells []step.Cell, a *admitted) {
	n := 1 + rng.Int64N(2)
	if rng.IntN(4) > 0 {
		n = -1 - rng.Int64N(cs[0].n)
		sc.mu.Lock()
		a.n += n
		sc.mu.Unlock()
	}
	var first int64
	source := cells[0].Source
	cells = withUnits(cells, n)
	if _, err := s.Ask(context.WithValue(context.Background(), called{}, &first), step.Settle, cells); err == nil {
		sc.note(cs, cells, first)
	}
	if source == step.SourceLocal && cells[0].Source == step.SourceLease {
		panic("what was charged here is settled in a lease")
	}
}

// adversary takes leases away from a server, and spends each at its last instant, if it is not over. Then it charges all
// that is left in the store.
func (sc *schedule) adversary(s *server, rng *rand.Rand) {
	for time.Now().Before(sc.end) {
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		a, until, now := &admitted{}, instant{}, s.now()
		s.entryOf(sc.limiters[api], func(e *entry) { a.n, until, e.units = e.liveUnits(now), e.endsHere, 0 })
		if a.n == 0 {
			continue
		}
		sc.hoard.Add(a.n)
		rest := min(until.monotonic-now.monotonic, until.wall-now.wall)
		time.Sleep(time.Duration(rest - rest/1000 - 1)) // the fastest clock
		a.at, now = time.Now().UnixMicro(), s.now()
		sc.mu.Lock()
		if now.monotonic < until.monotonic && now.wall < until.wall {
			sc.all = append(sc.all, a)
		}
		sc.mu.Unlock()
		sc.hoard.Add(-a.n)
		cells := sc.limiters[api].cells(key, 1000) // a report takes all that is left
		if _, err := sc.shared.Ask(context.Background(), step.Settle, cells); err == nil {
			sc.note([]charge{{api, 1000}}, cells, 0)
		}
	}
}

// start starts a server with its clients, and sometimes an adversary.
func (sc *schedule) start() {
	s := &server{link: newLink(sc.shared), ppm: sc.ppm[sc.rng.IntN(len(sc.ppm))]}
	s.link.rng, s.link.loss = sc.split(), []int64{0, 0, 3, 20}[sc.rng.IntN(4)]
	s.link.slow.Store(sc.rng.Int64N(5) * int64(time.Millisecond))
	if sc.rng.IntN(3) == 0 {
		s.link.local = memory.New(0)
	}
	s.Leases = New(s.link, s.link, leaseFor, time.Second)
	s.clock = s.clocks
	sc.servers = append(sc.servers, s)
	gap := time.Duration(1+sc.rng.IntN(20)) * time.Millisecond
	for range 1 + sc.rng.IntN(3) {
		rng := sc.split()
		sc.wait.Go(func() { sc.client(s, rng, gap) })
	}
	if rng := sc.split(); len(sc.limiters) <= half && rng.IntN(3) == 0 {
		sc.wait.Go(func() { sc.adversary(s, rng) })
	}
}

// happens lets something happen to a server, or to the shared store.
func (sc *schedule) happens(s *server, resets bool) {
	pause := time.Duration(sc.rng.IntN(400)) * time.Millisecond
	switch event := sc.rng.IntN(5); event {
	case 0, 1: // it stops, or the machine is suspended
		s.stopped.Store(int64(time.Since(s.origin) + pause))
		if event == 1 && s.stepped.Load() == 0 {
			s.suspended.Add(int64(pause))
		}
	case 2: // the wall clock is set: if it is set back while the machine is suspended, no clock tells
		if by := sc.rng.IntN(1000) - 500; s.suspended.Load() == 0 {
			s.stepped.Add(int64(by) * int64(time.Millisecond))
		}
	case 3: // it crashes, and another starts
		s.link.dead.Store(true)
		sc.start()
	case 4:
		if resets {
			leased := sc.hoard.Load()
			for _, s := range sc.servers {
				s.entryOf(sc.limiters[api], func(e *entry) { leased += e.units })
			}
			sc.lost += 2 * leased // before, and as it arrives
			sc.resets++
			_, _ = sc.shared.Ask(context.Background(), step.Reset, sc.limiters[api].cells(key, 0))
		}
	}
}

// run runs the schedule, and returns by how much a policy was exceeded at worst.
func (sc *schedule) run() (over int64) {
	sc.shared = memory.New(0)
	sc.end = time.Now().Add(3 * time.Second)
	for range 1 + sc.rng.IntN(4) {
		sc.start()
	}
	for events := sc.rng.IntN(3); time.Now().Before(sc.end); {
		time.Sleep(time.Duration(100+sc.rng.IntN(400)) * time.Millisecond)
		if s := sc.servers[sc.rng.IntN(len(sc.servers))]; events > 0 {
			sc.happens(s, events == 2)
		}
	}
	sc.wait.Wait()
	for _, s := range sc.servers {
		_ = s.Close(context.Background())
	}
	time.Sleep(10 * time.Second) // for what a call gives back that was under way
	for which, l := range sc.limiters {
		if which == log || which == half && len(sc.servers) > 1 {
			continue
		}
		for _, p := range l {
			over = max(over, sc.exceeded(which, p.Numbers))
		}
	}
	return over
}

// exceeded returns by how much a policy was exceeded at worst, by brute force over all instants of admissions by its
// limiter, at which all plans count.
func (sc *schedule) exceeded(which int, m step.Numbers) (over int64) {
	all := slices.DeleteFunc(slices.Clone(sc.all), func(a *admitted) bool { return a.which%half != which%half })
	slices.SortFunc(all, func(a, b *admitted) int { return int(a.at - b.at) })
	limit, g := m.Limit, m.Period
	switch which { // what was used before a reset, under either plan, is forgotten
	case api:
		limit += m.Limit*sc.resets + sc.lost
	case half:
		limit += 2*m.Limit*sc.resets + sc.lost
	}
	if m.Kind == step.SlidingWindow {
		g = (m.Period + m.Resolution - 1) / m.Resolution
	}
	for i, a := range all {
		if a.n == 0 || which == half && a.which != half {
			continue
		}
		var sum, old int64 // in the window that ends with a; in the sub-window partly inside
		for _, b := range all[:i+1] {
			switch back := a.at/g - b.at/g; { // sub-windows
			case m.NeverOver && a.at-b.at < m.Period, !m.NeverOver && back < max(m.Resolution, 1):
				sum += b.n
			case !m.NeverOver && back == m.Resolution:
				old += b.n
			}
		}
		sum += (old*(g-a.at%g) + g - 1) / g
		over = max(over, sum-limit)
	}
	return over
}

func fixed(n int64, d time.Duration) step.Numbers {
	return step.Numbers{Kind: step.FixedWindow, Limit: n, Period: d.Microseconds()}
}

func sliding(n int64, d time.Duration, k int64) step.Numbers {
	return step.Numbers{Kind: step.SlidingWindow, Limit: n, Period: d.Microseconds(), Resolution: k}
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
		{step.Numbers{Kind: step.Calendar, Limit: 300, Period: step.Day}},
	}
}

// limiters returns those of a schedule: a log is of so many units a minute.
func limiters(numbers []step.Numbers, units int64) []limiter {
	halved := slices.Clone(numbers)
	for i := range halved {
		halved[i].Limit /= 2
	}
	return []limiter{
		newLimiter("api", numbers...),
		newLimiter("beside", neverOver(sliding(30, 200*time.Millisecond, 4))),
		newLimiter("log", step.Numbers{Kind: step.SlidingLog, Limit: units, Period: 60e6}),
		newLimiter("api", halved...),
	}
}

func simulate(t *testing.T, seed int, ppm ...int64) (over int64, sc *schedule) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		sc = &schedule{rng: rng, ppm: ppm, limiters: limiters(sets()[seed%len(sets())], 1000)}
		if rng.IntN(4) > 0 {
			sc.limiters = sc.limiters[:half]
		}
		if rng.IntN(3) == 0 {
			sc.pulse = time.Duration(100+rng.IntN(500)) * time.Millisecond
		}
		time.Sleep(time.Duration(rng.IntN(1_000_000)) * time.Microsecond)
		if sc.limiters[api][0].Kind == step.Calendar { // half of the schedule is before midnight
			time.Sleep(24*time.Hour - 2*time.Second)
		}
		over = sc.run()
	})
	return over, sc
}

// In no schedule does a window of any policy hold more than its limit, and each refusal has a cause.
func TestNeverOver(t *testing.T) {
	local, all := 0, 0
	for i := *begin; i < *begin+*schedules; i++ {
		over, sc := simulate(t, i, -999, 0, 999)
		if over > 0 || len(sc.without) > 0 {
			t.Errorf("schedule %d: %d more than admitted, refusals without a cause: %v (resets %d, limiters %d)", i, over, sc.without, sc.resets, len(sc.limiters))
		}
		local, all = local+sc.local, all+len(sc.all)
	}
	t.Logf("%d schedules: %d of %d were admitted from leases", *schedules, local, all)
	if local < all/5 {
		t.Errorf("only %d of %d were admitted from leases: the test shows little", local, all)
	}
}

// The schedules find it, under each set of policies, if clocks run at a tenth of the speed: then leases and refusals last for
// longer than is stated.
func TestNeverOverFindsLateClocks(t *testing.T) {
	for set := range sets() {
		over, without, i := int64(0), 0, set
		for ; i < 200*len(sets()) && (over <= 0 || without == 0); i += len(sets()) {
			n, sc := simulate(t, i, -900_000)
			over, without = max(over, n), without+len(sc.without)
		}
		if t.Logf("set %d: found before schedule %d", set, i); over <= 0 || without == 0 {
			t.Error("not found")
		}
	}
}
