package step

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// The periods of calendars: the longest that a window of the unit may be, in microseconds.
const (
	Day   = 86400e6
	Week  = 7 * Day
	Month = 31 * Day
	Year  = 366 * Day
)

const secondsOfDay = 86400

// A unit says what the windows of a calendar are. CONTRIBUTING.md says what one more needs.
type unit struct {
	word      string
	longest   int64 // window: the Period that stands for the unit in Numbers
	latestDay int64 // with which a window may start, counted from 1; 0: it has only one first day

	// By how much a clock advances with each window: the largest power of 2 by which it is below 2^53 until 2112.
	windowStep int64
}

var units = []unit{
	{word: "day", longest: Day, windowStep: 1 << 37},
	{word: "week", longest: Week, latestDay: 7, windowStep: 1 << 40},
	{word: "month", longest: Month, latestDay: 31, windowStep: 1 << 42},
	{word: "year", longest: Year, windowStep: 1 << 45},
}

// unitOfPeriod returns the unit for which a period stands. The zero unit is none.
func unitOfPeriod(period int64) unit {
	for _, unit := range units {
		if unit.longest == period {
			return unit
		}
	}
	return unit{}
}

// Unit returns the word for the windows of a Calendar.
func (m Numbers) Unit() string { return unitOfPeriod(m.Period).word }

// A calendar has windows whose borders are those of days, weeks, months or years in a time zone. They are numbered as
// people count them, whatever the zone: the days, weeks and months from 1970 on, and the years, the first of which is
// 1. A window begins when a clock on the wall first shows its first day. So each instant is in one window, also where
// an hour is skipped, or shown twice. A day that a zone has skipped is a window without an instant. November 2026 is
// the month 683, so the clock shows 683 * 2^42 in it, and the level after five units is 5 more.
type calendar struct {
	unit
	firstOfWindow int64 // the day of a week or a month with which a window begins, from 1
	zone          *time.Location
	latest        atomic.Pointer[datedWindow] // that was asked for: most instants are in it
}

// A datedWindow is a window of a calendar. The windows before it and behind it are known by their other borders.
type datedWindow struct {
	number          int64
	start, end      int64 // it is from start to before end
	startOfPrevious int64
	endOfNext       int64
}

// newCalendar returns the calendar of valid numbers.
func newCalendar(m Numbers) *calendar {
	zone, _ := zoneOf(m.Zone)
	return &calendar{unit: unitOfPeriod(m.Period), firstOfWindow: max(m.Starting, 1), zone: zone}
}

// windowOf returns the window of an instant.
func (c *calendar) windowOf(now int64) *datedWindow {
	latest := c.latest.Load()
	if latest != nil && latest.start <= now && now < latest.end {
		return latest
	}
	return c.find(now)
}

// find is windowOf for an instant that is not in the latest.
func (c *calendar) find(now int64) *datedWindow {
	// From a number that is not too late, go on to the window that has not ended.
	number := c.earliestNumber(now)
	start := c.border(number)
	end := c.border(number + 1)
	for end <= now {
		number++
		start = end
		end = c.border(number + 1)
	}
	// Both neighbours are found along: a clock that went back, and a store with another clock, ask about them.
	found := &datedWindow{
		number:          number,
		start:           start,
		end:             end,
		startOfPrevious: c.border(number - 1),
		endOfNext:       c.border(number + 2),
	}
	c.latest.Store(found)
	return found
}

// earliestNumber returns the number of the window of an instant, or of one that is one or two before: a date says
// nothing of the day with which windows start.
func (c *calendar) earliestNumber(now int64) int64 {
	local := time.UnixMicro(now).In(c.zone)
	_, offset := local.Zone()
	days := (now/1e6 + int64(offset)) / secondsOfDay
	year, month, _ := local.Date()
	switch c.longest {
	case Week:
		return days / 7
	case Month:
		return int64(12*(year-1970)) + int64(month) - 1
	case Year:
		return int64(year - 1970)
	}
	return days
}

// border returns the instant at which a window begins: the first at which a clock on the wall shows its first day, or a
// later one, if the zone has skipped that day.
func (c *calendar) border(number int64) int64 {
	midnight := c.firstDay(number) * secondsOfDay // by the clock on the wall, as if that were in UTC
	second := midnight - 2*secondsOfDay           // before it in any zone
	for {
		// Until the zone changes, its offset says when the clock shows that midnight.
		local := time.Unix(second, 0).In(c.zone)
		_, offset := local.Zone()
		_, changesAt := local.ZoneBounds()
		change := changesAt.Unix()
		switch {
		case changesAt.IsZero():
			change = math.MaxInt64
		case change <= second:
			// Go says so of the last day of leap years from 2040 on: it takes all years for 365 days.
			change = second + 3600
		}
		second = max(second, midnight-int64(offset))
		if second < change {
			return second * 1e6
		}
		second = change
	}
}

// firstDay returns the first day of a window, counted from January 1, 1970, which is 0. A month without the day with
// which it starts does so with its last.
func (c *calendar) firstDay(number int64) int64 {
	month := number
	switch c.longest {
	case Day:
		return number - 1
	case Week:
		return 7*(number-1) - (11-c.firstOfWindow)%7 // 1970 began with a Thursday
	case Year:
		month = 12*(number-1) + 1
	}
	// A year begins with the first of its first month, so it is as a month.
	firstOfMonth := time.Date(1970, time.Month(month), 1, 0, 0, 0, 0, time.UTC)
	daysOfMonth := firstOfMonth.AddDate(0, 1, -1).Day()
	return firstOfMonth.Unix()/secondsOfDay + min(c.firstOfWindow, int64(daysOfMonth)) - 1
}

// setAny is set of a level of any kind. Calendars stand apart, so that the decisions of others have no more to do.
func (l *level) setAny(state *[2]int64, now, clock, ahead int64) {
	if l.calendar == nil {
		l.set(state, now, clock, ahead)
		return
	}
	window := l.calendar.windowOf(now)
	state[0] = window.end
	state[1] = clock + ahead
	if clock > window.number*l.calendar.windowStep { // the next has begun
		state[0] = window.endOfNext
	}
}

// takeCalendar is takeLevel of a calendar: all that is used comes back at the end of the window, which is the state's.
func (p *Policy) takeCalendar(state *[2]int64, now, n int64, charge bool, cell *Cell) bool {
	clock := p.clockFor(state, now, p.Clock(now))
	// The emission interval is 1, so the level is ahead by the units that are used.
	used := aheadOf(state, clock)
	fits := used+n <= p.burstOffset
	if fits && charge {
		used += n
		p.setAny(state, now, clock, used)
	}
	cell.Shortfall = 0
	cell.Reading = Reading{Remaining: max(p.burstOffset-used, 0)}
	if used > 0 {
		cell.NextAfter = state[0] - now
		cell.ResetAfter = state[0] - now
	}
	if !fits {
		cell.Shortfall = 1
		cell.RetryAfter = state[0] - now
	}
	return fits
}

// settleCalendar counts n more units, or gives them back if the window is that of their charge. Those of an earlier one
// have come back, and a later one has not begun if the clock has gone back.
func (p *Policy) settleCalendar(state *[2]int64, now, chargedAt, n int64) {
	clock := p.clockFor(state, now, p.Clock(now))
	used := aheadOf(state, clock)
	if n < 0 && p.Clock(chargedAt) != clock {
		return
	}
	p.setAny(state, now, clock, max(min(used+min(n, p.debtOffset), p.debtOffset), 0))
}

// WindowAt returns the length of the window of a calendar in which an instant is.
func (p *Policy) WindowAt(instant int64) int64 {
	window := p.calendar.windowOf(instant)
	return window.end - window.start
}

// Borders returns what a store needs whose clock differs from the caller's by less than half a window: the number and
// the three borders of two windows, one after the other. An instant is in one of them, and the other is the nearer
// neighbour.
func (p *Policy) Borders(instant int64) (number, first, second, third int64) {
	window := p.calendar.windowOf(instant)
	if instant-window.start > window.end-instant {
		return window.number, window.start, window.end, window.endOfNext
	}
	return window.number - 1, max(window.startOfPrevious, 0), max(window.start, 0), window.end
}

// checkCalendar finds what is wrong with the numbers of a Calendar.
func (m Numbers) checkCalendar(fault faultFunc) {
	unit := unitOfPeriod(m.Period)
	if unit.word == "" {
		fault(true, "the windows of a Calendar are a Day, Week, Month or Year")
		return
	}
	fault(m.Starting < 0 || m.Starting > unit.latestDay,
		"Starting is for a Week, with a day from 1 to 7, or a Month, from 1 to 31, not %d", m.Starting)
	mostUnits := unit.windowStep / 4 // the rest is for reports
	fault(m.Limit > mostUnits, "a Calendar counts at most %d a %s", mostUnits, unit.word)
	_, err := zoneOf(m.Zone)
	fault(err != nil, "%v", err)
}

var zones sync.Map // by name: reading one takes a file

// zoneOf returns a time zone by its name in the IANA's database. "" is UTC.
func zoneOf(name string) (*time.Location, error) {
	known, ok := zones.Load(name)
	if ok {
		return known.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" { // which is another on each server
		return time.UTC, fmt.Errorf("%.64q is no time zone that is known here, such as Europe/Berlin", name)
	}
	zones.Store(name, zone)
	return zone, nil
}
