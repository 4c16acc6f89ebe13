package core_test

import (
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
)

var (
	_ encoding.TextMarshaler   = core.Rate{}
	_ encoding.TextUnmarshaler = (*core.Rate)(nil)
	_ encoding.TextMarshaler   = core.Policy{}
	_ encoding.TextUnmarshaler = (*core.Policy)(nil)
)

const (
	day  = 24 * time.Hour
	long = 1 << 52 * time.Microsecond // the longest period
)

// rateTexts are rates in their canonical spelling.
var rateTexts = []struct {
	text string
	rate core.Rate
}{
	{"1/second", core.PerSecond(1)},
	{"60/minute", core.PerMinute(60)},
	{"5/hour", core.PerHour(5)},
	{"1000/day", core.PerDay(1000)},
	{"7/30s", core.Rate{Events: 7, Per: 30 * time.Second}},
	{"5/2h", core.Rate{Events: 5, Per: 2 * time.Hour}},
	{"1/7d", core.Every(7 * day)},
	{"1/90m", core.Every(time.Hour + 30*time.Minute)},
	{"1/90s", core.Every(90 * time.Second)},
	{"1/1500ms", core.Every(1500 * time.Millisecond)},
	{"2/1ms", core.Rate{Events: 2, Per: time.Millisecond}},
	{"2/1us", core.Rate{Events: 2, Per: time.Microsecond}},
	{"3/1000001us", core.Rate{Events: 3, Per: time.Second + time.Microsecond}},
	{"9007199254740991/4503599627370496us", core.Rate{Events: core.NoLimit, Per: long}},
}

// policyTexts are policies in their canonical spelling.
var policyTexts = []struct {
	text   string
	policy core.Policy
}{
	{"token-bucket 10/second burst 100", core.TokenBucket(core.PerSecond(10), 100)},
	{"token-bucket 1000/second burst 10000 debt 200000", core.TokenBucket(core.PerSecond(1000), 10000).Debt(200000)},
	{"token-bucket 10/second burst 100 debt 0", core.TokenBucket(core.PerSecond(10), 100).Debt(0)},
	{"token-bucket 10/second burst 100", core.TokenBucket(core.PerSecond(10), 100).Debt(100)},
	{"token-bucket 100/second burst 200 debt 1 leasable 500ms", core.TokenBucket(core.PerSecond(100), 200).Debt(1).Leasable(500 * time.Millisecond)},
	{"token-bucket 10/2s burst 5 debt 4", core.TokenBucket(core.PerSecond(10), 9).Debt(7).Share(2)},
	{"token-bucket 1/7d burst 1", core.TokenBucket(core.Every(7*day), 1)},
	{"token-bucket 1000000000/30d burst 1000000000", core.TokenBucket(core.Rate{Events: 1e9, Per: 30 * day}, 1e9)},
	{"token-bucket 100/second burst 200 leasable 500ms", core.TokenBucket(core.PerSecond(100), 200).Leasable(500 * time.Millisecond)},
	{"token-bucket 100/second burst 200 leasable 1ms", core.TokenBucket(core.PerSecond(100), 200).Leasable(500 * time.Millisecond).Leasable(time.Millisecond)},
	{"fixed-window 1000/day", core.FixedWindow(core.PerDay(1000))},
	{"fixed-window 1000/day count-denied", core.FixedWindow(core.PerDay(1000)).CountDenied()},
	{"fixed-window 5000/hour from-first", core.FixedWindow(core.PerHour(5000)).FromFirst()},
	{"fixed-window 5/minute from-first count-denied", core.FixedWindow(core.PerMinute(5)).CountDenied().FromFirst()},
	{"sliding-window 10/hour", core.SlidingWindow(core.PerHour(10))},
	{"sliding-window 10/hour resolution 1", core.SlidingWindow(core.PerHour(10)).Resolution(1)},
	{"sliding-window 10/hour never-over", core.SlidingWindow(core.PerHour(10)).NeverOver()},
	{"sliding-window 10/hour count-denied", core.SlidingWindow(core.PerHour(10)).CountDenied()},
	{"sliding-window 10/hour", core.SlidingWindow(core.PerHour(10)).Resolution(core.DefaultResolution)},
	{"sliding-window 100000/hour resolution 100 never-over", core.SlidingWindow(core.PerHour(100_000)).Resolution(100).NeverOver()},
	{"sliding-window 9007199254740991/4503599627370495us resolution 1000 never-over count-denied",
		core.SlidingWindow(core.Rate{Events: core.NoLimit, Per: long - time.Microsecond}).Resolution(1000).NeverOver().CountDenied()},
	{"sliding-log 60/minute", core.SlidingLog(core.PerMinute(60))},
	{"sliding-log 60/minute count-denied", core.SlidingLog(core.PerMinute(60)).CountDenied()},
	{"min-interval 100ms", core.MinInterval(100 * time.Millisecond)},
	{"min-interval 1s", core.MinInterval(time.Second)},
	{"min-interval 1d", core.MinInterval(day)},
	{"unlimited", core.Unlimited()},
	{"blocked", core.Blocked()},

	// A share is a policy like any other.
	{"token-bucket 10/2s burst 6 leasable 100ms", core.TokenBucket(core.PerSecond(10), 10).Leasable(100 * time.Millisecond).Share(2)},
	{"token-bucket 10/2s burst 5", core.TokenBucket(core.PerSecond(10), 9).Share(2)},
	{"min-interval 3s", core.MinInterval(time.Second).Share(3)},
	{"unlimited", core.Unlimited().Share(3)},
}

// badRates are texts of no rate; the error goes on after the text.
var badRates = []struct{ text, fault string }{
	{"", `"" is not a rate: write events/period, such as 60/minute or 7/30s`},
	{"60", `"60" is not a rate: write events/period, such as 60/minute or 7/30s`},
	{"60 per minute", `"60 per minute" is not a rate: write events/period, such as 60/minute or 7/30s`},
	{"/minute", `"" is not a whole number of at most 2^53-1`},
	{"x/minute", `"x" is not a whole number of at most 2^53-1`},
	{"-1/minute", `"-1" is not a whole number of at most 2^53-1`},
	{"+1/minute", `"+1" is not a whole number of at most 2^53-1`},
	{"007/minute", `"007" is not a whole number of at most 2^53-1`},
	{"1.5/minute", `"1.5" is not a whole number of at most 2^53-1`},
	{"1e3/minute", `"1e3" is not a whole number of at most 2^53-1`},
	{"1_000/minute", `"1_000" is not a whole number of at most 2^53-1`},
	{"60 /minute", `"60 " is not a whole number of at most 2^53-1`},
	{"٣/minute", `"٣" is not a whole number of at most 2^53-1`},
	{"9007199254740992/minute", `"9007199254740992" is not a whole number of at most 2^53-1`},
	{"99999999999999999999/minute", `"99999999999999999999" is not a whole number of at most 2^53-1`},
	{"0/minute", `a rate of 0 events: to refuse everything, use Blocked`},
	{"60/", noPeriod("")},
	{"60/30", noPeriod("30")},
	{"60/mintue", noPeriod("mintue")},
	{"60/Minute", noPeriod("Minute")},
	{"60/minutes", noPeriod("minutes")},
	{"60/2minutes", noPeriod("2minutes")},
	{"60/2minute", noPeriod("2minute")},
	{"60/M", noPeriod("M")},
	{"60/w", noPeriod("w")},
	{"60/µs", noPeriod("µs")},
	{"60/-1s", noPeriod("-1s")},
	{"60/1.5s", noPeriod("1.5s")},
	{"60/1m30s", noPeriod("1m30s")},
	{"60/ minute", noPeriod(" minute")},
	{"60/minute/2", noPeriod("minute/2")},
	{"60/500ns", noPeriod("500ns")},
	{"60/\x00\n", noPeriod("\x00")},
	{"60/01s", `"01" is not a whole number of at most 2^53-1`},
	{"60/99999999999999999999s", `"99999999999999999999" is not a whole number of at most 2^53-1`},
	{"60/0s", `a period must be positive, and at most 142 years`},
	{"60/4503599627370497us", `"4503599627370497us" is too long: a period must be at most 142 years`},
	{"60/52125d", `"52125d" is too long: a period must be at most 142 years`},
	{"60/9007199254740991d", `"9007199254740991d" is too long: a period must be at most 142 years`},
	{"0/0s", `a rate of 0 events: to refuse everything, use Blocked; a period must be positive, and at most 142 years`},
}

func noPeriod(s string) string {
	return fmt.Sprintf("%q is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day", s)
}

// badPolicies are texts of no policy.
var badPolicies = []struct{ text, fault string }{
	{"", "it is empty: write one of " + algorithms},
	{" \t\r\n", "it is empty: write one of " + algorithms},
	{"sliding 60/minute", `unknown algorithm "sliding": one of ` + algorithms},
	{"Sliding-Log 60/minute", `unknown algorithm "Sliding-Log": one of ` + algorithms},
	{"60/minute", `unknown algorithm "60/minute": one of ` + algorithms},
	{"none", `unknown algorithm "none": one of ` + algorithms},
	{`"minute": sliding-log 60/minute`, `unknown algorithm "\"minute\":": one of ` + algorithms},
	{"\xff\x00", `unknown algorithm "\xff\x00": one of ` + algorithms},

	{"sliding-log", "sliding-log needs a rate, such as 60/minute"},
	{"sliding-log 60", `"60" is not a rate: write events/period, such as 60/minute or 7/30s`},
	{"sliding-log 60 / minute", `"60" is not a rate: write events/period, such as 60/minute or 7/30s`},
	{"sliding-log count-denied 60/minute", `"count-denied" is not a rate: write events/period, such as 60/minute or 7/30s`},
	{"sliding-log 60/mintue", noPeriod("mintue")},
	{"sliding-log 0/minute", "a rate of 0 events: to refuse everything, use Blocked"},
	{"sliding-log 1048577/day", "a SlidingLog stores each event, at most 1048576, not 1048577: use SlidingWindow"},
	{"sliding-log 60/minute never-over", `sliding-log has no option "never-over": it has count-denied`},
	{"sliding-log 60/minute 10/second", `sliding-log has no option "10/second": it has count-denied`},
	{"fixed-window 60/minute, 10/second", noPeriod("minute,")},
	{"sliding-window 1/day count-denied never-over count-denied", "count-denied is there twice"},
	{"sliding-window 1/day resolution 5 resolution 5", "resolution is there twice"},
	{"fixed-window 1/day resolution 10", `fixed-window has no option "resolution": it has from-first, count-denied`},

	{"token-bucket 10/second 100", `token-bucket has no option "100": it has burst, debt, leasable`},
	{"token-bucket 10/second burst", "burst needs a number, such as burst 100"},
	{"token-bucket 10/second burst=100", `token-bucket has no option "burst=100": it has burst, debt, leasable`},
	{"token-bucket 10/second burst x", `"x" is not a whole number of at most 2^53-1`},
	{"token-bucket 10/second burst -1", `"-1" is not a whole number of at most 2^53-1`},
	{"token-bucket 10/second burst 0", "a burst must be at least 1, is 0"},
	{"token-bucket 10/second burst 1 burst 1", "burst is there twice"},
	{"token-bucket 10/second burst 8 debt", "debt needs a number, such as debt 100"},
	{"token-bucket 10/second burst 8 debt -1", `"-1" is not a whole number of at most 2^53-1`},
	{"token-bucket 1/day burst 8 debt 99999999", "a debt of 99999999 at this rate cannot be counted exactly: it must be at most 52116"},
	{"fixed-window 10/second debt 8", `fixed-window has no option "debt": it has from-first, count-denied`},
	{"token-bucket 10/second burst 8 leasable", "leasable needs a period, such as leasable 100ms"},
	{"token-bucket 10/second burst 8 leasable 0s", "leasable needs a positive period"},
	{"token-bucket 10/second burst 8 leasable x", noPeriod("x")},
	{"token-bucket 10/second burst 8 leasable 1s", "a burst of 8 is too small for leases of 1s, in which 10 units refill: it must be at least 40, or the time at most 200ms"},
	{"token-bucket 3/second burst 8 leasable 1s", "a burst of 8 is too small for leases of 1s, in which 3 units refill: it must be at least 12, or the time at most 666.666ms"},
	{"token-bucket 10/second burst 3 leasable 1s", "a burst of 3 is too small for leases of 1s, in which 10 units refill: it must be at least 40, or the time at most 66.666ms"},
	{"token-bucket 10/second burst 1 leasable 1ms", "a burst of 1 is too small to be leased: it must be at least 2"},
	{"fixed-window 10/second leasable 1ms", `fixed-window has no option "leasable": it has from-first, count-denied`},
	{"token-bucket 0/second burst 0", "a rate of 0 events: to refuse everything, use Blocked; a burst must be at least 1, is 0"},
	{"token-bucket 2/1us burst 1", "a token bucket's rate must be at most 1,000,000 a second"},
	{"token-bucket 2/day burst 9007199254740991", "a burst of 9007199254740991 at this rate cannot be counted exactly: make the burst smaller or the rate rounder"},

	{"sliding-window 10/hour burst 1", `sliding-window has no option "burst": it has resolution, never-over, count-denied`},
	{"sliding-window 10/hour resolution", "resolution needs a number, such as resolution 100"},
	{"sliding-window 10/hour resolution never-over", `"never-over" is not a whole number of at most 2^53-1`},
	{"sliding-window 10/hour resolution 0", "a resolution must be from 1 to 1000, is 0"},
	{"sliding-window 10/hour resolution 1001", "a resolution must be from 1 to 1000, is 1001"},
	{"sliding-window 10/9us", "a resolution of 10 needs a period of as many microseconds"},

	{"min-interval", "min-interval needs a period, such as 100ms"},
	{"min-interval 10/second", noPeriod("10/second")},
	{"min-interval 0s", "a period must be positive, and at most 142 years"},
	{"min-interval 100ms count-denied", `min-interval has no options: remove "count-denied"`},
	{"unlimited 5/day", `unlimited has no options: remove "5/day"`},
	{"blocked count-denied", `blocked has no options: remove "count-denied"`},
}

const algorithms = "token-bucket, fixed-window, sliding-window, sliding-log, min-interval, unlimited, blocked"

func TestRateText(t *testing.T) {
	for _, test := range rateTexts {
		if text, err := test.rate.MarshalText(); err != nil || string(text) != test.text || test.rate.String() != test.text {
			t.Errorf("%+v is %s, %v, and as a string %v; want %s", test.rate, text, err, test.rate, test.text)
		}
		var r core.Rate
		if err := r.UnmarshalText([]byte(test.text)); err != nil || r != test.rate {
			t.Errorf("%s is %v, %v", test.text, r, err)
		}
	}
	for text, want := range map[string]string{
		"60/m": "60/minute", "60/1m": "60/minute", "60/60s": "60/minute", "60/60000ms": "60/minute", "60/60000000us": "60/minute",
		"5/24h": "5/day", "5/1440m": "5/day", "5/d": "5/day", "5/ms": "5/1ms", "5/us": "5/1us", "5/1000us": "5/1ms",
		"5/52124d": "5/52124d", "\t5/h\r\n": "5/hour",
	} {
		var r core.Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r.String() != want {
			t.Errorf("%q is %v, %v; want %s", text, r, err, want)
		}
	}
}

func TestPolicyText(t *testing.T) {
	used := map[string]bool{}
	for _, test := range policyTexts {
		used[strings.Fields(test.text)[0]] = true
		for _, name := range []string{"", "some name"} {
			if text, err := test.policy.Named(name).MarshalText(); err != nil || string(text) != test.text {
				t.Errorf("%v is %s, %v; want %s", test.policy, text, err, test.text)
			}
		}
		p := core.Blocked().Named("some name")
		if err := p.UnmarshalText([]byte(test.text)); err != nil || p != test.policy {
			t.Errorf("%s is %v, %v", test.text, p, err)
		}
	}
	if len(used) != int(step.Blocked) {
		t.Errorf("%d algorithms of %d were tried: %v", len(used), step.Blocked, used)
	}
	for text, want := range map[string]string{
		"\t sliding-log\n  60/1m ":                              "sliding-log 60/minute",
		"sliding-log\u00a060/m":                                 "sliding-log 60/minute",
		"sliding-window 9/hour resolution 10":                   "sliding-window 9/hour",
		"fixed-window 9/h count-denied from-first":              "fixed-window 9/hour from-first count-denied",
		"sliding-window 9/h count-denied resolution 7":          "sliding-window 9/hour resolution 7 count-denied",
		"sliding-window 9/h never-over count-denied":            "sliding-window 9/hour never-over count-denied",
		"sliding-window 9/h count-denied never-over":            "sliding-window 9/hour never-over count-denied",
		"sliding-window 9/h never-over resolution 7":            "sliding-window 9/hour resolution 7 never-over",
		"min-interval second":                                   "min-interval 1s",
		"min-interval 1000ms":                                   "min-interval 1s",
		"blocked\n":                                             "blocked",
		"unlimited" + strings.Repeat(" ", 256-len("unlimited")): "unlimited",
	} {
		var p core.Policy
		if err := p.UnmarshalText([]byte(text)); err != nil || p.String() != want {
			t.Errorf("%q is %v, %v; want %s", text, p, err, want)
		}
	}
}

// TestBadTexts change nothing.
func TestBadTexts(t *testing.T) {
	for _, test := range badRates {
		r, want := core.PerDay(5), fmt.Sprintf("headgate: rate %q: %s", test.text, test.fault)
		if err := r.UnmarshalText([]byte(test.text)); fmt.Sprint(err) != want || r != core.PerDay(5) {
			t.Errorf("now %v, %v\nwant %s", r, err, want)
		}
	}
	for _, test := range badPolicies {
		p, want := core.Blocked().Named("x"), fmt.Sprintf("headgate: policy %q: %s", test.text, test.fault)
		if err := p.UnmarshalText([]byte(test.text)); fmt.Sprint(err) != want || p != core.Blocked().Named("x") {
			t.Errorf("now %v, %v\nwant %s", p, err, want)
		}
	}
	for _, length := range []int{257, 1 << 20} {
		text := []byte(strings.Repeat(" ", length))
		r, p := core.PerDay(5), core.Blocked()
		err := errors.Join(r.UnmarshalText(text), p.UnmarshalText(text))
		want := fmt.Sprintf("headgate: the text of a rate has at most 256 bytes, not %d\nheadgate: the text of a policy has at most 256 bytes, not %d", length, length)
		if fmt.Sprint(err) != want || r != core.PerDay(5) || p != core.Blocked() {
			t.Errorf("now %v, %v, %v\nwant %s", r, p, err, want)
		}
	}
}

// TestWhatIsNotValidHasNoText, though it can be printed.
func TestWhatIsNotValidHasNoText(t *testing.T) {
	for _, test := range []struct {
		value interface {
			encoding.TextMarshaler
			fmt.Stringer
		}
		text, fault string
	}{
		{core.Rate{}, "0/0d", "a rate of 0 events: to refuse everything, use Blocked; a period must be positive, and at most 142 years"},
		{core.PerMinute(-1), "-1/minute", "a rate of -1 events: there must be at least 1"},
		{core.PerMinute(core.NoLimit + 1), "9007199254740992/minute", "9007199254740992 events are more than 2^53-1"},
		{core.Every(-time.Second), "1/-1s", "a period must be positive, and at most 142 years"},
		{core.Every(1500 * time.Nanosecond), "1/1500ns", "a period must be a whole number of microseconds"},
		{core.Every(long + time.Microsecond), "1/4503599627370497us", "a period must be at most 142 years"},
		{core.Policy{}, "none", "no policy: use TokenBucket, FixedWindow, SlidingWindow, SlidingLog, MinInterval, Unlimited or Blocked"},
		{core.FixedWindow(core.Every(1500 * time.Nanosecond)), "fixed-window 1/2us", "a period must be a whole number of microseconds"},
		{core.FixedWindow(core.PerDay(1)).NeverOver(), "fixed-window 1/day never-over", "NeverOver is for SlidingWindow"},
		{core.FixedWindow(core.PerDay(1)).Resolution(5), "fixed-window 1/day", "Resolution is for SlidingWindow"},
		{core.SlidingLog(core.PerDay(1)).FromFirst(), "sliding-log 1/day from-first", "FromFirst is for FixedWindow"},
		{core.MinInterval(time.Second).CountDenied(), "min-interval 1s count-denied", "CountDenied is for FixedWindow, SlidingWindow and SlidingLog"},
		{core.FixedWindow(core.PerDay(1)).Leasable(1), "fixed-window 1/day", "Leasable is for TokenBucket: windows are leased as they are"},
		{core.TokenBucket(core.PerDay(1), 9).Leasable(1), "token-bucket 1/day burst 9", "Leasable(1ns) needs a positive whole number of microseconds"},
		{core.Blocked().Share(0), "blocked", "Share(0) needs at least 1 server"},
		{core.TokenBucket(core.PerDay(0), -1), "token-bucket 0/day burst -1", "a rate of 0 events: to refuse everything, use Blocked; a burst must be at least 1, is -1"},
	} {
		kind := "policy"
		if _, ok := test.value.(core.Rate); ok {
			kind = "rate"
		}
		want := fmt.Sprintf("headgate: %s %q: %s", kind, test.text, test.fault)
		if text, err := test.value.MarshalText(); text != nil || fmt.Sprint(err) != want || test.value.String() != test.text {
			t.Errorf("%v is %q, %v\nwant %s", test.value, text, err, want)
		}
	}
}

// TestTextsRoundTrip: a policy has a text if and only if New accepts it, and that is the
// policy, but for its name.
func TestTextsRoundTrip(t *testing.T) {
	s := memstore.New(memstore.Config{})
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		_, fault := core.New(s, "api", p)
		text, err := p.Named(rapid.SampledFrom([]string{"", "api", `"`}).Draw(t, "name")).MarshalText()
		if (err == nil) != (fault == nil) {
			t.Fatalf("%v is %q, %v; New: %v", p, text, err, fault)
		}
		if err == nil {
			checkPolicyText(t, string(text), p)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		r := drawRate(t)
		_, fault := core.New(s, "api", core.FixedWindow(r))
		text, err := r.MarshalText()
		if (err == nil) != (fault == nil) {
			t.Fatalf("%v is %q, %v; New: %v", r, text, err, fault)
		}
		if err == nil {
			checkRateText(t, string(text), r)
		}
	})
}

// TestTextsOfWords: what is made of the right words, in any order, is refused or a policy.
func TestTextsOfWords(t *testing.T) {
	words := strings.Fields(strings.ReplaceAll(algorithms, ",", "") + " burst debt leasable resolution never-over count-denied from-first")
	number := rapid.SampledFrom([]string{"0", "1", "7", "60", "1000", "1048577", "9007199254740991", "9007199254740992", "01"})
	unit := rapid.SampledFrom([]string{"us", "ms", "s", "m", "h", "d", "second", "minute", "hour", "day", "x"})
	rapid.Check(t, func(t *rapid.T) {
		period := rapid.SampledFrom([]string{"", number.Draw(t, "count")}).Draw(t, "one or many") + unit.Draw(t, "unit")
		rate := number.Draw(t, "events") + "/" + period
		tryRateText(t, rate)
		text := []string{rapid.SampledFrom(words[:step.Blocked]).Draw(t, "algorithm")}
		if rapid.IntRange(0, 3).Draw(t, "with a rate") > 0 {
			text = append(text, rate)
		}
		for range rapid.IntRange(0, 4).Draw(t, "words") {
			text = append(text, rapid.OneOf(rapid.Just(period), rapid.SampledFrom(words), number).Draw(t, "word"))
		}
		tryPolicyText(t, strings.Join(text, rapid.SampledFrom([]string{" ", "\t \n"}).Draw(t, "space")))
	})
}

func drawPolicy(t *rapid.T) core.Policy {
	r := drawRate(t)
	var p core.Policy
	switch rapid.IntRange(0, 6).Draw(t, "algorithm") {
	case 0:
		p = core.TokenBucket(r, drawNumber(t, "burst"))
		if rapid.Bool().Draw(t, "debt") {
			p = p.Debt(drawNumber(t, "units"))
		}
		if rapid.Bool().Draw(t, "leased") {
			p = p.Leasable(time.Duration(rapid.Int64Range(-1, 1_000_000).Draw(t, "lease")) * time.Microsecond)
		}
	case 1:
		p = core.FixedWindow(r)
	case 2:
		p = core.SlidingWindow(r)
		if rapid.Bool().Draw(t, "fine") {
			p = p.Resolution(rapid.IntRange(0, 1001).Draw(t, "resolution"))
		}
		if rapid.Bool().Draw(t, "never over") {
			p = p.NeverOver()
		}
	case 3:
		p = core.SlidingLog(r)
	case 4:
		p = core.MinInterval(r.Per)
	case 5:
		p = core.Unlimited()
	case 6:
		p = core.Blocked()
	}
	// Most methods are for some policies only: most draws have none that is not for theirs.
	switch rapid.IntRange(0, 15).Draw(t, "method") {
	case 0, 1, 2:
		p = p.CountDenied()
	case 3, 4:
		p = p.Share(drawNumber(t, "servers"))
	case 5:
		p = p.NeverOver()
	case 6:
		p = p.Resolution(7)
	}
	return p
}

func drawRate(t *rapid.T) core.Rate {
	units := []time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour, day}
	per := rapid.SampledFrom(units).Draw(t, "unit") * time.Duration(rapid.Int64Range(1, 5000).Draw(t, "count"))
	switch rapid.IntRange(0, 9).Draw(t, "period") {
	case 0:
		per = rapid.SampledFrom(units).Draw(t, "one")
	case 1:
		per = time.Duration(rapid.Int64Range(1, 1<<52+1).Draw(t, "microseconds")) * time.Microsecond
	case 2:
		per = time.Duration(rapid.Int64().Draw(t, "nanoseconds"))
	}
	return core.Rate{Events: drawNumber(t, "events"), Per: per}
}

func drawNumber(t *rapid.T, name string) int64 {
	switch rapid.IntRange(0, 9).Draw(t, name+"' size") {
	case 0:
		return rapid.Int64().Draw(t, name)
	case 1:
		return rapid.Int64Range(1<<53-3, 1<<53+3).Draw(t, name)
	}
	return rapid.Int64Range(1, 10_000).Draw(t, name)
}

// checkPolicyText: the text is the canonical one of p, which is valid and has no name.
func checkPolicyText(t interface {
	Fatalf(format string, args ...any)
}, text string, p core.Policy) {
	var q core.Policy
	if err := q.UnmarshalText([]byte(text)); err != nil || q != p {
		t.Fatalf("%q, the text of %v, is %v, %v", text, p, q, err)
	}
	if again, err := q.MarshalText(); err != nil || string(again) != text || q.String() != text {
		t.Fatalf("%q became %q, %v, and as a string %v", text, again, err, q)
	}
	if len(text) > 128 {
		t.Fatalf("%q has %d bytes", text, len(text))
	}
}

// checkRateText: the text is the canonical one of r, which is valid.
func checkRateText(t interface {
	Fatalf(format string, args ...any)
}, text string, r core.Rate) {
	var q core.Rate
	if err := q.UnmarshalText([]byte(text)); err != nil || q != r {
		t.Fatalf("%q, the text of %v, is %v, %v", text, r, q, err)
	}
	if again, err := q.MarshalText(); err != nil || string(again) != text || q.String() != text {
		t.Fatalf("%q became %q, %v, and as a string %v", text, again, err, q)
	}
}

func FuzzPolicyText(f *testing.F) {
	for _, test := range policyTexts {
		f.Add(test.text)
	}
	for _, test := range badPolicies {
		f.Add(test.text)
	}
	f.Fuzz(func(t *testing.T, text string) { tryPolicyText(t, text) })
}

func FuzzRateText(f *testing.F) {
	for _, test := range rateTexts {
		f.Add(test.text)
	}
	for _, test := range badRates {
		f.Add(test.text)
	}
	f.Fuzz(func(t *testing.T, text string) { tryRateText(t, text) })
}

// tryPolicyText: a text is refused, with an error of bounded size, or describes a policy
// that New accepts and that has one spelling.
func tryPolicyText(t rapid.TB, text string) {
	t.Helper()
	var p core.Policy
	if err := p.UnmarshalText([]byte(text)); err != nil {
		checkRefused(t, err, p == core.Policy{})
		return
	}
	if _, err := core.New(memstore.New(memstore.Config{}), "api", p); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	canonical, err := p.MarshalText()
	if err != nil {
		t.Fatalf("%q is %v, %v", text, p, err)
	}
	checkPolicyText(t, string(canonical), p)
}

// tryRateText: the same of rates.
func tryRateText(t rapid.TB, text string) {
	t.Helper()
	var r core.Rate
	if err := r.UnmarshalText([]byte(text)); err != nil {
		checkRefused(t, err, r == core.Rate{})
		return
	}
	if _, err := core.New(memstore.New(memstore.Config{}), "api", core.FixedWindow(r)); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	canonical, err := r.MarshalText()
	if err != nil {
		t.Fatalf("%q is %v, %v", text, r, err)
	}
	checkRateText(t, string(canonical), r)
}

// checkRefused: the error has one line of at most 4 KB that can be printed anywhere.
func checkRefused(t rapid.TB, err error, unchanged bool) {
	t.Helper()
	s := err.Error()
	if !unchanged || len(s) > 4096 || !strings.HasPrefix(s, "headgate: ") {
		t.Fatalf("%v, an error of %d bytes; unchanged: %v", err, len(s), unchanged)
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f {
			t.Fatalf("the error has the character %q: %q", c, s)
		}
	}
}

// TestConfigurationsHoldTexts: what packages of the standard library make of them.
func TestConfigurationsHoldTexts(t *testing.T) {
	type limits struct {
		Rate   core.Rate              `json:"rate"`
		Plans  map[string]core.Policy `json:"plans"`
		Absent core.Policy            `json:"absent,omitzero"`
		Null   *core.Policy           `json:"null"`
	}
	const document = `{"rate":"5/2h","plans":{"free":"sliding-log 60/minute","staff":"unlimited"},"null":null}`
	var l limits
	if err := json.Unmarshal([]byte(document), &l); err != nil {
		t.Fatal(err)
	}
	if l.Plans["free"] != core.SlidingLog(core.PerMinute(60)) || l.Plans["staff"] != core.Unlimited() || l.Absent != (core.Policy{}) {
		t.Errorf("read %+v", l)
	}
	if out, err := json.Marshal(l); err != nil || string(out) != document {
		t.Errorf("written: %s, %v", out, err)
	}
	if out, err := json.Marshal(core.Policy{}); err == nil {
		t.Errorf("no policy is written as %s", out)
	}
	if err := json.Unmarshal([]byte(`{"plans":{"free":60}}`), &l); err == nil {
		t.Error("a number is a policy")
	}

	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var p core.Policy
	flags.TextVar(&p, "limit", core.SlidingLog(core.PerMinute(60)), "")
	if got := flags.Lookup("limit").DefValue; got != "sliding-log 60/minute" || p != core.SlidingLog(core.PerMinute(60)) {
		t.Errorf("the default is %s, %v", got, p)
	}
	if err := flags.Parse([]string{"-limit", "min-interval 2s"}); err != nil || p != core.MinInterval(2*time.Second) {
		t.Errorf("set to %v, %v", p, err)
	}
	if err := flags.Parse([]string{"-limit", "2s"}); err == nil || p != core.MinInterval(2*time.Second) {
		t.Errorf("set to %v, %v", p, err)
	}
}

// An error says where the word is that is wrong.
func TestTextErrorsTellTheWord(t *testing.T) {
	for _, c := range []struct {
		text string
		word string // that is wrong, or "" for the whole text
	}{
		{"sliding 60/minute", "sliding"},
		{"  sliding-log  60/mintue", "60/mintue"},
		{"sliding-log", "sliding-log"},
		{"token-bucket 10/second burst", "burst"},
		{"token-bucket\t10/second burst 1e3", "1e3"},
		{"fixed-window 10/day count-denied never-over", "never-over"},
		{"sliding-window 10/day resolution 10 resolution 10", "resolution 10"},
		{"unlimited 60/minute", "60/minute"},
		{"min-interval 5", "5"},
		{"sliding-log 0/minute", ""},
		{"token-bucket 10/second burst 0", ""},
	} {
		var p core.Policy
		var e *core.TextError
		if err := p.UnmarshalText([]byte(c.text)); !errors.As(err, &e) {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		want := 0
		if c.word != "" {
			want = strings.LastIndex(c.text, c.word)
		}
		if e.Offset != want || e.Text != c.text || e.Kind != "policy" {
			t.Errorf("%q: %q at %d of the %s, not %d", c.text, e.Err, e.Offset, e.Kind, want)
		}
	}
	var e *core.TextError
	if err := new(core.Rate).UnmarshalText([]byte(" 60/")); !errors.As(err, &e) || e.Offset != 1 || e.Kind != "rate" {
		t.Errorf("%+v", e)
	}
}
