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
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

var (
	schedules = flag.Int("schedules", 60, "how many random schedules the simulation runs")
	first     = flag.Int("first", 0, "the number of the first of them, to run one again")
)

var errLink = errors.New("the link is down")

// A link is the way from one server to the shared store. It is slow, and loses calls and
// replies.
type link struct {
	core.Store

	slow  atomic.Int64 // nanoseconds, at most, each way
	even  bool         // it always takes that long
	loss  int          // of a hundred
	dead  atomic.Bool
	calls atomic.Int64

	mu      sync.Mutex
	rng     *rand.Rand
	longest time.Duration // of the calls
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

func (l *link) lost() bool { return l.random(100) < int64(l.loss) || l.dead.Load() }

// cross makes a call, or loses it, or its reply.
func (l *link) cross(call func() error) error {
	l.calls.Add(1)
	defer func(began time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.longest = max(l.longest, time.Since(began))
	}(time.Now())
	l.travel()
	if l.lost() {
		return errLink
	}
	if err := call(); err != nil {
		return err
	}
	if !l.even && l.random(50) == 0 {
		time.Sleep(time.Duration(20 * l.slow.Load()))
	}
	l.travel()
	if l.lost() {
		return errLink
	}
	return nil
}

// calledAt is the key of when the store was first called, in microseconds: what is spent from leases
// beside was spent then.
type calledAt struct{}

func (l *link) Ask(ctx context.Context, q *store.Question) error {
	if at, ok := ctx.Value(calledAt{}).(*int64); ok && *at == 0 {
		*at = time.Now().UnixMicro()
	}
	return l.cross(func() error { return l.Store.Ask(ctx, q) })
}

// A server is one process with its clocks.
type server struct {
	*Store

	link      *link
	limiters  []*store.Limiter // plans of one name
	others    []*store.Limiter // of other names: one that is leased, one that is not
	begin     time.Time
	ppm       int64
	suspended atomic.Int64 // the monotonic clock stood still for so long, in nanoseconds
	stepped   atomic.Int64 // the wall clock was set ahead
	stopped   atomic.Int64 // until then, in nanoseconds since it began
}

func (s *server) clocks() instant {
	ns := int64(time.Since(s.begin))
	ns += ns * s.ppm / 1_000_000
	return instant{ns - s.suspended.Load(), ns + s.stepped.Load()}
}

// An admitted is units that were admitted at an instant of the store's clock.
type admitted struct{ at, n int64 }

// A schedule is one random run.
type schedule struct {
	*testing.T

	rng      *rand.Rand
	endless  bool // a mutant: leases are spent after they are over
	full     bool // a mutant: the burst of a bucket is not less than what is promised
	stubborn bool // a mutant: refusals hold for long
	policies []core.Policy
	plans    bool // some use the policies with half the limits, which share their state

	pulse time.Duration

	shared  *ledger
	mu      sync.Mutex
	all     []admitted
	besides []admitted
	local   int // decisions
	resets  int64
	hoard   []*hoarded
	lost    int64 // units that were leased when a key was reset
	refused int
	without []string // refusals without a cause
}

// A ledger is a store that writes down what is left in it.
type ledger struct {
	core.Store

	limiters []*store.Limiter
	mu       sync.Mutex
	lefts    []left
}

// A left is what was left at some time, for each limiter.
type left struct {
	at    time.Time
	units []int64
}

func newLedger(limiters ...*core.Limiter) *ledger {
	l := &ledger{}
	for _, x := range limiters {
		l.limiters = append(l.limiters, x.Prepared())
	}
	return l
}

func (l *ledger) Ask(ctx context.Context, q *store.Question) error {
	err := l.Store.Ask(ctx, q)
	if q.Mode != store.Peek {
		l.look()
	}
	return err
}

// look writes down what is left now.
func (l *ledger) look() {
	now := left{at: time.Now()}
	for _, x := range l.limiters {
		var r store.Result
		if err := asking.Decide(context.Background(), l.Store, store.Peek, &r, store.Charge{Limiter: x, Key: key, N: 1}); err != nil {
			panic(err)
		}
		now.units = append(now.units, least(&r))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lefts = append(l.lefts, now)
}

// hadLess reports whether there were fewer units than these at some time since.
func (l *ledger) hadLess(since time.Time, limiter int, units int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range slices.Backward(l.lefts) {
		if x.at.Before(since) {
			return false
		}
		if x.units[limiter] < units {
			return true
		}
	}
	return false
}

// stated is for how long a refusal holds at most: a twentieth of what servers lease for, and 1 ms, as
// their clocks are slow.
const stated = leaseFor/20 + time.Millisecond

const leaseFor = 200 * time.Millisecond

// looking is how often the ledger is looked at, beside each change.
const looking = 5 * time.Millisecond

// because notes a refusal of charges by a server that was asked at that time, and whether the
// store had too little for one of them: meanwhile, or before, by no more than a pause and a call.
func (sc *schedule) because(s *server, asked time.Time, cs []store.Charge) {
	s.link.mu.Lock()
	call := s.link.longest
	s.link.mu.Unlock()
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.refused++
	for _, c := range cs {
		since := asked.Add(-stated - time.Duration(s.suspended.Load()) - call - looking)
		which := slices.Index(slices.Concat(s.limiters, s.others), c.Limiter)
		if len(s.limiters) == 1 && which > 0 {
			which++ // there is no plan of half the limits
		}
		if sc.shared.hadLess(since, which, c.N) {
			return
		}
	}
	sc.without = append(sc.without, fmt.Sprintf("%v at %v, with calls of up to %v", cs, asked, call))
}

const key = "key"

func (sc *schedule) server() *server {
	s := &server{begin: time.Now(), ppm: []int64{-999, 0, 999}[sc.rng.IntN(3)]}
	s.link = &link{
		Store: sc.shared, rng: rand.New(rand.NewPCG(sc.rng.Uint64(), 1)),
		loss: []int{0, 0, 3, 20}[sc.rng.IntN(4)],
	}
	s.link.slow.Store(sc.rng.Int64N(5) * int64(time.Millisecond))
	var err error
	if s.Store, err = New(s.link, Config{For: leaseFor}); err != nil {
		sc.Fatal(err)
	}
	s.now = s.clocks
	prepare := func(name string, ps []core.Policy) *store.Limiter {
		l, err := core.New(s.Store, name, ps...)
		if err != nil {
			sc.Fatal(err)
		}
		return l.Prepared()
	}
	s.limiters = []*store.Limiter{prepare("api", sc.policies)}
	if sc.plans {
		s.limiters = append(s.limiters, prepare("api", halves(sc.policies)))
	}
	s.others = []*store.Limiter{
		prepare("beside", []core.Policy{sc.beside()}),
		prepare("log", []core.Policy{aLog}),
	}
	return s
}

var aLog = core.SlidingLog(core.PerMinute(1000))

// halves returns policies with half the limits.
func halves(ps []core.Policy) []core.Policy {
	half := slices.Clone(ps)
	for i := range half {
		half[i] = half[i].Share(2)
	}
	return half
}

// beside is the policy of a limiter that is charged together with the others.
func (*schedule) beside() core.Policy {
	return core.SlidingWindow(core.Rate{Events: 30, Per: 200 * time.Millisecond}).Resolution(4).NeverOver()
}

// note records what was admitted. It returns the record, so that it can be taken back.
func (sc *schedule) note(r *store.Result, n int64) int {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	at := r.At // the charge is spent at once
	if r.Source == store.SourceLease {
		at = time.Now().UnixMicro()
		sc.local++
	}
	sc.all = append(sc.all, admitted{at, n})
	return len(sc.all) - 1
}

// together asks for several charges at once, and records those of the others: c is spent at
// that instant.
func (sc *schedule) together(s *server, rng *rand.Rand, c store.Charge) (r store.Result, at int64, err error) {
	cs := []store.Charge{c}
	for _, l := range s.others {
		if rng.IntN(2) == 0 {
			cs = append(cs, store.Charge{Limiter: l, Key: key, N: 1 + rng.Int64N(2)})
		}
	}
	rng.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
	shares, places := s.divide(cs)
	asked := time.Now()
	called := int64(0)
	r, err = s.decideShares(context.WithValue(context.Background(), calledAt{}, &called), shares, places)
	if err == nil && !r.Allowed {
		sc.because(s, asked, cs)
	}
	if err != nil || !r.Allowed {
		return r, 0, err
	}
	for i, h := range shares {
		spent := h.at
		switch {
		case r.Source == store.SourceLease: // just now
			spent = time.Now().UnixMicro()
		case h.held:
			spent = max(called, h.at) // which is later if the first call was refused
		}
		switch cs[i].Limiter {
		case c.Limiter:
			at = spent
		case s.others[0]:
			sc.mu.Lock()
			sc.besides = append(sc.besides, admitted{spent, cs[i].N})
			sc.mu.Unlock()
		}
	}
	return r, at, nil
}

// report counts what has been used, as a Store does, and records what of it had room: that part is as
// if it had been admitted.
func (sc *schedule) report(s *server, rng *rand.Rand, c store.Charge) {
	p := s.place(s.prepared(c.Limiter), key)
	c.Anyway = true
	c.N *= 1 + rng.Int64N(4)
	rest := p.cover(s.Store, c.N, new(store.Result))
	sc.note(&store.Result{Source: store.SourceLease}, c.N-rest)
	if rest == 0 {
		return
	}
	c.N = rest
	q := &store.Question{Charges: []store.Charge{c}}
	if r, err := asking.Ask(context.Background(), s, q); err == nil && r.Source == store.SourceStore {
		sc.note(&r, rest-q.Charges[0].Uncovered)
	}
}

// client asks for a while, as fast as gap says, and settles and reports some.
func (sc *schedule) client(s *server, rng *rand.Rand, gap time.Duration, end time.Time) {
	ctx := context.Background()
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
		c := store.Charge{Limiter: s.limiters[rng.IntN(len(s.limiters))], Key: key, N: n}
		var r store.Result
		var err error
		at, asked, mode := int64(0), time.Now(), rng.IntN(40)
		switch mode {
		case 8:
			sc.report(s, rng, c)
			continue
		case 0, 3, 4, 5, 6, 7:
			r, at, err = sc.together(s, rng, c)
		case 1:
			r, err = asking.Ask(ctx, s, &store.Question{Charges: []store.Charge{c}, Extra: 2})
			c.N = n + r.Extra
		case 2:
			err = asking.Decide(ctx, s, store.Peek, new(store.Result), c)
		default:
			err = asking.Decide(ctx, s, store.Allow, &r, c)
		}
		if mode != 2 && at == 0 && err == nil && !r.Allowed && (mode == 1 || mode > 7) {
			sc.because(s, asked, []store.Charge{c})
		}
		if err != nil || !r.Allowed {
			continue
		}
		i := sc.note(&r, c.N)
		if at > 0 {
			sc.mu.Lock()
			sc.all[i].at = at
			sc.mu.Unlock()
		}
		if rng.IntN(10) == 0 {
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			c = asking.Settled(c, &r, rng.Int64N(c.N))
			sc.mu.Lock()
			sc.all[i].n = c.Actual // others may have it as soon as the call is sent
			sc.mu.Unlock()
			_ = asking.Settle(ctx, s, c)
		}
	}
}

// A hoarded lease was taken away from a server.
type hoarded struct {
	lease

	server *server
}

// adversary takes leases away from a server. At the last instant of one it spends all that
// are hoarded and not over, and charges all that is left in the store.
func (sc *schedule) adversary(s *server, rng *rand.Rand, end time.Time) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
		l := s.prepared(s.limiters[0])
		p := s.place(l, key)
		b := &hoarded{server: s}
		p.mu.Lock()
		if e := p.find(); e != nil {
			i := rng.IntN(2)
			b.lease, e.leases[i] = e.leases[i], lease{}
		}
		p.mu.Unlock()
		now := s.now()
		if b.left == 0 || !b.live(now) {
			continue
		}
		sc.mu.Lock()
		sc.hoard = append(sc.hoard, b)
		sc.mu.Unlock()
		rest := min(b.until.mono-now.mono, b.until.wall-now.wall)
		time.Sleep(time.Duration(rest - rest/1000 - 1)) // the fastest clock
		if sc.endless && rng.IntN(10) > 0 {
			continue
		}
		sc.mu.Lock()
		hoard := sc.hoard
		sc.hoard = nil
		sc.mu.Unlock()
		for _, b := range hoard {
			if b.live(b.server.now()) || sc.endless {
				sc.note(&store.Result{Source: store.SourceLease}, b.left)
			}
		}
		r, err := asking.Ask(context.Background(), sc.shared, &store.Question{Charges: []store.Charge{p.charge(1)}, Extra: 1000})
		if err == nil && r.Allowed {
			sc.note(&r, 1+r.Extra)
		}
	}
}

// holdOn makes a refusal hold for another while.
func (s *server) holdOn() {
	for _, l := range s.limiters {
		p, now := s.place(s.prepared(l), key), s.now()
		p.mu.Lock()
		if e := p.find(); e != nil && e.paused(now) {
			e.refusal.until = now.mono + int64(40*time.Millisecond)
		}
		p.mu.Unlock()
	}
}

// leased returns what the servers have leased.
func (sc *schedule) leased(servers []*server) (n int64) {
	sc.mu.Lock()
	for _, b := range sc.hoard {
		n += b.left
	}
	sc.mu.Unlock()
	for _, s := range servers {
		for _, l := range s.limiters {
			p := s.place(s.prepared(l), key)
			p.mu.Lock()
			if e := p.find(); e != nil {
				n += e.leases[0].left + e.leases[1].left
			}
			p.mu.Unlock()
		}
	}
	return n
}

// ledger returns the store that the servers share.
func (sc *schedule) ledger() *ledger {
	shared := memstore.New(memstore.Config{})
	limiter := func(name string, ps ...core.Policy) *core.Limiter {
		l, err := core.New(shared, name, ps...)
		if err != nil {
			sc.Fatal(err)
		}
		return l
	}
	l := newLedger(limiter("api", sc.policies...), limiter("api", halves(sc.policies)...),
		limiter("beside", sc.beside()), limiter("log", aLog))
	l.Store = shared
	return l
}

// run runs the schedule, and returns by how much a policy was exceeded at worst.
func (sc *schedule) run() (over int64) {
	sc.shared = sc.ledger()
	end := time.Now().Add(3 * time.Second)
	var wait sync.WaitGroup
	wait.Go(func() {
		for ; time.Now().Before(end); time.Sleep(looking) {
			sc.shared.look()
		}
	})
	var servers []*server
	start := func(s *server) {
		servers = append(servers, s)
		gap := time.Duration(1+sc.rng.IntN(20)) * time.Millisecond
		for range 1 + sc.rng.IntN(3) {
			rng := rand.New(rand.NewPCG(sc.rng.Uint64(), 2))
			wait.Go(func() { sc.client(s, rng, gap, end) })
		}
		if !sc.plans && (sc.endless || sc.rng.IntN(3) == 0) {
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
				for _, s := range slices.Clone(servers) {
					s.holdOn()
				}
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
				_ = asking.Reset(context.Background(), sc.shared, s.limiters[0], key)
			}
		}
	}
	wait.Wait()
	for _, s := range servers {
		_ = s.Close(context.Background())
	}
	for _, p := range sc.policies {
		over = max(over, sc.exceeded(p, sc.all, sc.resets, sc.lost))
	}
	return max(over, sc.exceeded(sc.beside(), sc.besides, 0, 0))
}

// exceeded returns by how much a policy was exceeded at worst, by brute force.
func (sc *schedule) exceeded(p core.Policy, all []admitted, resets, lost int64) (over int64) {
	slices.SortFunc(all, func(a, b admitted) int { return int(a.at - b.at) })
	st, err := core.New(sc.shared, "oracle", p)
	if err != nil {
		sc.Fatal(err)
	}
	m := st.Prepared().Spec().Policies[0].Step.Numbers()
	if m.Algorithm == step.TokenBucket {
		// In any span, the whole burst and what refills, in units of 1/Period.
		level, last := int64(0), int64(0)
		for _, a := range all {
			level = max(level-(a.at-last)*m.Limit, 0) + a.n*m.Period
			last = a.at
			burst := m.Burst
			if !sc.full {
				burst += m.Refill()
			}
			excess := level - (burst*(1+resets)+lost)*m.Period
			over = max(over, (excess+m.Period-1)/m.Period)
		}
		return over
	}
	most := m.Limit*(1+resets) + lost
	g := grid(st.Prepared().Spec().Policies[0].Step)
	for i, a := range all {
		if a.n == 0 {
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

// sets are what the schedules limit by.
func sets() [][]core.Policy {
	ms := time.Millisecond
	per := func(n int64, d time.Duration) core.Rate { return core.Rate{Events: n, Per: d} }
	return [][]core.Policy{
		{core.TokenBucket(per(200, 1000*ms), 100).Leasable(100 * ms)},
		{core.TokenBucket(per(1000, 1000*ms), 60).Leasable(15 * ms)},
		{core.TokenBucket(per(70, 100*ms), 60).Leasable(20 * ms).Named("a"), core.FixedWindow(per(150, 500*ms)).Named("b")},
		{core.FixedWindow(per(100, 500*ms))},
		{core.FixedWindow(per(40, 100*ms))},
		{core.SlidingWindow(per(200, 700*ms))},
		{core.SlidingWindow(per(200, 700*ms)).Resolution(7).NeverOver()},
		{core.SlidingWindow(per(100, 100*ms)).Resolution(1).NeverOver()},
		{core.SlidingWindow(per(60, 300*ms)).Resolution(2).Named("a"), core.FixedWindow(per(150, 1000*ms)).Named("b")},
	}
}

func simulate(t *testing.T, seed uint64, policies []core.Policy, mutate func(*schedule)) (over int64, sc *schedule) {
	t.Helper()
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			sc = &schedule{T: t, rng: rng, policies: policies, plans: rng.IntN(4) == 0}
			if rng.IntN(3) == 0 {
				sc.pulse = time.Duration(100+rng.IntN(500)) * time.Millisecond
			}
			mutate(sc)
			time.Sleep(time.Duration(rng.IntN(1_000_000)) * time.Microsecond)
			over = sc.run()
		})
	})
	return over, sc
}

// In no schedule does a window of any policy hold more than its limit, and each refusal has a cause.
func TestNeverOver(t *testing.T) {
	local, all, refused := 0, 0, 0
	for i := *first; i < *first+*schedules; i++ {
		policies := sets()[i%len(sets())]
		over, sc := simulate(t, uint64(i), policies, func(*schedule) {})
		if over > 0 {
			t.Errorf("schedule %d: %d more than %v admit", i, over, policies)
		}
		if len(sc.without) > 0 {
			t.Errorf("schedule %d, %v: %d of %d refusals have no cause: %s", i, policies, len(sc.without), sc.refused, sc.without[0])
		}
		local, all, refused = local+sc.local, all+len(sc.all), refused+sc.refused
	}
	t.Logf("%d of %d were admitted from leases, %d were refused", local, all, refused)
	if local < all/5 {
		t.Errorf("only %d of %d were admitted from leases: the test shows little", local, all)
	}
}

// The schedules find it if leases have no end, under each set of policies.
func TestNeverOverFindsLeasesWithoutEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, policies := range sets() {
		finds(t, policies, func(sc *schedule) { sc.plans, sc.endless = false, true })
	}
}

// They find it if a bucket admits its whole burst, beside what is leased.
func TestNeverOverFindsWholeBursts(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	finds(t, sets()[1], func(sc *schedule) { sc.plans, sc.full = false, true })
}

// They find it if refusals hold for longer than is stated.
func TestNeverOverFindsStubbornRefusals(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for seed := range uint64(1000) {
		_, sc := simulate(t, seed, sets()[3], func(sc *schedule) { sc.plans, sc.stubborn = false, true })
		if len(sc.without) > 0 {
			t.Logf("found by schedule %d: %s", seed, sc.without[0])
			return
		}
	}
	t.Error("not found")
}

// finds runs schedules with a mutant until one is over.
func finds(t *testing.T, policies []core.Policy, mutate func(*schedule)) {
	t.Helper()
	for seed := range uint64(1000) {
		if over, _ := simulate(t, seed, policies, mutate); over > 0 {
			t.Logf("%v: found by schedule %d", policies, seed)
			return
		}
	}
	t.Errorf("%v: not found", policies)
}
