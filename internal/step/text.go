package step

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxText is more than twice the longest text that MarshalText writes. Errors repeat the text, so it bounds them too.
const maxText = 256

const (
	unlimited = "unlimited"
	blocked   = "blocked"
)

// kinds are the words that texts begin with.
var kinds = [...]string{
	TokenBucket:   "token-bucket",
	FixedWindow:   "fixed-window",
	SlidingWindow: "sliding-window",
	SlidingLog:    "sliding-log",
	MinInterval:   "min-interval",
	Calendar:      "calendar",
}

// options are the words that may follow.
var options = map[Kind][]string{
	TokenBucket:   {"burst", "debt"},
	FixedWindow:   {"from-first", "count-denied"},
	SlidingWindow: {"resolution", "never-over", "count-denied"},
	SlidingLog:    {"count-denied"},
	Calendar:      {"starting", "in"},
}

// periods are the units of periods, the largest first. A word stands for one of it.
var periods = []struct {
	microseconds int64
	symbol, word string
}{{86400e6, "d", "day"}, {3600e6, "h", "hour"}, {60e6, "m", "minute"}, {1e6, "s", "second"}, {1000, "ms", ""}, {1, "us", ""}}

// String returns the text of numbers, which may be wrong.
func (m Numbers) String() string {
	m = m.whole()
	switch {
	case m.Kind == Constant && m.Limit > 0:
		return unlimited
	case m.Kind == Constant:
		return blocked
	case m.Kind < TokenBucket || m.Kind >= kindEnd:
		return "none"
	}
	s := kinds[m.Kind] + " "
	if m.Kind == MinInterval {
		return s + period(m.Period, false)
	}
	s += strconv.FormatInt(m.Limit, 10) + "/"
	if m.Kind == Calendar {
		s += m.Unit()
	} else {
		s += period(m.Period, true)
	}
	if m.Kind == TokenBucket {
		s += fmt.Sprintf(" burst %d", m.Burst)
	}
	if m.Debt != m.DefaultDebt() {
		s += fmt.Sprintf(" debt %d", m.Debt)
	}
	if m.Kind == SlidingWindow && m.Resolution != UsualResolution {
		s += fmt.Sprintf(" resolution %d", m.Resolution)
	}
	if m.NeverOver {
		s += " never-over"
	}
	if m.FromFirst {
		s += " from-first"
	}
	if m.CountDenied {
		s += " count-denied"
	}
	if m.Starting != 0 {
		s += fmt.Sprintf(" starting %d", m.Starting)
	}
	if m.Zone != "" {
		s += " in " + m.Zone
	}
	return s
}

// Span returns the text of a span, in the largest unit of which it is a whole number.
func Span(microseconds int64) string { return period(microseconds, false) }

// period returns the text of a period, with a word for one of a unit if it may.
func period(microseconds int64, words bool) string {
	for _, u := range periods {
		if words && microseconds == u.microseconds && u.word != "" {
			return u.word
		}
		if microseconds%u.microseconds == 0 {
			return strconv.FormatInt(microseconds/u.microseconds, 10) + u.symbol
		}
	}
	return ""
}

// Words returns the words that texts begin with.
func Words() []string { return append(slices.Clone(kinds[TokenBucket:]), unlimited, blocked) }

// Parse returns the numbers of a text, or what is wrong with it or them.
func Parse(text string) (m Numbers, err error) {
	if len(text) > maxText {
		return m, fmt.Errorf("it has %d bytes, more than %d", len(text), maxText)
	}
	if m, err = parse(strings.Fields(text)); err == nil {
		err = m.Check()
	}
	if err != nil {
		return Numbers{}, errors.New(inTexts.Replace(err.Error()))
	}
	return m, nil
}

// inTexts makes faults of Check, which has the words of Go, into faults of a text.
var inTexts = strings.NewReplacer(
	"\n", "; ",
	"use SlidingWindow(...).NeverOver().Resolution(60)", "use sliding-window with resolution 60 never-over",
	"a SlidingLog", "a sliding-log",
	"use Blocked", "use blocked",
	"Starting is for a Week, with a day from 1 to 7, or a Month", "starting is for a week, with a day from 1 to 7, or a month",
	"a Calendar", "a calendar",
)

// parse returns numbers that may be wrong.
func parse(words []string) (m Numbers, err error) {
	known := strings.Join(Words(), ", ")
	if len(words) == 0 {
		return m, errors.New("it is empty: write one of " + known)
	}
	a := Kind(max(slices.Index(kinds[:], words[0]), 0))
	switch {
	case words[0] == unlimited || words[0] == blocked:
		if len(words) > 1 {
			return m, fmt.Errorf("%s has no options: remove %q", words[0], words[1])
		}
		if words[0] == blocked {
			return Numbers{Kind: Constant}, nil
		}
		return Numbers{Kind: Constant, Limit: MaxInt}, nil
	case a == 0:
		return m, fmt.Errorf("unknown algorithm %q: one of %s", words[0], known)
	case len(words) == 1 && a == MinInterval:
		return m, fmt.Errorf("%s needs a period, such as 100ms", words[0])
	case len(words) == 1:
		return m, fmt.Errorf("%s needs a rate, such as 60/minute", words[0])
	}
	n, per := int64(1), words[1]
	if a != MinInterval {
		var ok bool
		var events string
		if events, per, ok = strings.Cut(words[1], "/"); !ok {
			return m, fmt.Errorf("%q is not a rate: write events/period, such as 60/minute or 7/30s", words[1])
		}
		if n, err = parseNumber(events); err != nil {
			return m, err
		}
	}
	parse := parsePeriod
	if a == Calendar {
		parse = parseUnit
	}
	microseconds, err := parse(per)
	if err != nil {
		return m, err
	}
	switch m = (Numbers{Kind: a, Limit: n, Period: microseconds}); a {
	case TokenBucket:
		m.Burst, m.Debt = n, UsualDebt
	case SlidingWindow:
		m.Resolution = UsualResolution
	}
	return m, m.parseOptions(words[0], words[2:])
}

// parseOptions sets the options that follow the rate of an algorithm.
func (m *Numbers) parseOptions(algorithm string, words []string) error {
	known, seen := options[m.Kind], map[string]bool{}
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case len(known) == 0:
			return fmt.Errorf("%s has no options: remove %q", algorithm, word)
		case !slices.Contains(known, word):
			return fmt.Errorf("%s has no option %q: it has %s", algorithm, word, strings.Join(known, ", "))
		case seen[word]:
			return fmt.Errorf("%s is there twice", word)
		}
		seen[word] = true
		var number *int64
		switch word {
		case "burst":
			number = &m.Burst
		case "debt":
			number = &m.Debt
		case "resolution":
			number = &m.Resolution
		case "never-over":
			m.NeverOver = true
		case "from-first":
			m.FromFirst = true
		case "count-denied":
			m.CountDenied = true
		case "starting":
			number = &m.Starting
		case "in":
			i++
			if i == len(words) {
				return errors.New("in needs a time zone, such as in Europe/Berlin")
			}
			m.Zone = words[i]
		}
		if number == nil {
			continue
		}
		if i++; i == len(words) {
			return fmt.Errorf("%s needs a number, such as %[1]s 100", word)
		}
		n, err := parseNumber(words[i])
		if err != nil {
			return err
		}
		*number = n
	}
	return nil
}

// parsePeriod returns a period of 0 to 142 years, in microseconds.
func parsePeriod(s string) (int64, error) {
	name := strings.TrimLeft(s, "0123456789")
	for _, u := range periods {
		n := int64(1)
		switch {
		case s != "" && s == u.word || s == u.symbol:
		case name == u.symbol:
			var err error
			if n, err = parseNumber(s[:len(s)-len(name)]); err != nil {
				return 0, err
			}
		default:
			continue
		}
		if n > MaxSpan/u.microseconds {
			return 0, fmt.Errorf("%q is too long: a period must be at most 142 years", s)
		}
		return n * u.microseconds, nil
	}
	return 0, fmt.Errorf("%q is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day", s)
}

// parseUnit returns the period that stands for a unit of a calendar.
func parseUnit(word string) (int64, error) {
	for _, unit := range units {
		if unit.word == word {
			return unit.period, nil
		}
	}
	return 0, fmt.Errorf("%q is not a window of a calendar: one of day, week, month and year", word)
}

// parseNumber takes digits without a leading zero.
func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > MaxInt || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a whole number of at most 2^53-1", s)
	}
	return n, nil
}
