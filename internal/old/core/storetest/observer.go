package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
)

// hidden is a key that no event may contain.
const hidden = "alice@example.com"

// events are what an observer was told.
type events struct {
	mu   sync.Mutex
	told []string
}

// add adds an event, and what is wrong with it.
func (e *events) add(ctx context.Context, event any, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if ctx.Value(hidden) != true {
		text += ", with another context"
	}
	if strings.Contains(fmt.Sprintf("%+v", event), hidden) {
		text += ", with the key"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = append(e.told, text)
}

func (e *events) observer() *core.Observer {
	return &core.Observer{
		Decided: func(ctx context.Context, d core.DecisionEvent) {
			e.add(ctx, d, "%s %d: %q %t %v %v", d.Limiter, d.Units, d.Policy, d.Allowed, d.Source, d.Err)
		},
		Refused: func(ctx context.Context, d core.DecisionEvent, key string) {
			e.add(ctx, d, "%s refuses the key: %t", d.Limiter, key == hidden)
		},
		Settled: func(ctx context.Context, s core.SettleEvent) {
			e.add(ctx, s, "%s %d settled to %d: %d uncovered %v %v", s.Limiter, s.Units, s.Actual, s.Uncovered, s.Source, s.Err)
		},
		SlotAcquired: func(ctx context.Context, s core.SlotEvent) {
			if s.Source == core.SourceCache { // a store may remember that a key is full
				s.Source = core.SourceStore
			}
			e.add(ctx, s, "%s: %t %v %v", s.Slots, s.Granted, s.Source, s.Err)
		},
		SlotRefused: func(ctx context.Context, s core.SlotEvent, key string) {
			e.add(ctx, s, "%s refuse the key: %t", s.Slots, key == hidden)
		},
		SlotReleased: func(slots string) {
			e.add(marked(context.Background()), slots, "%s released", slots)
		},
	}
}

// marked returns a context that add knows.
func marked(ctx context.Context) context.Context {
	return context.WithValue(ctx, hidden, true) //nolint:staticcheck // no other package sees it
}

// take returns the events since the last time.
func (e *events) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := e.told
	e.told = nil
	return told
}

var errAway = errors.New("the store is away")

// away is a layer whose store fails.
type away struct{ core.Store }

func (away) Ask(_ context.Context, q *store.Question) error {
	asking.Use(&q.Result)
	return errAway
}

// A reported is a call, and what an observer is told of it.
type reported struct {
	what string
	call func()
	want []string
}

// compare makes calls, and compares what the observer was told.
func (e *events) compare(t *testing.T, calls []reported) {
	t.Helper()
	for _, c := range calls {
		c.call()
		if told := e.take(); !slices.Equal(told, c.want) {
			t.Errorf("%s: the observer was told %q, want %q", c.what, told, c.want)
		}
	}
}

// reports: an observer is told the same of each kind of call, whatever the store.
func (s *suite) reports() {
	var seen events
	s.store = s.New(s.T, seen.observer())
	ctx := marked(s.Context())
	l, free, banned := s.limiter("api", narrow()...), s.limiter("free", core.Unlimited()), s.limiter("banned", core.Blocked())
	broken, _ := s.broken()
	var none context.Context
	var d core.Decision
	allow := func(l *core.Limiter, n int64) func() {
		return func() { d, _ = l.AllowN(ctx, hidden, n) }
	}
	seen.compare(s.T, []reported{
		{"admitted", allow(l, 2), []string{`api 2: "narrow" true store <nil>`}},
		{"refunded", func() { _ = d.Refund(ctx) }, []string{"api 2 settled to 0: 0 uncovered store <nil>"}},
		{"refunded again", func() { _ = d.Refund(ctx) }, nil},
		{"one", func() { d, _ = l.Allow(ctx, hidden) }, []string{`api 1: "narrow" true store <nil>`}},
		{"settled to the same", func() { _, _ = d.Settle(ctx, 1) }, nil},
		{"one more", allow(l, 1), []string{`api 1: "narrow" true store <nil>`}},
		{"settled", func() { _, _ = d.Settle(ctx, 4) }, []string{
			"api 1 settled to 4: 2 uncovered store <nil>",
		}},
		{"refused", allow(l, 2), []string{"api refuses the key: true", `api 2: "narrow" false store <nil>`}},
		{"peeked", func() { _, _ = l.Peek(ctx, hidden) }, nil},
		{"reported", func() { _, _, _ = l.Report(ctx, hidden, 5) }, []string{"api 0 settled to 5: 5 uncovered store <nil>"}},
		{"reported of no limit", func() { _, _, _ = free.Report(ctx, hidden, 5) }, []string{"free 0 settled to 5: 0 uncovered policy <nil>"}},
		{"reported of none", func() { _, _, _ = banned.Report(ctx, hidden, 5) }, []string{"banned 0 settled to 5: 5 uncovered policy <nil>"}},
		{"never", allow(l, 4), []string{"api refuses the key: true", `api 4: "narrow" false policy <nil>`}},
		{"never by any", allow(l, 10), []string{"api refuses the key: true", `api 10: "wide" false policy <nil>`}},
		{"unlimited", allow(free, 7), []string{`free 7: "free" true policy <nil>`}},
		{"blocked", allow(banned, 1), []string{"banned refuses the key: true", `banned 1: "banned" false policy <nil>`}},
		{"failed", allow(broken, 1), []string{`broken 1: "" false none the store is away`}},
		{"malformed", func() {
			_, _ = l.AllowN(ctx, hidden, -1)
			_, _ = l.AllowN(none, hidden, 1)
			_, _ = l.WaitN(ctx, hidden, -1)
		}, nil},
	})
}

// reportsAll is reports of calls about several charges, and of calls that wait.
func (s *suite) reportsAll() {
	var seen events
	s.store = s.New(s.T, seen.observer())
	ctx := marked(s.Context())
	ended, end := context.WithCancel(ctx)
	end()
	third, free := s.limiter("third", narrow()...), s.limiter("free", core.Unlimited())
	other := s.limiter("other", core.TokenBucket(core.Rate{Events: 1, Per: 400 * 24 * time.Hour}, 5))
	broken, broken2 := s.broken()
	var d core.Decision
	charge := func(l *core.Limiter, n int64) core.Charge {
		return core.Charge{Limiter: l, Key: hidden, N: n}
	}
	all := func(cs ...core.Charge) func() {
		return func() { d, _ = core.AllowAll(ctx, cs...) }
	}
	seen.compare(s.T, []reported{
		{"all", all(charge(third, 1), charge(other, 2), charge(free, 3)), []string{
			`third 1: "narrow" true store <nil>`,
			`other 2: "other" true store <nil>`,
			`free 3: "free" true store <nil>`,
		}},
		{"all settled", func() { _, _ = d.Settle(ctx, 0, 2, 5) }, []string{"third 1 settled to 0: 0 uncovered store <nil>"}},
		{"one of all refuses", all(charge(third, 1), charge(other, 4)), []string{
			`third 1: "" false store <nil>`,
			"other refuses the key: true",
			`other 4: "other" false store <nil>`,
		}},
		{"all that never fits", all(charge(third, 1), charge(other, 6)), []string{
			`third 1: "" false policy <nil>`,
			"other refuses the key: true",
			`other 6: "other" false policy <nil>`,
		}},
		{"all of one", all(charge(other, 1)), []string{`other 1: "other" true store <nil>`}},
		{"waited", func() { _, _ = other.Wait(ctx, hidden) }, []string{`other 1: "other" true store <nil>`}},
		{"waiting is no use", func() { _, _ = other.WaitN(ctx, hidden, 6) }, []string{"other refuses the key: true", `other 6: "other" false policy <nil>`}},
		{"a wait after its end", func() { _, _ = other.Wait(ended, hidden) }, []string{`other 1: "" false none context canceled`}},
		{"all failed", all(charge(broken, 1), charge(broken2, 1)), []string{
			`broken 1: "" false none the store is away`,
			`broken too 1: "" false none the store is away`,
		}},
		{"malformed", func() {
			_, _ = core.AllowAll(ctx)
			_, _ = core.AllowAll(ctx, charge(third, -1), charge(other, 1))
			_, _ = core.AllowAll(ctx, charge(third, 1), charge(third, 1))
		}, nil},
	})
}

// narrow returns two policies, of which the second is narrower.
func narrow() []core.Policy {
	age := 400 * 24 * time.Hour
	return []core.Policy{
		core.FixedWindow(core.Rate{Events: 9, Per: age}).Named("wide"),
		core.SlidingLog(core.Rate{Events: 3, Per: age}).Named("narrow"),
	}
}

// broken returns limiters whose store fails.
func (s *suite) broken() (one, another *core.Limiter) {
	s.Helper()
	failing := &away{s.store}
	one, err := core.New(failing, "broken", core.FixedWindow(core.PerDay(1)))
	if err != nil {
		s.Fatal(err)
	}
	if another, err = core.New(failing, "broken too", core.FixedWindow(core.PerDay(1))); err != nil {
		s.Fatal(err)
	}
	return one, another
}

// reportsEach: what is counted is what was decided, however many call at once.
func (s *suite) reportsEach() {
	const limit = 150
	var mu sync.Mutex
	told := map[bool]int64{}
	s.store = s.New(s.T, &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) {
		mu.Lock()
		defer mu.Unlock()
		told[e.Allowed] += e.Units
	}})
	l := s.limiter("api", core.FixedWindow(core.Rate{Events: limit, Per: 400 * 24 * time.Hour}))
	admitted := s.hammer(50, 10, func(int) (core.Decision, error) { return l.Allow(s.Context(), "key") })
	if admitted != limit || told[true] != limit || told[false] != 500-limit {
		s.Errorf("%d of 500 calls were admitted, and the observer was told of %v", admitted, told)
	}
}
