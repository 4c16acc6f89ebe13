package redisrates

import (
	"strconv"
	"sync/atomic"

	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
)

// A scriptPolicy is what the script keeps with a policy.
type scriptPolicy struct {
	step.Stored

	suffix     string       // of the names of its values: behind the part of the key
	register   byte         // of its numbers in one run of a Lua script
	valueBytes int          // 0 of a level and of a log
	weight     int          // of a question about it: see maxWeight
	grid       int64        // of lives
	head       []byte       // numbers before those of the units, in decide.lua
	tail       []byte       // and behind them
	clock      func() int64 // of the server, for a calendar
	local      *step.Policy // not of the script: what this process decides by, without a server
}

// registers counts policies. Two of one register are told anew when they take turns, which costs time only.
var registers atomic.Int64

// registerCount is that in decide.lua.
const registerCount = 8

// newPolicy returns what is kept with a policy that is not constant.
func newPolicy(policy *step.Policy, clock func() int64) *scriptPolicy {
	p := &scriptPolicy{
		Stored: policy.Stored(), clock: clock,
		suffix: suffix(policy), register: byte(1 + registers.Add(1)%registerCount),
	}
	counted := bit(policy.CountDenied)
	switch p.Algorithm {
	case step.Level:
		// To renew a life costs more than all the rest of a charge, and happens when a level enters another cell of the
		// grid. A period is at least 16 lives of a bucket, so that few charges do, and values live hardly longer than
		// they count. A window is one cell.
		p.grid = max(p.PeriodTicks/16, 1_000_000)
		switch {
		case p.TickStep > 1:
			p.grid = p.TickStep
		case p.ClockPeriod == 1: // an interval
			p.grid = max(p.EmissionInterval/16, 1_000_000)
		}
		p.head = words(p.ClockPeriod, p.PeriodTicks, p.TickStep)
		p.tail = words(p.BurstOffset, p.DebtOffset, p.grid, counted)
		p.weight = 1
	case step.Window:
		// The life of a window is renewed with each of its sub-windows, when its counts move.
		counts := p.WholeCounts + min(p.OldestCount, 1)
		p.tail = words(policy.Limit, p.SubWindow, p.WholeCounts, p.OldestCount,
			bit(policy.FromFirst), counted*p.DeniedLimit, 0)
		p.valueBytes = int(2+counts) * wordBytes
		p.weight = 1 + p.valueBytes/64
	case step.Log:
		// A log that is written anew goes through the script as a whole. If denied units count, that is each question,
		// and up to three copies.
		p.grid = max(policy.Period/4, 1)
		p.tail = words(policy.Limit, policy.Period, p.grid, counted, 0, 0, 0)
		p.weight = 1 + int((1+2*counted)*policy.Limit)/64
		if counted > 0 {
			p.weight += step.MaxLog / 64
		}
	default:
		panic(step.Missing(p.Algorithm))
	}
	return p
}

// appendNumbers appends the numbers of a cell that asks for units. The byte before, which was 0, says how many digits
// there are behind the numbers.
//
// Eight words, and the digits, for decide.lua:
//
//	level    ClockPeriod   PeriodTicks   TickStep   UNITS   BurstOffset   DebtOffset   grid   CountDenied   digits
//	window   UNITS   Limit   SubWindow   WholeCounts   OldestCount   FromFirst   DeniedLimit   0
//	log      UNITS   Limit   Period   grid   CountDenied   0   0   0
//
// In decide.lua, those of a level are: the ratio of the first two; step, cost, full, ahead, grid, counted and digits.
// Head is what stands before the units, and tail what stands behind them, both made once for a policy. Of a calendar,
// the borders of windows are in the place of the last three.
func (p *scriptPolicy) appendNumbers(b []byte, policy *step.Policy, units int64) []byte {
	var digits []byte // of a level, which INCRBY wants
	switch p.Algorithm {
	case step.Level:
		units = min(units, p.BurstOffset/p.EmissionInterval+1) * p.EmissionInterval // what never fits must not overflow
		digits = strconv.AppendInt(make([]byte, 0, levelDigits), units, 10)
	case step.Window, step.Log:
	default:
		panic(step.Missing(p.Algorithm))
	}

	// The borders of a calendar go with its clock, so they are not made beforehand.
	begin := len(b)
	head := p.head
	tail := p.tail
	if p.calendar() {
		number, first, second, third := policy.Borders(p.clock())
		head = words(0, number, p.TickStep)
		tail = words(p.BurstOffset, first, second, third)
	}
	b = append(b, head...)
	b = appendWord(b, units)
	b = append(b, tail...)
	b = append(b, digits...)
	b[begin-1] = byte(1 + len(digits))
	return b
}

// calendar reports whether the policy is of a calendar, which the script does not know: it is told of two windows.
func (p *scriptPolicy) calendar() bool { return p.Algorithm == step.Level && p.ClockPeriod == 0 }

// corrections appends the ten numbers of a cell in settle.lua.
func (p *scriptPolicy) corrections(b []byte, cell *step.Cell) []byte {
	policy := cell.Policy
	back := max(-cell.Units, 0)
	more := max(cell.Units, 0)
	var numbers [10]int64
	switch p.Algorithm {
	case step.Level:
		charged := policy.Clock(cell.Instant)
		most := p.DebtOffset / p.EmissionInterval // a level has no more, and must not overflow
		back = min(back, most) * p.EmissionInterval
		more = min(more, most) * p.EmissionInterval
		numbers = [10]int64{
			p.ClockPeriod, p.PeriodTicks, p.TickStep, charged, back, more, p.BurstOffset, p.DebtOffset, p.grid,
		}
		if p.calendar() {
			numbers[1], numbers[7], numbers[8], numbers[9] = policy.Borders(p.clock())
		}
		if policy.Kind == step.MinInterval && back > 0 {
			numbers[9] = charged + p.EmissionInterval // then no other call came after it
		}
	case step.Window:
		numbers = [10]int64{
			back, more, cell.Instant, policy.Limit,
			p.SubWindow, p.WholeCounts, min(p.OldestCount, 1), bit(policy.FromFirst),
		}
	case step.Log:
		numbers = [10]int64{back, min(more, step.MaxLog), cell.Instant, policy.Limit, policy.Period, p.grid}
	default:
		panic(step.Missing(p.Algorithm))
	}
	for _, number := range numbers {
		b = appendWord(b, number)
	}
	return b
}

// suffix returns what a name says of a policy: everything that the bytes of its values depend on. It begins with a
// colon, as in :api:b1000/1d or :api/burst:s1m/10.
func suffix(policy *step.Policy) string {
	const special = ":/"
	b := rediskey.AppendEscaped([]byte(":"), policy.Limiter, special)
	if policy.Name != policy.Limiter {
		b = rediskey.AppendEscaped(append(b, '/'), policy.Name, special)
	}
	b = append(b, ':')

	// Below 64 bytes Redis uses the objects of arguments again, so names are short, and what is usual is left out.
	switch policy.Kind {
	case step.TokenBucket:
		b = append(strconv.AppendInt(append(b, 'b'), policy.Limit, 10), '/')
		b = append(b, step.Span(policy.Period)...)
		if policy.Burst != policy.Limit || policy.Debt != policy.DefaultDebt() {
			b = strconv.AppendInt(append(b, '/'), policy.Burst, 10)
		}
		if policy.Debt != policy.DefaultDebt() {
			b = strconv.AppendInt(append(b, '/'), policy.Debt, 10)
		}
	case step.FixedWindow: // without its limit: plans that differ in it share what was used
		b = append(append(b, 'w'), step.Span(policy.Period)...)
		switch {
		case policy.FromFirst:
			b = append(b, "/first"...)
		case policy.Stored().Algorithm == step.Window:
			b = append(b, "/large"...) // its limit
		}
	case step.SlidingWindow:
		b = append(append(append(b, 's'), step.Span(policy.Period)...), '/')
		b = strconv.AppendInt(b, policy.Resolution, 10)
	case step.SlidingLog:
		b = append(append(b, 'l'), step.Span(policy.Period)...)
	case step.MinInterval:
		b = append(append(b, 'i'), step.Span(policy.Period)...)
	case step.Calendar:
		b = append(append(b, 'c'), policy.Unit()...)
		if policy.Starting > 0 {
			b = strconv.AppendInt(append(b, '/'), policy.Starting, 10)
		}
		if policy.Zone != "" {
			b = append(append(b, '/'), policy.Zone...)
		}
	default:
		panic(step.Missing(policy.Kind))
	}
	return string(b)
}
