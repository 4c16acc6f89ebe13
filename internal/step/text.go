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

// spanUnits are the units of spans, the largest first. A word stands for one of it.
var spanUnits = []struct {
	microseconds int64
	symbol, word string
}{
	{86400e6, "d", "day"},
	{3600e6, "h", "hour"},
	{60e6, "m", "minute"},
	{1e6, "s", "second"},
	{1000, "ms", ""},
	{1, "us", ""},
}

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
	// Constants are done: the others have a word, and a rate or an interval.
	text := kinds[m.Kind] + " "
	if m.Kind == MinInterval {
		return text + Span(m.Period)
	}
	text += strconv.FormatInt(m.Limit, 10) + "/"
	if m.Kind == Calendar {
		text += m.Unit()
	} else {
		text += rateSpan(m.Period)
	}
	return text + m.optionText()
}

// optionText returns the options behind a rate. Those that are as usual are left out, but for the burst.
func (m Numbers) optionText() (text string) {
	// Always in one order, so that equal numbers have equal texts.
	if m.Kind == TokenBucket {
		text += fmt.Sprintf(" burst %d", m.Burst)
	}
	if m.Debt != m.DefaultDebt() {
		text += fmt.Sprintf(" debt %d", m.Debt)
	}
	if m.Kind == SlidingWindow && m.Resolution != UsualResolution {
		text += fmt.Sprintf(" resolution %d", m.Resolution)
	}
	if m.NeverOver {
		text += " never-over"
	}
	if m.FromFirst {
		text += " from-first"
	}
	if m.CountDenied {
		text += " count-denied"
	}
	if m.Starting != 0 {
		text += fmt.Sprintf(" starting %d", m.Starting)
	}
	if m.Zone != "" {
		text += " in " + m.Zone
	}
	return text
}

// Span returns the text of a span, in the largest unit of which it is a whole number.
func Span(microseconds int64) string {
	for _, unit := range spanUnits {
		if microseconds%unit.microseconds == 0 {
			return strconv.FormatInt(microseconds/unit.microseconds, 10) + unit.symbol
		}
	}
	return ""
}

// rateSpan is Span with a word for one of a unit, as in 60/minute.
func rateSpan(microseconds int64) string {
	for _, unit := range spanUnits {
		if microseconds == unit.microseconds && unit.word != "" {
			return unit.word
		}
	}
	return Span(microseconds)
}

// Words returns the words that texts begin with.
func Words() []string { return append(slices.Clone(kinds[TokenBucket:]), unlimited, blocked) }

// Parse returns the numbers of a text, or what is wrong with it or them.
//
//	token-bucket    EVENTS/PERIOD [burst N] [debt N]
//	fixed-window    EVENTS/PERIOD [from-first] [count-denied]
//	sliding-window  EVENTS/PERIOD [resolution N] [never-over] [count-denied]
//	sliding-log     EVENTS/PERIOD [count-denied]
//	calendar        EVENTS/UNIT [starting N] [in ZONE]
//	min-interval    PERIOD
//	unlimited
//	blocked
//
// Options may be in any order.
func Parse(text string) (m Numbers, err error) {
	if len(text) > maxText {
		return m, fmt.Errorf("it has %d bytes, more than %d", len(text), maxText)
	}
	m, err = parse(strings.Fields(text))
	if err == nil {
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
	"Starting is for a Week", "starting is for a week",
	"or a Month", "or a month",
	"a Calendar", "a calendar",
)

// parse returns numbers that may be wrong.
func parse(words []string) (m Numbers, err error) {
	known := strings.Join(Words(), ", ")
	if len(words) == 0 {
		return m, errors.New("it is empty: write one of " + known)
	}
	m.Kind = Kind(max(slices.Index(kinds[:], words[0]), 0))
	switch {
	case words[0] == unlimited || words[0] == blocked:
		return parseConstant(words)
	case m.Kind == 0:
		return m, fmt.Errorf("unknown algorithm %q: one of %s", words[0], known)
	case len(words) == 1 && m.Kind == MinInterval:
		return m, fmt.Errorf("%s needs a period, such as 100ms", words[0])
	case len(words) == 1:
		return m, fmt.Errorf("%s needs a rate, such as 60/minute", words[0])
	}
	// The word is known, and something follows it.
	err = m.parseRate(words[1])
	if err != nil {
		return m, err
	}
	// What is usual, before the options.
	switch m.Kind {
	case TokenBucket:
		m.Burst = m.Limit
		m.Debt = UsualDebt
	case SlidingWindow:
		m.Resolution = UsualResolution
	}
	return m, m.parseOptions(words[0], words[2:])
}

// parseConstant returns the numbers of unlimited or blocked.
func parseConstant(words []string) (m Numbers, err error) {
	if len(words) > 1 {
		return m, fmt.Errorf("%s has no options: remove %q", words[0], words[1])
	}
	m.Kind = Constant
	if words[0] == unlimited {
		m.Limit = MaxInt
	}
	return m, nil
}

// parseRate sets the limit and the period of a word such as 60/minute, or of an interval 100ms.
func (m *Numbers) parseRate(word string) (err error) {
	if m.Kind == MinInterval {
		m.Limit = 1
		m.Period, err = parsePeriod(word)
		return err
	}
	// A calendar has a unit in the place of a period.
	events, period, ok := strings.Cut(word, "/")
	if !ok {
		return fmt.Errorf("%q is not a rate: write events/period, such as 60/minute or 7/30s", word)
	}
	m.Limit, err = parseNumber(events)
	if err != nil {
		return err
	}
	parse := parsePeriod
	if m.Kind == Calendar {
		parse = parseUnit
	}
	m.Period, err = parse(period)
	return err
}

// parseOptions sets the options that follow the rate. The first word is for errors.
func (m *Numbers) parseOptions(first string, words []string) error {
	known := options[m.Kind]
	seen := map[string]bool{}
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case len(known) == 0:
			return fmt.Errorf("%s has no options: remove %q", first, word)
		case !slices.Contains(known, word):
			return fmt.Errorf("%s has no option %q: it has %s", first, word, strings.Join(known, ", "))
		case seen[word]:
			return fmt.Errorf("%s is there twice", word)
		}
		seen[word] = true
		// Flags are set. Of the others, the value is the next word.
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
		i++
		if i == len(words) {
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
func parsePeriod(text string) (int64, error) {
	name := strings.TrimLeft(text, "0123456789")
	for _, unit := range spanUnits {
		// A word, or a symbol alone, stands for one.
		n := int64(1)
		switch {
		case text != "" && text == unit.word || text == unit.symbol:
		case name == unit.symbol:
			number, err := parseNumber(text[:len(text)-len(name)])
			if err != nil {
				return 0, err
			}
			n = number
		default:
			continue
		}
		if n > MaxSpan/unit.microseconds {
			return 0, fmt.Errorf("%q is too long: a period must be at most 142 years", text)
		}
		return n * unit.microseconds, nil
	}
	return 0, fmt.Errorf("%q is not a period: a number and us, ms, s, m, h or d, such as 30s, "+
		"or one of second, minute, hour and day", text)
}

// parseUnit returns the period that stands for a unit of a calendar.
func parseUnit(word string) (int64, error) {
	for _, unit := range units {
		if unit.word == word {
			return unit.longest, nil
		}
	}
	return 0, fmt.Errorf("%q is not a window of a calendar: one of day, week, month and year", word)
}

// parseNumber takes digits without a leading zero.
func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	inRange := 0 <= n && n <= MaxInt
	if err != nil || !inRange || strconv.FormatInt(n, 10) != text {
		return 0, fmt.Errorf("%q is not a whole number of at most 2^53-1", text)
	}
	return n, nil
}
