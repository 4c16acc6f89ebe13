package storetest

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// A Subject is a store under test.
type Subject struct {
	Store store.Rates
	Sleep func(time.Duration) // by its clock, about
	Skip  func(step.Numbers) bool

	Calendars bool   // all policies are calendars, not one in six
	Fresh     func() // a world begins: its clock may show another instant
}

// A world has some policies, each with the models of its keys.
type world struct {
	t        *testing.T
	r        *rand.Rand
	s        Subject
	prefix   string
	limiters [][]step.Policy // of each, the plans: policies of one identity have one model
	models   map[string]model
	receipts []receipt
	longest  int64
	now      int64 // of the last answer
	trace    []string
}

type receipt struct{ cells []step.Cell }

// Walk asks a number of questions about random policies, in random worlds, and compares each answer with the models.
func Walk(t *testing.T, seed uint64, questions int, s Subject) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 3))
	for asked, number := 0, 0; asked < questions; number++ {
		w := &world{t: t, r: r, s: s, prefix: fmt.Sprint(seed, "-", number, "-"), models: map[string]model{}}
		if s.Fresh != nil {
			s.Fresh()
		}
		if !w.draw() {
			continue
		}
		for range 100 {
			w.pause()
			asked++
			if w.step(); t.Failed() {
				for _, line := range w.trace[max(len(w.trace)-8, 0):] {
					t.Log(line)
				}
				t.Fatalf("seed %d, world %d", seed, number)
			}
		}
	}
}

// draw makes one to three limiters of one to three policies.
func (w *world) draw() bool {
	for i := range 1 + w.r.IntN(3) {
		var all []step.Policy
		for j := range 1 + w.r.IntN(3) {
			m := numbers(w.r, w.s.Calendars)
			if w.s.Skip != nil && w.s.Skip(m) {
				return false
			}
			p, err := step.New(w.prefix+fmt.Sprint(i), fmt.Sprint(j), m)
			if err != nil {
				return false
			}
			w.longest = max(w.longest, m.Period)
			all = append(all, p)
		}
		if w.s.Store.Prepare(all) != nil {
			return false
		}
		w.limiters = append(w.limiters, all)
	}
	return true
}

// numbers draws numbers that a model has exactly: of a bucket, a unit takes whole microseconds.
func numbers(r *rand.Rand, calendars bool) step.Numbers {
	if calendars || r.IntN(6) == 0 {
		return Dated(r)
	}
	m := step.Numbers{Limit: 1 + r.Int64N([]int64{1, 3, 10, 100}[r.IntN(4)])}
	m.Period = 1 + r.Int64N([]int64{3, 1000, 300_000, 5_000_000, 3600e6}[r.IntN(5)])
	switch m.Kind = step.Kind(1 + r.IntN(int(step.Calendar)-1)); m.Kind {
	case step.TokenBucket:
		m.Period = max(m.Period/m.Limit, 1) * m.Limit
		m.Burst, m.Debt = 1+r.Int64N(2*m.Limit), step.UsualDebt
		if r.IntN(3) == 0 {
			m.Debt = r.Int64N(m.Burst + 1)
		}
		return m
	case step.FixedWindow:
		m.FromFirst = r.IntN(2) == 0
	case step.SlidingWindow:
		m.Resolution, m.NeverOver = 1+r.Int64N(min(12, m.Period)), r.IntN(3) == 0
	case step.SlidingLog:
	case step.MinInterval:
		m.Limit = 1
		return m
	default:
		panic(step.Missing(m.Kind))
	}
	m.CountDenied = r.IntN(4) == 0
	return m
}

// pause sleeps for a time that is often short, and sometimes of about a period.
func (w *world) pause() {
	d := int64(0)
	switch w.r.IntN(8) {
	case 0, 1, 2, 3:
		return
	case 4, 5:
		d = w.r.Int64N(5)
	case 6:
		d = w.r.Int64N(w.longest/10 + 1)
	case 7:
		d = w.r.Int64N(2*w.longest + 1)
	}
	ps := w.limiters[w.r.IntN(len(w.limiters))]
	if m := ps[w.r.IntN(len(ps))].Numbers; m.Kind == step.Calendar && w.now > 0 && w.r.IntN(2) == 0 {
		d = max(Border(m, w.now, 1+w.r.IntN(2))-w.now-2+w.r.Int64N(5), 0)
	}
	w.s.Sleep(time.Duration(d) * time.Microsecond)
}

func (w *world) model(c *step.Cell) model {
	id := fmt.Sprint(c.Policy.Limiter, "/", c.Policy.Name, "/", c.Policy.ID, "/", c.Key.Reveal())
	if w.models[id] == nil {
		w.models[id] = newModel(c.Policy.Numbers)
	}
	return w.models[id]
}

// plan returns the policies of a limiter, sometimes with other limits: they share what was used.
func (w *world) plan(policies []step.Policy) []step.Policy {
	if w.r.IntN(4) > 0 {
		return policies
	}
	var all []step.Policy
	for _, p := range policies {
		m := p.Numbers
		if m.Kind != step.TokenBucket && m.Kind != step.MinInterval {
			m.Limit = 1 + w.r.Int64N(2*m.Limit)
		}
		q, err := step.New(p.Limiter, p.Name, m)
		if err != nil || q.ID != p.ID {
			return policies
		}
		all = append(all, q)
	}
	if err := w.s.Store.Prepare(all); err != nil {
		w.t.Error(err)
	}
	return all
}

// cells are those of one to three charges, each for its key.
func (w *world) cells(several bool) (cells []step.Cell) {
	for i, policies := range w.limiters {
		if i > 0 && (!several || w.r.IntN(2) == 0) {
			continue
		}
		key, n, policies := fmt.Sprint("k", w.r.IntN(2)), int64(1), w.plan(policies)
		switch w.r.IntN(8) {
		case 0:
			n = w.r.Int64N(policies[0].Capacity() + 2)
		case 1:
			n = policies[0].Capacity()
		}
		for j := range policies { // what no policy ever admits, no store is asked
			n = min(n, policies[j].Max())
		}
		for j := range policies {
			var c step.Cell
			c.Set(&policies[j], key, step.Hash(key), n)
			cells = append(cells, c)
		}
	}
	return cells
}

func (w *world) step() {
	switch op := w.r.IntN(20); {
	case op < 14:
		cells := w.cells(true)
		mode := step.Allow
		if w.r.IntN(6) == 0 {
			mode = step.Peek
		}
		w.ask(mode, cells)
	case op < 17 && len(w.receipts) > 0:
		i := w.r.IntN(len(w.receipts))
		cells := w.receipts[i].cells
		w.receipts = append(w.receipts[:i], w.receipts[i+1:]...)
		w.settle(cells, true)
	case op < 19:
		cells := w.cells(false)
		for i := range cells {
			cells[i].Units = cells[i].Policy.Counted(1 + w.r.Int64N(2*cells[i].Policy.Capacity()))
		}
		w.settle(cells, false)
	case w.r.IntN(10) == 0:
		clear(w.models)
		for _, policies := range w.limiters {
			for _, key := range []string{"k0", "k1"} {
				var all []step.Cell
				for j := range policies {
					var c step.Cell
					c.Set(&policies[j], key, step.Hash(key), 0)
					all = append(all, c)
				}
				if _, err := w.s.Store.Ask(context.Background(), step.Reset, all); err != nil {
					w.t.Error(err)
				}
			}
		}
		w.receipts = nil
	}
}

// asked is how many units have to fit: a check of none is about one more of a log and an interval.
func asked(c *step.Cell) int64 {
	if a := c.Policy.Kind; c.Units == 0 && (a == step.SlidingLog || a == step.MinInterval) {
		return 1
	}
	return c.Units
}

func (w *world) fits(c *step.Cell, now, n int64) bool {
	used := w.model(c).used(now)
	return used.Add(used, rat(n)).Cmp(rat(c.Policy.Capacity())) <= 0
}

func (w *world) ask(mode step.Mode, cells []step.Cell) {
	allowed, err := w.s.Store.Ask(context.Background(), mode, cells)
	if err != nil {
		w.t.Error(err)
		w.log(mode, cells, allowed)
		return
	}
	w.now = cells[0].Instant
	w.log(mode, cells, allowed)
	want := true
	for i := range cells {
		fits := w.fits(&cells[i], cells[i].Instant, asked(&cells[i]))
		if (cells[i].Shortfall == 0) != fits {
			w.t.Errorf("cell %d: refused %t, want %t", i, cells[i].Shortfall > 0, !fits)
		}
		want = want && fits
	}
	if allowed != want {
		w.t.Errorf("allowed %t, want %t", allowed, want)
	}
	for i := range cells {
		c := &cells[i]
		switch m := w.model(c); {
		case allowed && mode == step.Allow && c.Units > 0:
			m.charge(c.Instant, c.Units)
		case !allowed && c.Policy.CountDenied && c.Units > 0 && mode == step.Allow:
			m.refuse(c.Instant, c.Units, c.Policy.Limit)
		}
	}
	if mode == step.Peek && !allowed {
		for i := range cells { // its readings are those after the attempt, if that would count
			if cells[i].Policy.CountDenied {
				return
			}
		}
	}
	for i := range cells {
		w.readings(i, &cells[i], allowed, asked(&cells[i]))
	}
	if allowed && mode == step.Allow {
		w.receipts = append(w.receipts, receipt{cells})
	}
}

// readings checks what is left after an answer.
func (w *world) readings(i int, c *step.Cell, allowed bool, n int64) {
	now, used := c.Instant, w.model(c).used(c.Instant)
	left := new(big.Rat).Sub(rat(c.Policy.Capacity()), used)
	if want := max(floor(left), 0); c.Remaining != want {
		w.t.Errorf("cell %d: %d left, want %d", i, c.Remaining, want)
	}
	tight := func(what string, after int64, holds func(at int64) bool) {
		if !holds(now + after) {
			w.t.Errorf("cell %d: %s %d is too short", i, what, after)
		}
		if after > 0 && holds(now+after-1) {
			w.t.Errorf("cell %d: %s %d is too long", i, what, after)
		}
	}
	tight("ResetAfter", c.ResetAfter, func(at int64) bool { return w.model(c).used(at).Sign() == 0 })
	if used.Sign() > 0 {
		tight("NextAfter", c.NextAfter, func(at int64) bool { return w.fits(c, at, c.Remaining+1) })
	} else if c.NextAfter != 0 {
		w.t.Errorf("cell %d: NextAfter %d, and nothing is used", i, c.NextAfter)
	}
	switch {
	case allowed || w.fits(c, now, n): // as of after the attempt, if that counts
		if c.RetryAfter != 0 {
			w.t.Errorf("cell %d: RetryAfter %d", i, c.RetryAfter)
		}
	case n > c.Policy.Capacity():
		if c.RetryAfter != step.Never {
			w.t.Errorf("cell %d: RetryAfter %d, want never", i, c.RetryAfter)
		}
	default:
		tight("RetryAfter", c.RetryAfter, func(at int64) bool { return w.fits(c, at, n) })
	}
}

func floor(x *big.Rat) int64 {
	q := new(big.Int)
	q.DivMod(x.Num(), x.Denom(), new(big.Int))
	return q.Int64()
}

// settle corrects a charge at random, or reports cells.
func (w *world) settle(cells []step.Cell, charged bool) {
	var all []step.Cell
	for _, c := range cells {
		if charged {
			actual := w.r.Int64N(c.Units + 1)
			switch w.r.IntN(4) {
			case 0:
				actual = 0
			case 1:
				actual = c.Units + w.r.Int64N(c.Units+3)
			}
			if c.Units = c.Policy.Counted(actual) - c.Units; c.Units == 0 {
				continue
			}
		} else {
			c.Instant = 0
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return
	}
	before := append([]step.Cell(nil), all...)
	if _, err := w.s.Store.Ask(context.Background(), step.Settle, all); err != nil {
		w.t.Error(err)
		return
	}
	w.log(step.Settle, all, true)
	for i := range all {
		c := &all[i]
		m, n := w.model(c), before[i].Units
		short := int64(0)
		if n > 0 {
			left := new(big.Rat).Sub(rat(c.Policy.Capacity()), m.used(c.Instant))
			short = max(n-max(floor(left), 0), 0)
			m.report(c.Instant, n)
		} else {
			m.giveBack(c.Instant, before[i].Instant, -n)
		}
		if c.Shortfall != short {
			w.t.Errorf("cell %d: %d had no room, want %d", i, c.Shortfall, short)
		}
		w.readings(i, c, false, 1)
	}
}

func (w *world) log(mode step.Mode, cells []step.Cell, allowed bool) {
	line := fmt.Sprint([]string{"allow", "peek", "settle", "reset"}[mode], " ", allowed)
	for i := range cells {
		c := &cells[i]
		line += fmt.Sprintf("\n    %s.%s %v key %s n %d at %d: short %d %+v", c.Policy.Limiter, c.Policy.Name, c.Policy.Numbers, c.Key.Reveal(), c.Units, c.Instant, c.Shortfall, c.Reading)
	}
	w.trace = append(w.trace, line)
}
