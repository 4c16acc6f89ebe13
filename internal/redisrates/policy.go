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
	case level:
		// A period is at least 16 lives of a bucket, so that few charges renew it.
		r.grid = max(r.Ticks/16, 1_000_000)
		switch {
		case r.Step > 1:
			r.grid = r.Step
		case r.Time == 1: // an interval
			r.grid = max(r.Unit/16, 1_000_000)
		}
		r.head = words(r.Time, r.Ticks, r.Step)
		r.tail = words(r.Full, r.Most, r.grid, counted)
		r.weight = 1
	case window:
		counts := r.Inside + min(r.Trail, 1)
		r.tail = words(p.Limit, r.Length, r.Inside, r.Trail, bit(p.FromFirst), counted*r.Denied, 0)
		r.size = int(2+counts) * wordBytes
		r.weight = 1 + r.size/64
	case log:
		r.grid = max(p.Period/4, 1)
		r.tail = words(p.Limit, p.Period, r.grid, counted, 0, 0, 0)
		r.weight = 1 + int((1+2*counted)*p.Limit)/64
		if counted > 0 {
			r.weight += step.MaxLog / 64
		}
	}
	return r
}

// The algorithms of [step.Stored], and registerCount in decide.lua.
const (
	level = 1 + iota
	window
	log

	registerCount = 8
)

// numbers appends the numbers of a cell that asks for units, and says how in the byte before.
func (p *policy) numbers(b []byte, of *step.Policy, units int64) []byte {
	if p.Algorithm == level {
		units = min(units, p.Full/p.Unit+1) * p.Unit // what never fits must not overflow
	}
	at := len(b)
	head, tail := p.head, p.tail
	if p.calendar() {
		number, first, second, third := of.Borders(p.store.clock())
		head, tail = words(0, number, p.Step), words(p.Full, first, second, third)
	}
	b = append(b, head...)
	b = appendWord(b, units)
	b = append(b, tail...)
	if p.Algorithm == level {
		b = strconv.AppendInt(b, units, 10)
	}
	b[at-1] = byte(1 + len(b) - at - 8*wordBytes)
	return b
}

// calendar reports whether the policy is of a calendar, which the script does not know: it is told of two windows.
func (p *policy) calendar() bool { return p.Algorithm == level && p.Time == 0 }

// corrections appends the ten numbers of a cell in settle.lua.
func (p *policy) corrections(b []byte, c *step.Cell) []byte {
	of, back, more := c.Policy, max(-c.N, 0), max(c.N, 0)
	var x [10]int64
	switch p.Algorithm {
	case level:
		charged := of.Clock(c.At)
		back, more = min(back, p.Most/p.Unit)*p.Unit, min(more, p.Most/p.Unit)*p.Unit
		x = [10]int64{p.Time, p.Ticks, p.Step, charged, back, more, p.Full, p.Most, p.grid}
		if p.calendar() {
			x[1], x[7], x[8], x[9] = of.Borders(p.store.clock())
		}
		if of.Algorithm == step.MinInterval && back > 0 {
			x[9] = charged + p.Unit // then no other call came after it
		}
	case window:
		x = [10]int64{back, more, c.At, of.Limit, p.Length, p.Inside, min(p.Trail, 1), bit(of.FromFirst)}
	case log:
		x = [10]int64{back, min(more, step.MaxLog), c.At, of.Limit, of.Period, p.grid}
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
	switch p.Algorithm {
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
		case p.Stored().Algorithm == window:
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
	}
	return string(b)
}
