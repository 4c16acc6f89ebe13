package step

import (
	"math/rand/v2"
	"testing"
	"time"
)

var someZones = []string{"", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia", "America/St_Johns", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Kiritimati", "Africa/Cairo", "America/Havana"}

// dated returns the first microsecond of window n by time.Date and a search, without package step.
func dated(unit string, starting int, zone *time.Location, n int) int64 {
	y, m, d := 1970, 1, 1
	switch unit {
	case "day":
		d = n
	case "week":
		d = 5 + starting - 1 // the 5th was a Monday
		for d > 1 {
			d -= 7 // the first of January is in week 1
		}
		d += 7 * (n - 1)
	case "month":
		m = n
		last := time.Date(1970, time.Month(n)+1, 0, 0, 0, 0, 0, time.UTC).Day()
		d = min(starting, last)
	case "year":
		y = 1969 + n
	}
	want := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC)
	shown := func(us int64) bool { // whether a clock on the wall shows that day, or a later one
		z := time.UnixMicro(us).In(zone)
		return !time.Date(z.Year(), z.Month(), z.Day(), 0, 0, 0, 0, time.UTC).Before(want)
	}
	// Where the zone does not change, it is midnight. Else it is found: minutes from a day before, then by halves.
	midnight := time.Date(y, time.Month(m), d, 0, 0, 0, 0, zone)
	_, before := midnight.AddDate(0, 0, -2).Zone()
	if _, after := midnight.AddDate(0, 0, 2).Zone(); before == after && shown(midnight.UnixMicro()) && !shown(midnight.UnixMicro()-1) {
		return midnight.UnixMicro()
	}
	at := midnight.UnixMicro() - 26*3600e6
	for !shown(at) {
		at += 60e6
	}
	low, high := at-60e6, at
	for high-low > 1 {
		if mid := low + (high-low)/2; shown(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

func TestBorders(t *testing.T) {
	tried := 0
	for _, name := range someZones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range units {
			for _, starting := range []int{1, 2, 7, 15, 28, 29, 30, 31} {
				if starting > 1 && u.word != "month" && (u.word != "week" || starting > 7) {
					continue
				}
				m := Numbers{Kind: Calendar, Limit: 1, Period: u.longest, Starting: int64(starting), Zone: name}
				if err := m.Check(); err != nil {
					t.Fatal(err)
				}
				c := newCalendar(m.whole())
				most := map[string]int{"day": 51_866, "week": 7409, "month": 1704, "year": 142}[u.word]
				if most == 0 {
					t.Fatal(u.word, "is a unit that the test does not know")
				}
				by := map[string]int{"day": 53, "week": 11, "month": 1, "year": 1}[u.word]
				for n := 2; n <= most; n += by {
					tried++
					want := dated(u.word, starting, zone, n)
					if got := c.border(int64(n)); got != want {
						t.Fatalf("%v: window %d begins at %v, want %v", m, n, time.UnixMicro(got).In(zone), time.UnixMicro(want).In(zone))
					}
				}
			}
		}
	}
	t.Log(tried, "borders")
}

// In no window of one number more is in use than its number, also if servers whose time zones are of other versions disagree
// about where it ends, if the clock steps back across a border, by less than a window, and if units are given back.
func TestNeverOverInAWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 4000 {
		numbers := Numbers{Kind: FixedWindow, Limit: 1 + r.Int64N(9), Period: []int64{1e6, 3600e6, Day}[r.IntN(3)]}
		if round%2 == 0 {
			numbers = Numbers{Kind: Calendar, Limit: numbers.Limit, Period: units[r.IntN(3)].longest, Zone: "Test/Zone"}
		}
		var servers []Policy
		for range 3 {
			zones.Store("Test/Zone", time.FixedZone("Test/Zone", r.IntN(3)*1800))
			server, err := New("l", "l", numbers)
			if err != nil {
				t.Fatal(err)
			}
			servers = append(servers, server)
		}
		state := servers[0].New()
		windowStep := int64(servers[0].tickStep.number)
		now := 1_700_000_000_000_000 + r.Int64N(1e15)
		inUse := map[int64]int64{} // by number of window
		type charge struct {
			server            *Policy
			at, units, number int64
		}
		var charges []charge
		newest := now
		for range 300 {
			server := &servers[r.IntN(3)]
			switch r.IntN(6) {
			case 0:
				now += r.Int64N(numbers.Period / 4)
			case 1: // to the time around a border
				now += server.untilBorder(now) - r.Int64N(numbers.Period/24)
			case 2:
				now = max(now-r.Int64N(numbers.Period/3), newest-numbers.Period*2/3)
			default:
				now += r.Int64N(numbers.Period / 100)
			}
			newest = max(newest, now)
			if r.IntN(4) == 0 && len(charges) > 0 {
				last := len(charges) - 1
				given := charges[last]
				charges = charges[:last]
				refund := Cell{Policy: given.server, Units: -given.units, Instant: given.at, Source: SourceStore}
				refund.Settle(state, now)
				inUse[given.number] -= given.units
				continue
			}
			cell := Cell{Policy: server, Units: min(1+r.Int64N(3), server.capacity)}
			if !cell.Take(state, now, true) {
				continue
			}
			number := state[1] / windowStep
			charges = append(charges, charge{server, now, cell.Units, number})
			inUse[number] += cell.Units
			if inUse[number] > numbers.Limit {
				t.Fatalf("%v: %d units in window %d", numbers, inUse[number], number)
			}
		}
	}
}

// untilBorder returns the time until the window ends.
func (p *Policy) untilBorder(now int64) int64 {
	if p.calendar == nil {
		return p.Period - now%p.Period
	}
	return p.calendar.windowOf(now).end - now
}

// Texts print as they are parsed, and what is wrong is said.
func TestCalendarTexts(t *testing.T) {
	for text, want := range map[string]string{
		"calendar 1000/month":                           "",
		"calendar 50000/day in Europe/Berlin":           "",
		"calendar 100/week starting 7":                  "",
		"calendar 100/year in America/New_York":         "",
		"calendar 1000/month starting 31 in Asia/Tokyo": "",
		"calendar 1/month in Asia/Tokyo starting 31":    "calendar 1/month starting 31 in Asia/Tokyo",
		"calendar 1/month starting 1 in UTC":            "calendar 1/month",
		"calendar 1000/fortnight":                       `"fortnight" is not a window of a calendar: one of day, week, month and year`,
		"calendar 1000/day starting 5":                  "starting is for a week, with a day from 1 to 7, or a month, from 1 to 31, not 5",
		"calendar 1000/week starting 8":                 "starting is for a week, with a day from 1 to 7, or a month, from 1 to 31, not 8",
		"calendar 1000/day in Europe/Bärlin":            `"Europe/Bärlin" is no time zone that is known here, such as Europe/Berlin`,
		"calendar 1000/day in Local":                    `"Local" is no time zone that is known here, such as Europe/Berlin`,
		"calendar 1000/day in":                          "in needs a time zone, such as in Europe/Berlin",
		"calendar 40000000000/day":                      "a calendar counts at most 34359738368 a day",
		"calendar 5/day count-denied":                   `calendar has no option "count-denied": it has starting, in`,
		"fixed-window 5/day starting 5":                 `fixed-window has no option "starting": it has from-first, count-denied`,
	} {
		if want == "" {
			want = text
		}
		m, err := Parse(text)
		got := m.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// The bytes of a state depend on the window, its zone and the day on which it starts, and not on the number.
func TestCalendarIdentity(t *testing.T) {
	of := func(text string) Numbers {
		m, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return m.Identity()
	}
	m := of("calendar 5/month")
	for text, same := range map[string]bool{
		"calendar 9/month": true, "calendar 5/month starting 1 in UTC": true, "calendar 5/month starting 2": false,
		"calendar 5/month in Europe/Berlin": false, "calendar 5/year": false, "fixed-window 5/31d": false,
	} {
		if (of(text) == m) != same {
			t.Error(text)
		}
	}
}
