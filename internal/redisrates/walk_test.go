package redisrates

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/storetest"
)

var dated = flag.Bool("dated", false, "a random walk is about calendars only")

var questions = flag.Int("questions", 60_000, "how many questions of a random walk are asked")

// A model decides by package step alone, in the order of the questions. It keeps what a value in Redis would say: a
// question that writes nothing changes nothing.
type model map[string][]int64

func (m model) name(c *step.Cell) string { return c.Key.Reveal() + suffix(c.Policy) }

// state returns a copy of what a cell has at an instant, and whether it is ahead of the clock by more than it can be:
// then nothing is left as of now.
func (m model) state(c *step.Cell, now int64) (s []int64, ahead bool) {
	p, old := c.Policy, m[m.name(c)]
	if old == nil {
		return p.New(), false
	}
	s = slices.Clone(old)
	switch kept := p.Stored(); kept.Algorithm {
	case step.Level:
		most := kept.DebtOffset
		if kept.TickStep > 1 { // a window that has begun has begun
			most += kept.TickStep
		}
		ahead = s[1]-p.Clock(now) > most
		p.SetLevel(s, now, s[1])
	case step.Window:
		_, spans := p.Lengths()
		spans = max(spans-2, 1)
		ahead = s[0]-2*spans*kept.SubWindow > now
	case step.Log:
		if ahead = s[0]-2*p.Period > now; ahead {
			c.Admits(s, now) // which expires
			n := max(s[2], p.Capacity())
			full := step.Cell{Policy: p, Units: n}
			s = full.Room(p.New(), now, true)
			full.Settle(s, now)
		}
	default:
		panic(step.Missing(kept.Algorithm))
	}
	return s, ahead
}

func (m model) ask(mode step.Mode, cells []step.Cell, now int64) (allowed bool) {
	states, ahead := make([][]int64, len(cells)), make([]bool, len(cells))
	allowed = true
	for i := range cells {
		states[i], ahead[i] = m.state(&cells[i], now)
		allowed = cells[i].Admits(states[i], now) && allowed
	}
	for i := range cells {
		c := &cells[i]
		s := c.Room(states[i], now, false)
		c.Take(s, now, allowed && mode == step.Allow)
		if !allowed {
			c.CountRefused(s, now, step.Allow)
		}
		if mode == step.Allow && c.Units > 0 && (allowed || c.Policy.CountDenied || ahead[i]) {
			m[m.name(c)] = s
		}
	}
	return allowed
}

func (m model) settle(cells []step.Cell, now int64) (fits bool) {
	fits = true
	for i := range cells {
		c := &cells[i]
		s, ahead := m.state(c, now)
		s = c.Room(s, now, true)
		before := used(c.Policy, s, now)
		c.Settle(s, now)
		fits = fits && c.Shortfall == 0
		after := used(c.Policy, s, now)
		if after == before && !ahead && (c.Units < 0 || c.Policy.Stored().Algorithm == step.Level) {
			continue
		}
		m[m.name(c)] = s
		if after == 0 && !keptAtZero(c.Policy, s) {
			delete(m, m.name(c))
		}
	}
	return fits
}

// keptAtZero reports whether a value of which all was given back stays: it says that a window has begun, which no one has to
// say of the first.
func keptAtZero(p *step.Policy, s []int64) bool {
	if p.Stored().Algorithm == step.Level {
		return p.Stored().TickStep > 1 && s[1] > 0
	}
	return p.Kind == step.FixedWindow && !p.FromFirst
}

// used returns how much is used, in whatever unit.
func used(p *step.Policy, s []int64, now int64) int64 {
	switch p.Stored().Algorithm {
	case step.Level:
		if kept := p.Stored(); kept.TickStep > 1 && s[1] >= p.Clock(now) {
			return s[1] % kept.TickStep
		}
		return max(s[1]-p.Clock(now), 0)
	case step.Window:
		c := step.Cell{Policy: p}
		c.Admits(s, now) // which moves out what has expired
		return s[1]
	case step.Log:
		c := step.Cell{Policy: p}
		c.Admits(s, now)
		return s[2]
	default:
		panic(step.Missing(p.Stored().Algorithm))
	}
}

// randomNumbers returns those of a policy. Its period is one of a few, so that plans share states.
func randomNumbers(r *rand.Rand, periods []int64) step.Numbers {
	if r.IntN(6) == 0 || *dated {
		m := storetest.Dated(r)
		m.Zone, m.Starting = storetest.Zones[r.IntN(2)], m.Starting%2*31
		return m
	}
	m := step.Numbers{Kind: step.Kind(1 + r.IntN(int(step.Calendar)-1)), Period: periods[r.IntN(len(periods))], Limit: 1 + r.Int64N(12)}
	switch m.Kind {
	case step.TokenBucket:
		if m.Limit = 1 + r.Int64N(min(m.Period, 1<<(1+r.IntN(20)))); r.IntN(2) == 0 {
			m.Limit = []int64{1, 7, 10}[r.IntN(3)]
		}
		m.Burst = 1 + r.Int64N(12)
		if m.Debt = m.DefaultDebt(); r.IntN(3) == 0 {
			m.Debt = min(r.Int64N(3)*m.Burst, m.Debt)
		}
	case step.FixedWindow:
		m.FromFirst, m.CountDenied = r.IntN(3) == 0, r.IntN(3) == 0
		if r.IntN(6) == 0 {
			m.Limit = m.Period / (1 + r.Int64N(12)) // about where it becomes a window of another form
		}
	case step.SlidingWindow:
		m.Resolution = []int64{1, 3, 10}[r.IntN(3)]
		m.NeverOver, m.CountDenied = r.IntN(3) == 0, r.IntN(3) == 0
		if r.IntN(8) == 0 {
			m.Limit = 1 + r.Int64N(1<<40)
		}
	case step.SlidingLog:
		m.CountDenied = r.IntN(3) == 0
		if r.IntN(8) == 0 {
			m.Limit = 1 + r.Int64N(step.MaxLog)
		}
	case step.MinInterval:
		m.Limit = 0
	default:
		panic(step.Missing(m.Kind))
	}
	return m
}

// A charge is one that was admitted, and can be settled.
type charge struct{ cells []step.Cell }

// A walk asks random questions, of random plans of one limiter for a few keys.
type walk struct {
	*testing.T
	*rand.Rand

	store *Decider
	model model
	plans [][]step.Policy
	now   int64 // 0: the time is the server's
	made  []charge
	round int
	busy  stall
}

func (w *walk) plan() {
	periods := []int64{1 + w.Int64N(1_000_000_000), 60_000_000}
	if w.now == 0 {
		periods = []int64{1000 + w.Int64N(300_000), 20_000}
	} else if w.IntN(20) == 0 {
		periods[0] = step.MaxSpan - w.Int64N(1<<51)
	}
	w.plans = nil
	for range 3 {
		var ps []step.Policy
		for i := range 1 + w.IntN(3) {
			p, err := step.New("l", "p"+strconv.Itoa(i), randomNumbers(w.Rand, periods))
			if err == nil {
				ps = append(ps, p)
			}
		}
		if len(ps) > 0 {
			if err := w.store.Prepare(ps); err != nil {
				w.Fatal(err)
			}
			w.plans = append(w.plans, ps)
		}
	}
	w.model, w.made = model{}, nil
}

// units draws as many as are asked for at once.
func (w *walk) units(ps []step.Policy) int64 {
	most := int64(step.MaxInt)
	for i := range ps {
		most = min(most, ps[i].Max())
	}
	switch w.IntN(8) {
	case 0:
		return 0
	case 1:
		return most
	case 2:
		return 1 + w.Int64N(most)
	}
	return 1 + w.Int64N(min(most, 3))
}

func (w *walk) question() *question {
	if len(w.made) > 0 && w.IntN(5) == 0 {
		i := w.IntN(len(w.made))
		cells := w.made[i].cells
		w.made = slices.Delete(w.made, i, i+1)
		n := cells[0].Units
		d := -w.Int64N(n + 1)
		if w.IntN(3) == 0 {
			d = 1 + w.Int64N(3*n+1)
		}
		if d == 0 {
			d = -n
		}
		for i := range cells {
			cells[i].Units = d
		}
		return &question{mode: step.Settle, cells: cells}
	}
	q := &question{}
	for i := range 1 + w.IntN(3)/2 {
		ps := w.plans[w.IntN(len(w.plans))]
		q.cells = append(q.cells, cells(ps, fmt.Sprintf("%d-%d-%d", w.round, w.IntN(2), i), w.units(ps))...)
	}
	switch w.IntN(12) {
	case 0:
		q.mode = step.Peek
	case 1: // a report
		q.mode = step.Settle
		for i := range q.cells {
			q.cells[i].Units = max(q.cells[i].Units, 1) * (1 + w.Int64N(3))
		}
	}
	return q
}

// step asks a batch, and compares.
func (w *walk) step() {
	batch := make([]*question, 1+w.IntN(8))
	for i := range batch {
		batch[i] = w.question()
	}
	asked := make([][]step.Cell, len(batch))
	for i, q := range batch {
		asked[i] = slices.Clone(q.cells)
	}
	if err, _ := w.store.script.run(time.Now().Add(patient), batch); err != nil {
		w.Fatal(err)
	}
	order := slices.Clone(batch) // settlements are a script of their own: which is first, the first question says
	first := batch[0].mode == step.Settle
	slices.SortStableFunc(order, func(a, b *question) int {
		x, y := (a.mode == step.Settle) != first, (b.mode == step.Settle) != first
		return map[[2]bool]int{{true, false}: 1, {false, true}: -1}[[2]bool{x, y}]
	})
	for _, q := range order {
		want := asked[slices.Index(batch, q)]
		now := q.cells[0].Instant
		given := w.model.name(&want[0])
		before, _ := w.model.state(&want[0], now)
		var allowed bool
		if q.mode == step.Settle {
			allowed = w.model.settle(want, now)
		} else {
			allowed = w.model.ask(q.mode, want, now)
		}
		for i := range want {
			got, want := &q.cells[i], &want[i]
			if got.Shortfall != want.Shortfall || got.Reading != want.Reading || allowed != q.allowed {
				w.Fatalf("round %d: %s of %d units at %d, charged at %d, cell %d of %d, under %+v\n got %v, %d short, %+v\nwant %v, %d short, %+v\nfirst %s: %v",
					w.round, [...]string{"allow", "peek", "settle"}[q.mode], want.Units, now, want.Instant, i, len(q.cells), want.Policy.Numbers,
					q.allowed, got.Shortfall, got.Reading, allowed, want.Shortfall, want.Reading, given, before)
			}
		}
		if q.mode == step.Allow && allowed && q.cells[0].Units > 0 {
			w.made = append(w.made, charge{slices.Clone(q.cells)})
		}
	}
}

// A stall notices that a test takes long, on a busy machine: values live by the clock of the server, and for a second after
// they have ended by the clock of the test.
type stall struct{ last time.Time }

// passed returns the microseconds since it last returned some, if they are many.
func (s *stall) passed() int64 {
	took := time.Since(s.last)
	if took < 100*time.Millisecond {
		return 0
	}
	first := s.last.IsZero()
	if s.last = time.Now(); first {
		return 0
	}
	return took.Microseconds()
}

func (w *walk) advance() {
	if w.now == 0 {
		return
	}
	w.now += w.busy.passed()
	period := w.plans[0][0].Period
	defer func(before int64) {
		w.store.script.aheadMicros.Store(w.now - time.Now().UnixMicro() + w.Int64N(72000e6) - 36000e6) // the clock of this process is another
		if w.now < before {
			w.prolong()
		}
	}(w.now)
	if m := w.plans[w.IntN(len(w.plans))][0].Numbers; m.Kind == step.Calendar && w.IntN(3) == 0 {
		w.now = storetest.Border(m, w.now, w.IntN(3)) - 2 + w.Int64N(5)
		return
	}
	switch w.IntN(40) {
	case 0:
		w.now -= w.Int64N(period + 1)
	case 1:
		w.now -= w.Int64N(4*min(period, 1<<46) + 1)
	case 2:
		w.now += w.Int64N(3*min(period, 1<<46) + 1)
	default:
		w.now += []int64{0, 1, w.Int64N(3), w.Int64N(period/8 + 2), w.Int64N(period/2 + 1)}[w.IntN(5)]
	}
	w.now = min(max(w.now, 1_100_000_000_000_000), 3_800_000_000_000_000)
}

// prolong lets the values live on: when a server's clock steps back, they do, by as much.
func (w *walk) prolong() {
	const script = "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('PERSIST', key) end"
	err := w.store.script.client.Eval(w.Context(), script, nil).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		w.Fatal(err)
	}
}

// Every decision, reading and settlement is that of package step, whatever came before: on clocks that step, and on the
// server's own.
func TestDecisionsAreThoseOfTheSteps(t *testing.T) {
	server := redistest.Start(t)
	for _, real := range []bool{false, true} {
		t.Run(fmt.Sprintf("real=%v", real), func(t *testing.T) {
			walkFor(t, open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr()), *questions/2, real)
		})
	}
}

func walkFor(t *testing.T, s *Decider, questions int, real bool) {
	p := &s.limiter(t, "first", fixed(1, time.Hour))[0]
	first := s.charge(t, p, "k", 1) // the server learns the scripts: else the order in a call would be another
	if first.Units = -1; first.Shortfall == 0 {
		if _, err := s.Ask(t.Context(), step.Settle, []step.Cell{first}); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	w := &walk{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), store: s, round: int(seed >> 40)} // names of calendars are alike
	t.Logf("seed %d", seed)
	if !real {
		s.script.instant = func(b []byte) []byte { return strconv.AppendInt(b, w.now, 10) }
	}
	for asked := 0; asked < questions; w.round++ {
		if w.now = 0; !real {
			w.now = 1_600_000_000_000_000 + w.Int64N(2_000_000_000_000_000)
		}
		if w.store.script.aheadMicros.Store(0); !real {
			w.store.script.aheadMicros.Store(w.now - time.Now().UnixMicro())
		}
		err := s.script.client.FlushDB(t.Context()).Err()
		if err != nil {
			t.Fatal(err)
		}
		for w.plan(); len(w.plans) == 0; {
			w.plan()
		}
		for range 30 {
			w.step()
			w.advance()
			asked += 4
		}
	}
}

// The obvious models of package storetest say the same, also with merging and remembered refusals on the way.
func TestStore(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	now, busy := time.Now().UnixMicro(), new(stall)
	s.script.instant = func(b []byte) []byte {
		now += busy.passed()
		return strconv.AppendInt(b, now, 10)
	}
	storetest.Walk(t, rand.Uint64(), *questions/4, storetest.Subject{
		Store: s, Sleep: func(d time.Duration) { now += d.Microseconds() },
		Fresh: func() { now = time.Now().UnixMicro() },
	})
}

// The model of calendars knows time.Date only. The clocks of the server and of this process are as far apart as they like.
func TestCalendars(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	now, busy, r := int64(0), new(stall), rand.New(rand.NewPCG(rand.Uint64(), 0))
	s.script.instant = func(b []byte) []byte {
		now += busy.passed()
		return strconv.AppendInt(b, now, 10)
	}
	storetest.Walk(t, rand.Uint64(), *questions/4, storetest.Subject{
		Store:     s,
		Calendars: true,
		Fresh:     func() { now = 31536000e6 + r.Int64N(70*31557600e6) },
		Sleep: func(d time.Duration) {
			now += d.Microseconds()
			for _, skipped := range []int64{788868000e6, 1325239200e6} { // days of which no window has borders with the next
				if skipped-1e6 < now && now < skipped {
					now = skipped
				}
			}
			if r.IntN(3) > 0 { // else the process has to find out
				s.script.aheadMicros.Store(now - time.Now().UnixMicro() + r.Int64N(86400e6) - 43200e6)
			}
		},
	})
}
