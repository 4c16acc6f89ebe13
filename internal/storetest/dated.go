package storetest

import (
	"math/big"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// A dated has counts of windows of a calendar, by the instant at which they begin. It knows time.Date, and nothing of
// numbers of windows.
type dated struct {
	m     step.Numbers
	zone  *time.Location
	units map[int64]int64
}

func newDated(m step.Numbers) *dated {
	zone, err := time.LoadLocation(m.Zone)
	if err != nil {
		panic(err)
	}
	return &dated{m, zone, map[int64]int64{}}
}

type showing struct {
	zone             string
	year, month, day int
}

var shown = map[showing]int64{}

// first returns the first instant at which a clock on the wall shows a day, or a later one.
func (d *dated) first(year, month, day int) int64 {
	want := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	of := showing{d.m.Zone, want.Year(), int(want.Month()), want.Day()}
	if at, ok := shown[of]; ok {
		return at
	}
	shows := func(us int64) bool {
		t := time.UnixMicro(us).In(d.zone)
		return !time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC).Before(want)
	}
	midnight := time.Date(of.year, time.Month(of.month), of.day, 0, 0, 0, 0, d.zone)
	at := midnight.UnixMicro()
	_, before := midnight.AddDate(0, 0, -2).Zone()
	if _, after := midnight.AddDate(0, 0, 2).Zone(); before != after || !shows(at) || shows(at-1) {
		for at -= 26 * 3600e6; !shows(at); { // minutes, and then halves of one
			at += 60e6
		}
		for low := at - 60e6; at-low > 1; {
			if mid := low + (at-low)/2; shows(mid) {
				at = mid
			} else {
				low = mid
			}
		}
	}
	shown[of] = at
	return at
}

// begin returns the instant at which the window begins in which the date of an instant is, or one of the next windows.
func (d *dated) begin(at int64, later int) int64 {
	t := time.UnixMicro(at).In(d.zone)
	y, month, day := t.Date()
	m := int(month)
	starting := max(int(d.m.Starting), 1)
	switch d.m.Period {
	case step.Day:
		return d.first(y, m, day+later)
	case step.Week:
		first := time.Weekday(starting % 7)
		return d.first(y, m, day-int(t.Weekday()-first+7)%7+7*later)
	case step.Year:
		return d.first(y+later, 1, 1)
	}
	last := func(m int) int { return time.Date(y, time.Month(m+1), 0, 0, 0, 0, 0, time.UTC).Day() }
	if day < min(starting, last(m)) {
		m--
	}
	m += later
	return d.first(y, m, min(starting, last(m)))
}

// window returns the instant at which the window of an instant begins.
func (d *dated) window(at int64) (begin int64) {
	for i := 0; ; i++ {
		if at < d.begin(at, i+1) {
			return d.begin(at, i)
		}
	}
}

func (d *dated) used(now int64) *big.Rat {
	return rat(d.units[d.window(now)])
}

func (d *dated) charge(now, n int64) {
	d.units[d.window(now)] += n
}

func (d *dated) refuse(int64, int64, int64) {}
func (d *dated) report(now, n int64)        { d.charge(now, n) }

func (d *dated) giveBack(now, at, n int64) {
	w := d.window(now)
	if d.window(at) == w {
		d.units[w] = max(d.units[w]-n, 0)
	}
}

// Zones are some with special days: summer times that begin at midnight, or a minute after it, or last half an hour; odd
// offsets; a day that was skipped.
var Zones = []string{
	"", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia",
	"America/St_Johns", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Kiritimati", "Africa/Cairo", "America/Havana",
}

// Dated returns random numbers of a calendar.
func Dated(r *rand.Rand) step.Numbers {
	m := step.Numbers{Kind: step.Calendar, Limit: 1 + r.Int64N(12), Zone: Zones[r.IntN(len(Zones))]}
	switch m.Period = []int64{step.Day, step.Week, step.Month, step.Month, step.Year}[r.IntN(5)]; m.Period {
	case step.Week:
		m.Starting = r.Int64N(8)
	case step.Month:
		m.Starting = []int64{0, 1, 2, 15, 28, 29, 30, 31}[r.IntN(8)]
	}
	return m
}

// Border returns the instant of a border of a window of a calendar, one of the next, and now for other policies.
func Border(m step.Numbers, now int64, next int) int64 {
	if m.Kind != step.Calendar {
		return now
	}
	return newDated(m).begin(now, next)
}
