package step

import (
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

const (
	second = 1_000_000
	minute = 60 * second
	day    = 86_400 * second
	noon   = 1_700_000_000 * second
)

func bucket(n, per, burst int64) Numbers {
	return Numbers{Kind: TokenBucket, Limit: n, Period: per, Burst: burst, Debt: UsualDebt}
}

func sliding(n, per, k int64) Numbers {
	return Numbers{Kind: SlidingWindow, Limit: n, Period: per, Resolution: k}
}

func policy(t testing.TB, m Numbers) *Policy {
	t.Helper()
	p, err := New("limiter", "policy", m)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// A key is one policy for one key.
type key struct {
	p     *Policy
	state []int64
}

func newKey(t testing.TB, m Numbers) *key {
	p := policy(t, m)
	return &key{p, p.New()}
}

func (k *key) ask(now, n int64, charge bool) (c Cell, fits bool) {
	c.Set(k.p, "key", 1, n)
	if k.p.Grows() {
		k.state = c.Room(k.state, now, false)
	}
	return c, c.Take(k.state, now, charge)
}

// Whoever takes all there is, and never lets a bucket fill, gets the burst and the rate: no more after any time than a
// microsecond more would bring, and no less.
func TestBucketInTheLongRun(t *testing.T) {
	for _, m := range []Numbers{
		bucket(7, second, 7), bucket(7, second, 604_800), bucket(3, 7, 5), bucket(1_000_000, second, 1_000_000), bucket(1_000_000, day, 1000),
		bucket(1_000_000_000, 30*day, 1_000_000), bucket(104_729, 86_399_999_989, 1009), bucket(94_906_265, 94_906_267, 94_906_265),
		bucket(1, 366*day, 1), bucket(700_000, second, 700_000),
	} {
		r, k := rand.New(rand.NewPCG(1, uint64(m.Limit))), newKey(t, m)
		fill := new(big.Int).Mul(big.NewInt(max(m.Burst-1, 1)), big.NewInt(m.Period))
		most := max(fill.Div(fill, big.NewInt(m.Limit)).Int64(), 1)
		taken, now := int64(0), int64(noon)
		admitted := func(after int64) int64 { // by the exact rate
			want := new(big.Int).Mul(big.NewInt(m.Limit), big.NewInt(after))
			return want.Div(want, big.NewInt(m.Period)).Int64() + m.Burst
		}
		for range 10_000 {
			if c, _ := k.ask(now, 0, false); c.Remaining > 0 {
				k.ask(now, c.Remaining, true)
				taken += c.Remaining
			}
			if least, most := admitted(now-noon), admitted(now-noon+1); taken < least || taken > most {
				t.Fatalf("%v: %d units after %d microseconds, want %d to %d", m, taken, now-noon, least, most)
			}
			if m.Burst == 1 {
				now += 1 + r.Int64N(2)
				continue
			}
			now += 1 + r.Int64N(most)
		}
	}
}

// Of a bucket of any rate, RetryAfter suffices, and a unit comes at most a microsecond before its time.
func TestBucketServesInTime(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	for range 2000 {
		m := bucket(1+r.Int64N(1<<uint(1+r.IntN(20))), 1+r.Int64N(1<<uint(1+r.IntN(40))), 4+r.Int64N(50)) // less is full before its next unit is asked for
		if m.Limit > m.Period || m.Check() != nil {
			continue
		}
		k := newKey(t, m)
		k.ask(noon, m.Burst, true)
		now := int64(noon)
		for i := int64(1); i < 50; i++ {
			c, _ := k.ask(now, 1, false)
			now += c.RetryAfter
			if _, fits := k.ask(now, 1, true); !fits {
				t.Fatalf("%v: a RetryAfter of %d is too short", m, c.RetryAfter)
			}
			exact := big.NewRat(i*m.Period, m.Limit)
			if early := new(big.Rat).Sub(exact, big.NewRat(now-noon, 1)); early.Cmp(big.NewRat(1, 1)) > 0 || early.Cmp(big.NewRat(-2, 1)) < 0 {
				t.Fatalf("%v: unit %d came after %d, %v early", m, i, now-noon, early)
			}
		}
	}
}

// The worst that each policy admits within one period: its limit at the end of a window, and all it can get from then on.
func TestMostInAnyWindow(t *testing.T) {
	never := func(m Numbers) Numbers { m.NeverOver = true; return m }
	for _, test := range []struct {
		numbers Numbers
		most    int64
	}{
		{Numbers{Kind: FixedWindow, Limit: 100, Period: minute}, 200}, {bucket(100, minute, 100), 199}, {sliding(100, minute, 1), 199},
		{sliding(100, minute, 10), 199}, {never(sliding(100, minute, 1)), 100}, {never(sliding(100, minute, 10)), 100},
		{Numbers{Kind: SlidingLog, Limit: 100, Period: minute}, 100},
	} {
		k := newKey(t, test.numbers)
		var at []int64
		for now := int64(noon/minute*minute + minute - 1); now < noon+3*minute; {
			c, _ := k.ask(now, 0, false)
			if c.Remaining > 0 {
				for range c.Remaining {
					at = append(at, now)
				}
				if c, _ = k.ask(now, c.Remaining, true); c.Remaining != 0 {
					t.Fatal(c.Reading)
				}
			}
			now += c.NextAfter
		}
		most := 0
		for i := range at {
			n := 0
			for n < len(at)-i && at[i+n]-at[i] < minute {
				n++
			}
			most = max(most, n)
		}
		if int64(most) != test.most {
			t.Errorf("%v: %d in a minute, want %d", test.numbers, most, test.most)
		}
	}
}

// A state from a time that cannot be yet is full use as of now.
func TestClockError(t *testing.T) {
	for _, m := range []Numbers{bucket(10, second, 20), {Kind: FixedWindow, Limit: 10, Period: minute}, sliding(10, minute, 4), {Kind: MinInterval, Limit: 1, Period: minute}} {
		k := newKey(t, m)
		k.ask(noon, 1, true)
		back := int64(noon - 10*day)
		c, fits := k.ask(back, 1, true)
		if fits || c.Remaining != 0 || c.ResetAfter > 3*minute || c.RetryAfter > 2*minute {
			t.Errorf("%v: %t, %+v", m, fits, c.Reading)
		}
		if _, fits := k.ask(back+c.RetryAfter, 1, true); !fits {
			t.Errorf("%v: RetryAfter %d", m, c.RetryAfter)
		}
	}
}

// Policies share states if their bytes mean the same, and if not, they do not.
func TestIdentity(t *testing.T) {
	base := policy(t, sliding(10, minute, 10))
	same := func(m Numbers) bool { return policy(t, m).ID == base.ID }
	denied, over := sliding(10, minute, 10), sliding(10, minute, 10)
	denied.CountDenied, over.NeverOver = true, true
	if !same(sliding(20, minute, 10)) || !same(denied) || !same(over) || same(sliding(10, minute, 9)) || same(sliding(10, minute+1, 10)) {
		t.Error("windows")
	}
	b := policy(t, bucket(10, minute, 10))
	for _, other := range []Numbers{bucket(11, minute, 10), bucket(10, minute, 11), bucket(10, minute+1, 10), {Kind: TokenBucket, Limit: 10, Period: minute, Burst: 10}} {
		if policy(t, other).ID == b.ID {
			t.Errorf("%v has the states of another bucket", other)
		}
	}
	few, many := Numbers{Kind: FixedWindow, Limit: 10, Period: second}, Numbers{Kind: FixedWindow, Limit: second / 8, Period: second}
	if policy(t, few).ID != policy(t, many).ID {
		t.Error("windows of the clock that are kept alike")
	}
	if many.Limit++; policy(t, few).ID == policy(t, many).ID {
		t.Error("windows of the clock that are kept otherwise")
	}
	other, err := New("limiter", "other", sliding(10, minute, 10))
	if err != nil || other.ID == base.ID || other.Tag == base.Tag {
		t.Error("names", err)
	}
}

func TestDivisor(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 3))
	numbers := []int64{1, 2, 3, 5, 7, 10, 641, 1e6, 1e6 + 1, 1<<31 - 1, 1<<32 + 1, MaxInt, math.MaxInt64 - 1, math.MaxInt64}
	for i := range 2000 {
		numbers = append(numbers, r.Int64()>>r.IntN(63)|1, 1<<(i%63))
	}
	for _, y := range numbers {
		d := newDivisor(y)
		near := math.MaxInt64 / y * y // the largest multiple
		for _, x := range append([]int64{0, near, near - 1, y, y - 1}, numbers[:100]...) {
			if quotient, rest := d.divide(x); quotient != x/y || rest != x%y {
				t.Fatalf("%d / %d = %d, rest %d", x, y, quotient, rest)
			}
		}
	}
}

// What is wrong is reported, all of it at once.
func TestFaults(t *testing.T) {
	const huge = MaxInt + 1
	window := func(n, per int64) Numbers { return Numbers{Kind: FixedWindow, Limit: n, Period: per} }
	with := func(m Numbers, change func(*Numbers)) Numbers { change(&m); return m }
	denied := func(m *Numbers) { m.CountDenied = true }
	for _, test := range []struct {
		numbers Numbers
		faults  string // of each line
	}{
		{Numbers{}, "no policy"},
		{Numbers{Kind: 99}, "no policy"},
		{window(0, minute), "a rate of 0 events"},
		{window(-1, minute), "a rate of -1 events: there must be at least 1"},
		{window(huge, minute), "more than 2^53-1"},
		{window(1, 0), "must be positive, and at most 142 years"},
		{window(1, MaxSpan+1), "at most 142 years"},
		{window(1, NoPeriod), "a whole number of microseconds"},
		{window(0, 0), "a rate of 0 events\nmust be positive"},
		{bucket(1, second, 0), "burst must be at least 1, is 0"},
		{bucket(1_000_001, second, 1), "at most 1,000,000 a second"},
		{bucket(1_000_001, second, 0), "burst must be\nat most 1,000,000 a second"},
		{bucket(1, MaxSpan, 2), "cannot be counted exactly"},
		{with(bucket(1, second, 1), func(m *Numbers) { m.Debt = -2 }), "debt must be at least 0"},
		{with(bucket(1, second, 1), func(m *Numbers) { m.Debt = MaxInt }), "debt of"},
		{sliding(1, minute, 0), "from 1 to 1000, is 0"},
		{sliding(1, minute, 1001), "from 1 to 1000, is 1001"},
		{sliding(1, 9, 10), "needs a period of as many microseconds"},
		{Numbers{Kind: SlidingLog, Limit: 1025, Period: minute}, "use SlidingWindow"},
		{Numbers{Kind: MinInterval, Limit: 1}, "must be positive"},
		{with(bucket(1, second, 1), denied), "CountDenied is for"},
		{with(window(1, second), func(m *Numbers) { m.NeverOver = true }), "NeverOver is for SlidingWindow"},
		{with(sliding(1, second, 1), func(m *Numbers) { m.FromFirst = true }), "FromFirst is for FixedWindow"},
		{with(window(1, second), func(m *Numbers) { m.Resolution = 10 }), "Resolution is for SlidingWindow"},
		{with(window(1, second), func(m *Numbers) { m.Burst = 10 }), "Burst is for TokenBucket"},
		{with(window(1, second), func(m *Numbers) { m.Debt = 10 }), "Debt is for TokenBucket"},
	} {
		p, err := New("limiter", "policy", test.numbers)
		if err == nil {
			t.Errorf("%+v is %v", test.numbers, p)
			continue
		}
		got, want := strings.Split(err.Error(), "\n"), strings.Split(test.faults, "\n")
		for i := range min(len(got), len(want)) {
			if len(got) != len(want) || !strings.Contains(got[i], want[i]) {
				t.Errorf("%+v: %q, want %q", test.numbers, got, want)
			}
		}
	}
	for _, text := range []string{
		"token-bucket 1000000/second", "token-bucket 1000000/day burst 7", "fixed-window 1000000000/30d", "token-bucket 7/second",
		"min-interval 366d", "sliding-window 9007199254740991/d resolution 1000", "token-bucket 1/366d",
	} {
		if _, err := Parse(text); err != nil {
			t.Error(err)
		}
	}
}

// Each kind and each algorithm has its case in all that a policy and a cell do: what lacks one panics.
func TestEachKindAndAlgorithm(t *testing.T) {
	texts := map[Kind]string{
		TokenBucket:   "token-bucket 60/minute",
		FixedWindow:   "fixed-window 60/minute",
		SlidingWindow: "sliding-window 60/minute",
		SlidingLog:    "sliding-log 60/minute",
		MinInterval:   "min-interval 1m",
		Calendar:      "calendar 60/day",
		Constant:      "unlimited",
	}
	seen := map[Algorithm]bool{}
	for kind := TokenBucket; kind < kindEnd; kind++ {
		m, err := Parse(texts[kind])
		if err != nil || m.Kind != kind {
			t.Fatalf("kind %d: the text %q is %v: %v", kind, texts[kind], m, err)
		}
		for i := range 4 {
			m.CountDenied, m.FromFirst = i%2 > 0, i/2 > 0
			if m.Check() != nil {
				continue
			}
			if _, err := m.Share(2); err != nil {
				t.Error(m, err)
			}
			p := policy(t, m)
			if stored := p.Stored(); stored.Algorithm != p.algorithm || p.Window() < 0 || p.LeaseEnd(noon) < 0 {
				t.Errorf("%v: %+v", m, stored)
			}
			seen[p.algorithm] = true
			answers(t, p)
		}
	}
	for algorithm := stateless; algorithm < AlgorithmEnd; algorithm++ {
		if !seen[algorithm] {
			t.Errorf("algorithm %d is that of no kind", algorithm)
		}
	}
}

// answers asks all that is asked about cells of a policy.
func answers(t *testing.T, p *Policy) {
	var state []int64
	if !p.Constant() {
		state = p.New()
	}
	var c Cell
	c.Set(p, "key", 1, 2)
	admits := c.Admits(state, noon)
	state = c.Room(state, noon, true)
	if fits := c.Take(state, noon, true); fits != admits {
		t.Errorf("%v: %t, %t", p.Numbers, admits, fits)
	}
	if !p.Constant() && c.ResetAfter == 0 {
		t.Errorf("%v: %+v", p.Numbers, c)
	}
	c.CountRefused(state, noon, Allow)
	for _, units := range []int64{1, -1} {
		c.Units, c.Instant = units, noon
		state = c.Room(state, noon, true)
		c.Settle(state, noon)
	}
}

// FuzzParse: no text panics, and what is accepted has a text that stands for the same.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"sliding-log 60/minute", "token-bucket 10/second burst 100 debt 5", "fixed-window 1000/day from-first count-denied", "unlimited",
		"sliding-window 600/7h resolution 60 never-over count-denied", "min-interval 2s", "blocked", "token-bucket 1/second burst", "x 1/s",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err != nil {
			if m != (Numbers{}) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v, %v", text, m, err)
			}
			return
		}
		again, err := Parse(m.String())
		if err != nil || again.whole() != m.whole() || len(m.String()) > maxText/2 {
			t.Errorf("%q is %q, which is %v: %v", text, m, again, err)
		}
		if _, err := New("limiter", "policy", m); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// Faults of a text have the words of texts, not those of Go.
func TestFaultsOfTexts(t *testing.T) {
	word := regexp.MustCompile(`[A-Z][a-z]+[A-Z(]|\b(Blocked|Unlimited|Calendar|Starting|Week|Month|Burst|Debt|Resolution)\b|\(`)
	for _, text := range []string{
		"sliding-log 2000/minute", "sliding-log 0/minute", "fixed-window 0/day", "token-bucket 0/s", "token-bucket 2000000/second",
		"token-bucket 1/second burst 0", "token-bucket 1/second burst 9007199254740991", "token-bucket 7/second debt 9007199254740991",
		"sliding-window 5/minute resolution 0", "sliding-window 5/minute resolution 2000", "sliding-window 5/3us", "min-interval 0s",
		"fixed-window 5/200000d", "calendar 0/month", "calendar 5/month starting 32", "calendar 5/day starting 2", "calendar 5/hour",
		"calendar 9007199254740991/day", "calendar 5/day in Mars", "calendar 5/day count-denied", "fixed-window 5/day never-over",
		"token-bucket 5/day from-first", "min-interval 5s burst 3", "blocked 5", "unlimited resolution 3", "leaky-bucket 5/s", "",
	} {
		_, err := Parse(text)
		if err == nil {
			t.Errorf("%s: no fault", text)
		} else if found := word.FindString(err.Error()); found != "" {
			t.Errorf("%s: %v has %q", text, err, found)
		}
	}
}

// Numbers of the whole range of int64 have a text and faults, and no arithmetic that overflows.
func TestNumbersOfAnySize(t *testing.T) {
	sizes := []int64{math.MinInt64, math.MinInt64 + 1, -MaxInt, -1, 0, 1, 2, 3, 1 << 20, 1 << 32, MaxSpan - 1, MaxSpan, MaxSpan + 1, MaxInt, MaxInt + 1, math.MaxInt64 - 1, math.MaxInt64}
	for a := Kind(0); a <= kindEnd; a++ {
		for _, limit := range sizes {
			for _, period := range sizes {
				for _, burst := range sizes {
					for _, option := range []int64{UsualDebt, 0, 1, MaxInt, math.MaxInt64} {
						m := Numbers{Kind: a, Limit: limit, Period: period}
						switch a {
						case TokenBucket:
							m.Burst, m.Debt = burst, option
						case SlidingWindow:
							m.Resolution = burst
						case Calendar:
							m.Starting = burst
						}
						text := m.String()
						err := m.Check()
						if err != nil {
							continue
						}
						p, err := New("l", "l", m)
						if err != nil {
							t.Fatal(text, err)
						}
						parsed, err := Parse(text)
						if err != nil || parsed.String() != text {
							t.Fatal(text, parsed, err)
						}
						p.Identity()
						_, _ = m.Share(3)
						_ = p.Stored()
					}
				}
			}
		}
	}
}

// A script computes with doubles: until 2095, whatever is charged and reported, no word of a state that it keeps exceeds what
// they hold. The first word is the end, which it does not keep.
func TestWordsAreIntegersOfADouble(t *testing.T) {
	const end = 125 * 31_557_600 * second // 2095
	r := rand.New(rand.NewPCG(1, 2))
	tried := 0
	for range 200_000 {
		size := func(most int64) int64 { return 1 + r.Int64N(most)>>r.IntN(52) }
		m := Numbers{Kind: TokenBucket + Kind(r.IntN(int(Calendar))), Limit: size(MaxInt), Period: size(MaxSpan)}
		switch m.Kind {
		case TokenBucket:
			m.Burst, m.Debt = size(MaxInt), UsualDebt
		case SlidingWindow:
			m.Resolution = size(MaxResolution)
		case MinInterval:
			m.Limit = 0
		case Calendar:
			m.Period = units[r.IntN(len(units))].longest
		}
		p, err := New("l", "l", m)
		if err != nil {
			continue
		}
		tried++
		now := r.Int64N(end) + 1
		report := Cell{Policy: &p, Units: MaxInt}
		state := report.Room(p.New(), now, true)
		report.Settle(state, now)
		for _, word := range state[1:] {
			if word < 0 || word > MaxInt {
				t.Fatalf("%v at %d: %d", m, now, state)
			}
		}
	}
	if tried < 20_000 {
		t.Error(tried)
	}
}
