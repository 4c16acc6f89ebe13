package core

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/old/core/step"
)

const (
	// maxText is more than twice the longest text that MarshalText writes. Errors repeat the
	// text, so it bounds them too.
	maxText = 256

	maxPeriod = step.MaxSpan * time.Microsecond

	wordBurst       = "burst"
	wordDebt        = "debt"
	wordLeasable    = "leasable"
	wordResolution  = "resolution"
	wordNeverOver   = "never-over"
	wordCountDenied = "count-denied"
	wordFromFirst   = "from-first"
)

// defaultDebt stands for that of a text that does not say.
const defaultDebt = -1

// word returns the algorithm's name in texts.
func word(a step.Algorithm) string {
	switch a {
	case step.TokenBucket:
		return "token-bucket"
	case step.FixedWindow:
		return "fixed-window"
	case step.SlidingWindow:
		return "sliding-window"
	case step.SlidingLog:
		return "sliding-log"
	case step.MinInterval:
		return "min-interval"
	case step.Unlimited:
		return "unlimited"
	case step.Blocked:
		return "blocked"
	}
	return "none"
}

// algorithms lists the names of all.
func algorithms() string {
	var all []string
	for a := step.TokenBucket; a <= step.Blocked; a++ {
		all = append(all, word(a))
	}
	return strings.Join(all, ", ")
}

// options returns the words that may follow the algorithm and its rate.
func options(a step.Algorithm) []string {
	switch a {
	case step.TokenBucket:
		return []string{wordBurst, wordDebt, wordLeasable}
	case step.FixedWindow:
		return []string{wordFromFirst, wordCountDenied}
	case step.SlidingLog:
		return []string{wordCountDenied}
	case step.SlidingWindow:
		return []string{wordResolution, wordNeverOver, wordCountDenied}
	}
	return nil
}

// A unit is one that periods are written in.
type unit struct {
	span   time.Duration
	symbol string // follows a number
	word   string // stands for one of it, if it is not empty
}

// units returns all, the largest first.
func units() [6]unit {
	return [...]unit{
		{24 * time.Hour, "d", "day"},
		{time.Hour, "h", "hour"},
		{time.Minute, "m", "minute"},
		{time.Second, "s", "second"},
		{time.Millisecond, "ms", ""},
		{time.Microsecond, "us", ""},
	}
}

// String returns the text of MarshalText, also for a rate that is not valid.
func (r Rate) String() string {
	s := strconv.FormatInt(r.Events, 10) + "/"
	for _, u := range units() {
		if r.Per == u.span && u.word != "" {
			return s + u.word
		}
	}
	return s + period(r.Per)
}

// MarshalText returns the rate as text, in the largest unit in which its period is a whole
// number: "60/minute", "7/30s". A rate that is not valid is an error.
func (r Rate) MarshalText() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, textError("rate", r.String(), err)
	}
	return []byte(r.String()), nil
}

// UnmarshalText sets the rate to the one that a text states. The text is a number of events, a
// slash and a period, without white space between them, such as 60/minute, 1000/day or 7/30s. A
// period is a whole number and a unit: us, ms, s, m, h, or d, which is 24 hours. A number of 1 can
// be omitted. A period of 1 can also be second, minute, hour or day. White space around the rate is
// ignored.
//
// If the text is anything else, longer than 256 bytes, or states a rate that is not valid, r is
// unchanged. The error names the fault and repeats the text.
func (r *Rate) UnmarshalText(text []byte) error {
	if err := checkLength("rate", text); err != nil {
		return err
	}
	parsed, err := parseRate(strings.TrimSpace(string(text)))
	if err == nil {
		err = parsed.check()
	}
	if err != nil {
		return textError("rate", string(text), atWord(0, err))
	}
	*r = parsed
	return nil
}

// check returns what is wrong with the rate for every policy. A FixedWindow narrows nothing.
func (r Rate) check() error {
	_, err := FixedWindow(r).step()
	return err
}

// String returns the text of MarshalText, also for a policy that is not valid. If the policy
// is named, its quoted name and a colon precede it.
func (p Policy) String() string {
	if p.name == "" {
		return p.text()
	}
	return strconv.Quote(p.name) + ": " + p.text()
}

// MarshalText returns the policy as text that [Policy.UnmarshalText] accepts, always in the same
// spelling. Two policies have equal texts if and only if only their names may differ. The name is
// not part of the text: in a document, it is the key under which the policy stands. A policy that
// [New] would refuse, such as the zero Policy, is an error. With the option omitzero, encoding/json
// omits the zero Policy.
func (p Policy) MarshalText() ([]byte, error) {
	if _, err := p.step(); err != nil {
		return nil, textError("policy", p.text(), err)
	}
	return []byte(p.text()), nil
}

// UnmarshalText sets the policy to the one that a text describes, without a name:
//
//	token-bucket 10/second burst 100
//	token-bucket 1000/second burst 2000 leasable 500ms
//	token-bucket 1000/second burst 10000 debt 200000
//	fixed-window 1000/day count-denied
//	fixed-window 5000/hour from-first
//	sliding-window 100000/hour resolution 100 never-over
//	sliding-log 60/minute
//	min-interval 100ms
//	unlimited
//	blocked
//
// An algorithm is followed by a rate, or by the period of min-interval, as in [Rate.UnmarshalText].
// Then its options follow, in any order:
//
//	token-bucket    burst, which is that of the rate without it, debt, and leasable with a period
//	sliding-window  resolution, never-over and count-denied
//	fixed-window    from-first and count-denied
//	sliding-log     count-denied
//
// The methods and parameters of these names describe them. Words are in lower case, with white
// space between them.
//
// If the text is anything else, longer than 256 bytes, or describes a policy that [New] would
// refuse, p is unchanged. The error names the fault and repeats the text. Only New can check the
// policy against the name, the store and the other policies of a limiter.
func (p *Policy) UnmarshalText(text []byte) error {
	if err := checkLength("policy", text); err != nil {
		return err
	}
	parsed, err := parsePolicy(strings.Fields(string(text)))
	if err == nil {
		_, err = parsed.step()
	}
	if err != nil {
		return textError("policy", string(text), err)
	}
	*p = parsed
	return nil
}

// text returns the policy as text, whether it is valid or not.
func (p Policy) text() string {
	m := p.numbers
	s := word(m.Algorithm)
	switch m.Algorithm {
	case step.TokenBucket, step.FixedWindow, step.SlidingWindow, step.SlidingLog:
		s += " " + Rate{m.Limit, span(m.Period)}.String()
	case step.MinInterval:
		s += " " + period(span(m.Period))
	}
	if m.Algorithm == step.TokenBucket {
		s += fmt.Sprintf(" %s %d", wordBurst, m.Burst+m.Refill())
	}
	if m.Debt != m.DefaultDebt() {
		s += fmt.Sprintf(" %s %d", wordDebt, m.Debt)
	}
	if m.Lease > 0 {
		s += " " + wordLeasable + " " + period(span(m.Lease))
	}
	if m.Algorithm == step.SlidingWindow && m.Resolution != DefaultResolution {
		s += fmt.Sprintf(" %s %d", wordResolution, m.Resolution)
	}
	if m.NeverOver {
		s += " " + wordNeverOver
	}
	if m.FromFirst {
		s += " " + wordFromFirst
	}
	if m.CountDenied {
		s += " " + wordCountDenied
	}
	return s
}

// period returns the text of a period, with a number.
func period(d time.Duration) string {
	for _, u := range units() {
		if d%u.span == 0 {
			return strconv.FormatInt(int64(d/u.span), 10) + u.symbol
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns" // not valid
}

// checkLength comes first, so that nothing is done with a text that is too long.
func checkLength(kind string, text []byte) error {
	if len(text) > maxText {
		return fmt.Errorf("headgate: the text of a %s has at most %d bytes, not %d", kind, maxText, len(text))
	}
	return nil
}

// A TextError is the error of a text that is no [Rate] or [Policy], or of one of these that
// has no text.
type TextError struct {
	Kind   string // "rate" or "policy"
	Text   string
	Offset int   // in Text, in bytes, of the word that is wrong; 0 if it is the whole text
	Err    error // the fault, and what to do instead
}

// Error repeats the text, and names the fault. It has one line.
func (e *TextError) Error() string {
	return fmt.Sprintf("headgate: %s %q: %v", e.Kind, e.Text, e.Err)
}

// Unwrap returns Err.
func (e *TextError) Unwrap() error { return e.Err }

// textError returns the error of a text, on one line even if err joins several.
func textError(kind, text string, err error) error {
	e := &TextError{Kind: kind, Text: text, Err: err}
	var w *wordError
	if errors.As(err, &w) {
		e.Offset, e.Err = offsetOf(text, w.word), w.err
	}
	if s := e.Err.Error(); strings.Contains(s, "\n") {
		e.Err = errors.New(strings.ReplaceAll(s, "\n", "; "))
	}
	return e
}

// A wordError is wrong with one word of a text.
type wordError struct {
	word int // its index
	err  error
}

func (e *wordError) Error() string { return e.err.Error() }

// atWord says which word an error is about.
func atWord(word int, err error) error {
	if err == nil {
		return nil
	}
	return &wordError{word, err}
}

// offsetOf returns where a word begins, or the last one if there are fewer.
func offsetOf(text string, word int) (offset int) {
	end := 0
	for i, w := range strings.Fields(text) {
		offset = end + strings.Index(text[end:], w)
		end = offset + len(w)
		if i == word {
			break
		}
	}
	return offset
}

// parsePolicy returns a policy that may be one which New refuses.
func parsePolicy(words []string) (Policy, error) {
	if len(words) == 0 {
		return Policy{}, errors.New("it is empty: write one of " + algorithms())
	}
	first, rest := words[0], words[1:]
	a := step.TokenBucket
	for word(a) != first {
		if a++; a > step.Blocked {
			return Policy{}, atWord(0, fmt.Errorf("unknown algorithm %q: one of %s", first, algorithms()))
		}
	}
	var p Policy
	switch {
	case a == step.Unlimited || a == step.Blocked:
		p = Policy{numbers: step.Numbers{Algorithm: a}}
		return p, parseOptions(&p.numbers, words, 1)
	case a == step.MinInterval && len(rest) == 0:
		return p, atWord(0, fmt.Errorf("%s needs a period, such as 100ms", first))
	case a == step.MinInterval:
		d, err := parsePeriod(rest[0])
		if err != nil {
			return p, atWord(1, err)
		}
		p = MinInterval(d)
	case len(rest) == 0:
		return p, atWord(0, fmt.Errorf("%s needs a rate, such as 60/minute", first))
	default:
		r, err := parseRate(rest[0])
		if err != nil {
			return p, atWord(1, err)
		}
		p = policy(a, r)
	}
	if a == step.TokenBucket {
		p.numbers.Debt = defaultDebt
	}
	err := parseOptions(&p.numbers, words, 2)
	p.numbers.Burst -= p.numbers.Refill()
	if p.numbers.Debt == defaultDebt {
		p.numbers.Debt = p.numbers.DefaultDebt()
	}
	return p, err
}

// parseOptions sets the options, which are the words from that index on.
func parseOptions(m *step.Numbers, words []string, next int) error {
	a, valid := word(m.Algorithm), options(m.Algorithm)
	var seen []string
	for next < len(words) {
		at, option := next, words[next]
		next++
		switch {
		case len(valid) == 0:
			return atWord(at, fmt.Errorf("%s has no options: remove %q", a, option))
		case !slices.Contains(valid, option):
			return atWord(at, fmt.Errorf("%s has no option %q: it has %s", a, option, strings.Join(valid, ", ")))
		case slices.Contains(seen, option):
			return atWord(at, fmt.Errorf("%s is there twice", option))
		}
		seen = append(seen, option)
		n, after, err := parseArgument(option, words, next)
		if err != nil {
			return err
		}
		next = after
		setOption(m, option, n)
	}
	switch {
	case m.Algorithm == step.TokenBucket && !slices.Contains(seen, wordBurst):
		m.Burst = m.Limit
	case m.Algorithm == step.SlidingWindow && !slices.Contains(seen, wordResolution):
		m.Resolution = DefaultResolution
	}
	return nil
}

// parseArgument returns what follows an option, if it takes something, and the index of the word
// after that.
func parseArgument(option string, words []string, next int) (n int64, after int, err error) {
	example := "a number, such as " + option + " 100"
	switch option {
	case wordLeasable:
		example = "a period, such as " + option + " 100ms"
	case wordBurst, wordDebt, wordResolution:
	default:
		return 0, next, nil
	}
	if next == len(words) {
		return 0, next, atWord(next-1, fmt.Errorf("%s needs %s", option, example))
	}
	if option != wordLeasable {
		n, err = parseNumber(words[next])
	} else {
		var d time.Duration
		if d, err = parsePeriod(words[next]); err == nil && d == 0 {
			err = fmt.Errorf("%s needs a positive period", option)
		}
		n = d.Microseconds()
	}
	if err != nil {
		return 0, next, atWord(next, err)
	}
	return n, next + 1, nil
}

// setOption sets an option to what follows it.
func setOption(m *step.Numbers, option string, n int64) {
	switch option {
	case wordBurst:
		m.Burst = n
	case wordDebt:
		m.Debt = n
	case wordLeasable:
		m.Lease = n
	case wordResolution:
		m.Resolution = n
	case wordNeverOver:
		m.NeverOver = true
	case wordFromFirst:
		m.FromFirst = true
	case wordCountDenied:
		m.CountDenied = true
	}
}

// parseRate returns a rate that may not be valid.
func parseRate(s string) (Rate, error) {
	events, per, ok := strings.Cut(s, "/")
	if !ok {
		return Rate{}, fmt.Errorf("%q is not a rate: write events/period, such as 60/minute or 7/30s", s)
	}
	n, err := parseNumber(events)
	if err != nil {
		return Rate{}, err
	}
	d, err := parsePeriod(per)
	return Rate{n, d}, err
}

// parsePeriod returns a period of 0 to 142 years.
func parsePeriod(s string) (time.Duration, error) {
	name := strings.TrimLeft(s, "0123456789")
	digits := s[:len(s)-len(name)]
	for _, u := range units() {
		n := int64(1)
		switch {
		case s != "" && s == u.word || s == u.symbol:
		case name == u.symbol:
			var err error
			if n, err = parseNumber(digits); err != nil {
				return 0, err
			}
		default:
			continue
		}
		if n > int64(maxPeriod/u.span) {
			return 0, fmt.Errorf("%q is too long: a period must be at most 142 years", s)
		}
		return time.Duration(n) * u.span, nil
	}
	return 0, fmt.Errorf("%q is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day", s)
}

// parseNumber takes digits without a leading zero.
func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > step.MaxInt || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a whole number of at most 2^53-1", s)
	}
	return n, nil
}
