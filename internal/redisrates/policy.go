package redisrates

import (
	"strconv"
	"sync/atomic"

	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
)

// A policy is what the store keeps with a policy.
type policy struct {
	step.Stored

	suffix   string // of the names of its values: behind the part of the key
	register byte   // of its numbers in calls of the script
	size     int    // of a value, in bytes; 0 of a level and of a log
	weight   int    // of a question about it: see maxWeight
	grid     int64  // of lives
	head     []byte // numbers before those of the units, in decide.lua
	tail     []byte // and behind them
	local    *step.Policy
	store    *Decider
}

var registers atomic.Int64

// newPolicy returns what is kept with a policy that is not constant.
func newPolicy(p *step.Policy) *policy {
	r := &policy{Stored: p.Stored(), suffix: suffix(p), register: byte(1 + registers.Add(1)%registerCount)}
	counted := bit(p.CountDenied)
	switch r.Algorithm {
	case step.Level:
		// A period is at least 16 lives of a bucket, so that few charges renew it.
		r.grid = max(r.PeriodTicks/16, 1_000_000)
		switch {
		case r.TickStep > 1:
			r.grid = r.TickStep
		case r.ClockPeriod == 1: // an interval
			r.grid = max(r.EmissionInterval/16, 1_000_000)
		}
		r.head = words(r.ClockPeriod, r.PeriodTicks, r.TickStep)
		r.tail = words(r.BurstOffset, r.DebtOffset, r.grid, counted)
		r.weight = 1
	case step.Window:
		counts := r.WholeCounts + min(r.OldestCount, 1)
		r.tail = words(p.Limit, r.SubWindow, r.WholeCounts, r.OldestCount, bit(p.FromFirst), counted*r.DeniedLimit, 0)
		r.size = int(2+counts) * wordBytes
		r.weight = 1 + r.size/64
	case step.Log:
		r.grid = max(p.Period/4, 1)
		r.tail = words(p.Limit, p.Period, r.grid, counted, 0, 0, 0)
		r.weight = 1 + int((1+2*counted)*p.Limit)/64
		if counted > 0 {
			r.weight += step.MaxLog / 64
		}
	default:
		panic(step.Missing(r.Algorithm))
	}
	return r
}

// registerCount is that in decide.lua.
const registerCount = 8

// numbers appends the numbers of a cell that asks for units, and says how in the byte before.
func (p *policy) numbers(b []byte, of *step.Policy, units int64) []byte {
	var digits []byte // of a level
	switch p.Algorithm {
	case step.Level:
		units = min(units, p.BurstOffset/p.EmissionInterval+1) * p.EmissionInterval // what never fits must not overflow
		digits = strconv.AppendInt(make([]byte, 0, levelDigits), units, 10)
	case step.Window, step.Log:
	default:
		panic(step.Missing(p.Algorithm))
	}
	at := len(b)
	head, tail := p.head, p.tail
	if p.calendar() {
		number, first, second, third := of.Borders(p.store.clock())
		head, tail = words(0, number, p.TickStep), words(p.BurstOffset, first, second, third)
	}
	b = append(b, head...)
	b = appendWord(b, units)
	b = append(b, tail...)
	b = append(b, digits...)
	b[at-1] = byte(1 + len(b) - at - 8*wordBytes)
	return b
}

// calendar reports whether the policy is of a calendar, which the script does not know: it is told of two windows.
func (p *policy) calendar() bool { return p.Algorithm == step.Level && p.ClockPeriod == 0 }

// corrections appends the ten numbers of a cell in settle.lua.
func (p *policy) corrections(b []byte, c *step.Cell) []byte {
	of, back, more := c.Policy, max(-c.Units, 0), max(c.Units, 0)
	var x [10]int64
	switch p.Algorithm {
	case step.Level:
		charged := of.Clock(c.Instant)
		back, more = min(back, p.DebtOffset/p.EmissionInterval)*p.EmissionInterval, min(more, p.DebtOffset/p.EmissionInterval)*p.EmissionInterval
		x = [10]int64{p.ClockPeriod, p.PeriodTicks, p.TickStep, charged, back, more, p.BurstOffset, p.DebtOffset, p.grid}
		if p.calendar() {
			x[1], x[7], x[8], x[9] = of.Borders(p.store.clock())
		}
		if of.Kind == step.MinInterval && back > 0 {
			x[9] = charged + p.EmissionInterval // then no other call came after it
		}
	case step.Window:
		x = [10]int64{back, more, c.Instant, of.Limit, p.SubWindow, p.WholeCounts, min(p.OldestCount, 1), bit(of.FromFirst)}
	case step.Log:
		x = [10]int64{back, min(more, step.MaxLog), c.Instant, of.Limit, of.Period, p.grid}
	default:
		panic(step.Missing(p.Algorithm))
	}
	for _, x := range x {
		b = appendWord(b, x)
	}
	return b
}

// suffix returns what a name says of a policy: everything that the bytes of its values depend on. It begins with a
// colon, as in :api:b1000/1d or :api/burst:s1m/10.
func suffix(p *step.Policy) string {
	const special = ":/"
	b := rediskey.AppendEscaped([]byte(":"), p.Limiter, special)
	if p.Name != p.Limiter {
		b = rediskey.AppendEscaped(append(b, '/'), p.Name, special)
	}
	b = append(b, ':')
	switch p.Kind {
	case step.TokenBucket:
		b = append(strconv.AppendInt(append(b, 'b'), p.Limit, 10), '/')
		b = append(b, step.Span(p.Period)...)
		if p.Burst != p.Limit || p.Debt != p.DefaultDebt() {
			b = strconv.AppendInt(append(b, '/'), p.Burst, 10)
		}
		if p.Debt != p.DefaultDebt() {
			b = strconv.AppendInt(append(b, '/'), p.Debt, 10)
		}
	case step.FixedWindow:
		b = append(append(b, 'w'), step.Span(p.Period)...)
		switch {
		case p.FromFirst:
			b = append(b, "/first"...)
		case p.Stored().Algorithm == step.Window:
			b = append(b, "/large"...) // its limit
		}
	case step.SlidingWindow:
		b = append(append(append(b, 's'), step.Span(p.Period)...), '/')
		b = strconv.AppendInt(b, p.Resolution, 10)
	case step.SlidingLog:
		b = append(append(b, 'l'), step.Span(p.Period)...)
	case step.MinInterval:
		b = append(append(b, 'i'), step.Span(p.Period)...)
	case step.Calendar:
		b = append(append(b, 'c'), p.Unit()...)
		if p.Starting > 0 {
			b = strconv.AppendInt(append(b, '/'), p.Starting, 10)
		}
		if p.Zone != "" {
			b = append(append(b, '/'), p.Zone...)
		}
	default:
		panic(step.Missing(p.Kind))
	}
	return string(b)
}
