package limits_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
)

// What applies to a plan and a key.
func TestFor(t *testing.T) {
	const (
		freeText = "minute: sliding-log 60/minute, day: fixed-window 1000/day"
		goldText = "minute: sliding-log 600/minute, day: fixed-window 50000/day"
	)
	b := open(t, newBoard(everything), limits.Config{})
	api, ws := limit(t, b, "api"), slots(t, b, "ws")
	for _, c := range []struct {
		plan, key, want string
	}{
		{"", "k", freeText},
		{"free", "k", freeText},
		{"gold", "k", goldText},
		{"staff", "k", "api: unlimited"},
		{"blocked", "k", "api: blocked"},
		{"unlimited", "k", "api: unlimited"},
		{"platinum", "k", freeText}, // counted
		{"", "user-42", goldText},
		{"staff", "user-42", goldText},
		{"platinum", "user-42", goldText},
		{"free", "user-421", freeText},
		{"", "acme:", "day: fixed-window 1000/day, minute: sliding-log 6000/minute"},
		{"gold", "acme:1", "day: fixed-window 50000/day, minute: sliding-log 6000/minute"},
		{"staff", "acme:1", "minute: sliding-log 6000/minute"},
		{"blocked", "acme:1", "minute: sliding-log 6000/minute"},
		{"platinum", "acme:1", "day: fixed-window 1000/day, minute: sliding-log 6000/minute"}, // counted
		{"free", "acme:eu:1", "day: fixed-window 50000/day, minute: sliding-log 7000/minute"},
		{"free", "acme", freeText},
		{"gold", "hidden", "api: blocked"},
	} {
		l := api.For(c.plan, c.key)
		if text(l) != c.want || l.Name() != "api" {
			t.Errorf("plan %q, key %s: %s %s, not %s", c.plan, c.key, l.Name(), text(l), c.want)
		}
	}
	if api.Unknown() != 2 {
		t.Errorf("%d unknown plans", api.Unknown())
	}
	for _, c := range []struct {
		plan, key string
		want      int64
	}{
		{"", "k", 3},
		{"gold", "k", 20},
		{"staff", "k", core.NoLimit},
		{"none", "k", 0},
		{"blocked", "k", 0},
		{"platinum", "k", 3},
		{"gold", "user-42", 50},
		{"free", "acme:1", 20},
	} {
		if got := ws.For(c.plan, c.key); got != c.want {
			t.Errorf("plan %q, key %s: %d slots, not %d", c.plan, c.key, got, c.want)
		}
	}
	if ws.Unknown() != 1 {
		t.Errorf("%d unknown plans", ws.Unknown())
	}
}

func slots(t testing.TB, b *limits.Book, name string) *limits.Slots {
	t.Helper()
	s, err := b.Slots(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The same as a list that is searched from the front.
func TestForIsThatOfAList(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		type override struct{ kind, value, plan string }
		word := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 5, -1)
		plans := []string{"p0", "p1", "p2", "p3"}
		var all []override
		seen := make(map[string]bool)
		for range rapid.IntRange(0, 20).Draw(r, "overrides") {
			o := override{rapid.SampledFrom([]string{"key", "prefix"}).Draw(r, "kind"), word.Draw(r, "value"), rapid.SampledFrom(plans).Draw(r, "plan")}
			if !seen[o.kind+o.value] {
				seen[o.kind+o.value] = true
				all = append(all, o)
			}
		}
		var lines []string
		for _, o := range all {
			lines = append(lines, fmt.Sprintf(`{%q: %q, "plan": %q}`, o.kind, o.value, o.plan))
		}
		source := newBoard(`{"limits": {"api": {"default": "p0", "plans": {"p0": "sliding-log 1/hour", "p1": "sliding-log 2/hour", "p2": "sliding-log 3/hour", "p3": "sliding-log 4/hour"},
			"overrides": [` + strings.Join(lines, ",\n") + `]}}}`)
		store := memstore.New(memstore.Config{})
		b, err := limits.Open(context.Background(), store, true, source, limits.Config{})
		if err != nil {
			r.Fatal(err)
		}
		defer b.Close()
		api, err := b.Limit("api")
		if err != nil {
			r.Fatal(err)
		}
		for range 20 {
			key, want := word.Draw(r, "key"), rapid.SampledFrom(plans).Draw(r, "request")
			requested := want
			var best *override
			for i, o := range all {
				switch {
				case o.kind == "prefix" && !strings.HasPrefix(key, o.value), o.kind != "prefix" && key != o.value:
					continue
				case best == nil, o.kind == "key", best.kind == "prefix" && len(o.value) > len(best.value):
					best = &all[i]
				}
			}
			if best != nil {
				want = best.plan
			}
			if got := api.For(requested, key); got != api.For(want, "-") {
				r.Fatalf("plan %s, key %s: %s, not those of %s", requested, key, text(got), want)
			}
		}
	})
}

// An override applies from one date and until before another.
func TestDates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		b := open(t, newBoard(`{"limits": {"api": {"plans": {"free": "sliding-log 1/hour"}, "overrides": [
			{"key": "k", "policies": "sliding-log 2/hour", "from": "`+at(time.Hour)+`", "until": "`+at(2*time.Hour)+`"},
			{"prefix": "k", "policies": "sliding-log 3/hour", "until": "`+at(3*time.Hour)+`"}]}}}`), limits.Config{Every: 1000 * time.Hour})
		api := limit(t, b, "api")
		var got []int64
		for _, step := range []time.Duration{0, time.Hour - 1, 1, time.Hour - 1, 1, time.Hour - 1, 1} {
			time.Sleep(step)
			got = append(got, api.For("", "k").Policies()[0].Limit())
		}
		if want := []int64{3, 3, 2, 2, 3, 3, 1}; !slices.Equal(got, want) {
			t.Errorf("%d, not %d", got, want)
		}
	})
}

// A look-up allocates nothing, whatever applies.
func TestForDoesNotAllocate(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	b := open(t, newBoard(everything), limits.Config{})
	api := limit(t, b, "api")
	for _, key := range []string{"user-42", "acme:1", "none"} {
		if n := testing.AllocsPerRun(100, func() { api.For("gold", key) }); n >= 1 { // the pool may be emptied
			t.Errorf("%s: %v allocations", key, n)
		}
	}
}

// A raised limit admits at once, a lowered one refuses at once, and what was used stays used.
func TestUsageIsKept(t *testing.T) {
	source := newBoard(free(`{"minute": "fixed-window 3/36500d", "log": "sliding-log 100/36500d"}`))
	b := open(t, source, limits.Config{})
	api := limit(t, b, "api")
	for range 3 {
		if d := allow(t, api.For("", "k"), "k"); !d.Allowed {
			t.Fatal(d)
		}
	}
	if d := allow(t, api.For("", "k"), "k"); d.Allowed {
		t.Fatal(d)
	}
	source.write(free(`{"minute": "fixed-window 5/36500d", "log": "sliding-log 100/36500d"}`))
	reload(t, b)
	if d := allow(t, api.For("", "k"), "k"); !d.Allowed || d.Remaining != 1 {
		t.Fatal(d)
	}
	source.write(free(`{"minute": "fixed-window 2/36500d", "log": "sliding-log 100/36500d"}`))
	reload(t, b)
	if d := allow(t, api.For("", "k"), "k"); d.Allowed || d.Limit != 2 {
		t.Fatal(d)
	}
	source.write(free(`{"minute": "fixed-window 6/36500d", "log": "sliding-log 5/36500d"}`))
	reload(t, b)
	if d := allow(t, api.For("", "k"), "k"); !d.Allowed || d.Remaining != 0 || d.Policy != "log" {
		t.Fatal(d)
	}
}

// Equal policies are one limiter, and what has not changed stays the same one.
func TestLimitersAreShared(t *testing.T) {
	var overrides []string
	for i := range 1000 {
		overrides = append(overrides, fmt.Sprintf(`{"key": "k%d", "policies": "sliding-log %d/minute"}`, i, i%30+1))
	}
	document := func(limit int, overrides []string) string {
		return fmt.Sprintf(`{"limits": {"api": {"plans": {"free": "sliding-log %d/minute"}, "overrides": [%s]}},
			"slots": {"ws": {"plans": {"a": 3}}}}`, limit, strings.Join(overrides, ","))
	}
	source := newBoard(document(100, overrides))
	b := open(t, source, limits.Config{})
	api, ws := limit(t, b, "api"), slots(t, b, "ws")
	different := make(map[*core.Limiter]bool)
	for i := range 1000 {
		different[api.For("", fmt.Sprintf("k%d", i))] = true
	}
	if len(different) != 30 {
		t.Errorf("%d limiters of 30 kinds", len(different))
	}
	standard, override, three := api.For("", "k"), api.For("", "k0"), ws.For("", "k")
	source.write(document(100, overrides[:999]))
	reload(t, b)
	if api.For("", "k") != standard || api.For("gold", "k") != standard {
		t.Error("only overrides have changed, and the default is another limiter")
	}
	source.write(document(101, overrides[:500]))
	reload(t, b)
	if api.For("", "k") == standard {
		t.Error("the plan has changed, and its limiter has not")
	}
	if api.For("", "k0") != override || ws.For("", "k") != three {
		t.Error("what has not changed is another limiter")
	}
	if got := api.For("", "k999"); got != api.For("", "k") {
		t.Error("an override that was removed applies")
	}
	source.write(document(100, nil))
	reload(t, b)
	if got := api.For("", "k0"); got != api.For("", "k") {
		t.Error("an empty list has not removed the overrides")
	}
}

// A document that is not valid, or that Accept refuses, leaves the limits as they are.
func TestRefusedDocuments(t *testing.T) {
	tooMany := errors.New("too many")
	for name, c := range map[string]struct {
		text   string
		accept func(limits.Diff) error
		want   string
	}{
		"empty":   {"", nil, "the document is empty"},
		"torn":    {free(`"sliding-log 60/minute"`)[:50], nil, "the document ends before it is whole"},
		"fault":   {free(`"sliding-log 0/minute"`), nil, "a rate of 0 events"},
		"missing": {`{"limits": {"other": {"plans": {"a": "unlimited"}}}}`, nil, `limits: there is no "api" among the limits, which the program uses`},
		"slots missing": {`{"limits": {"api": {"plans": {"a": "sliding-log 1/minute"}}}}`, nil,
			`slots: there is no "ws" among the slots, which the program uses`},
		"lost": {ws(free(`"token-bucket 1/second burst 60"`)), nil,
			`headgate: limits: limit "api": plan free, what counts: api (sliding-log) -> api (token-bucket); usage is lost: keep the names and the algorithms, or set Config.Accept`},
		"accept": {ws(free(`"sliding-log 61/minute"`)), func(d limits.Diff) error {
			if d.Changes[0].What == "plan free, api" && d.Changes[0].Is == "sliding-log 61/minute" {
				return tooMany
			}
			return nil
		}, "too many"},
		"store": {ws(free(`"sliding-log 1000000/minute"`)), nil, "line 1, column 77: limits.api.plans.free: policy \"api\" takes up to"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				source := newBoard(ws(free(`"sliding-log 60/minute"`)))
				var log events
				store := memstore.New(memstore.Config{MaxBytes: 1 << 20})
				b := openIn(t, store, true, source, limits.Config{Accept: c.accept, Changed: log.add})
				api := limit(t, b, "api")
				slots(t, b, "ws")
				before, state := api.For("", "k"), b.State()
				source.write(c.text)
				time.Sleep(time.Minute)
				synctest.Wait()
				got := b.State()
				if got.Err == nil || !strings.Contains(got.Err.Error(), c.want) {
					t.Fatalf("%v, not %s", got.Err, c.want)
				}
				if got.Version != state.Version || got.Since != state.Since || api.For("", "k") != before || time.Since(got.ErrSince) < 58*time.Second {
					t.Error("the limits have changed")
				}
				if err := b.Reload(t.Context()); err == nil || err.Error() != got.Err.Error() {
					t.Error(err)
				}
				if all := log.all(); len(all) != 2 || all[1].State.Err == nil {
					t.Errorf("%d events", len(all))
				}
				source.write(ws(free(`"sliding-log 60/60s"`)))
				time.Sleep(time.Minute)
				synctest.Wait()
				if err := b.State().Err; err != nil || len(log.all()) != 3 || api.For("", "k") != before {
					t.Error("it is not as before:", err, len(log.all()))
				}
			})
		})
	}
}

// ws adds slots to a document.
func ws(text string) string { return `{"slots": {"ws": {"plans": {"a": 1}}}, ` + text[1:] }

// Accept can take a document that loses usage.
func TestAccepted(t *testing.T) {
	source := newBoard(free(`{"m": "sliding-log 60/minute"}`))
	b := open(t, source, limits.Config{Accept: func(limits.Diff) error { return nil }})
	api := limit(t, b, "api")
	allow(t, api.For("", "k"), "k")
	for _, policies := range []string{`{"m": "fixed-window 70/day"}`, `{"x": "sliding-log 80/minute", "y": "min-interval 1us"}`, `{"m": "sliding-log 90/minute"}`} {
		source.write(free(policies))
		reload(t, b)
		if d := allow(t, api.For("", "k"), "k"); !d.Allowed {
			t.Error(policies, d)
		}
	}
}

// A source that is away at the start does not keep a program with an Initial from starting, and
// one that comes back after an hour applies.
func TestAwayAtStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := newBoard("")
		source.away(errAway)
		store := memstore.New(memstore.Config{})
		if _, err := limits.Open(t.Context(), store, false, source, limits.Config{}); !errors.Is(err, errAway) {
			t.Error(err)
		}
		var log events
		b := open(t, source, limits.Config{Initial: []byte(free(`"sliding-log 10/minute"`)), Changed: log.add})
		api := limit(t, b, "api")
		s := b.State()
		if !s.Initial || !errors.Is(s.Err, errAway) || text(api.For("", "k")) != "api: sliding-log 10/minute" {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour)
		if s := b.State(); !s.Initial || time.Since(s.ErrSince) != time.Hour || len(log.all()) != 1 {
			t.Errorf("%+v, %d events", s, len(log.all()))
		}
		source.write(`{"limits": {"other": {"plans": {"a": "unlimited"}}}}`) // has not what Initial has
		time.Sleep(2 * time.Second)
		if s := b.State(); !s.Initial || s.Err == nil || !strings.Contains(s.Err.Error(), `there is no "api"`) {
			t.Errorf("%+v", s)
		}
		source.write(free(`"token-bucket 1/second burst 60"`)) // usage under Initial is that of this hour
		time.Sleep(2 * time.Second)
		if s := b.State(); s.Initial || s.Err != nil || text(api.For("", "k")) != "api: token-bucket 1/second burst 60" {
			t.Errorf("%+v", s)
		}
		if all := log.all(); len(all) != 3 || len(all[2].Diff.Changes) == 0 {
			t.Errorf("%d events", len(all))
		}
	})
}

// A document that the program was started with and that is at fault.
func TestFaultAtStart(t *testing.T) {
	store := memstore.New(memstore.Config{})
	_, err := limits.Open(t.Context(), store, false, newBoard(free(`"sliding-log 0/minute"`)), limits.Config{})
	var faults limits.Faults
	if !errors.As(err, &faults) || faults[0].Line != 1 {
		t.Error(err)
	}
	b := open(t, newBoard(free(`"sliding-log 0/minute"`)), limits.Config{Initial: []byte(free(`"sliding-log 1/minute"`))})
	if s := b.State(); !s.Initial || !errors.As(s.Err, &faults) {
		t.Errorf("%+v", s)
	}
	for want, open := range map[string]func() (*limits.Book, error){
		"Initial: line 1": func() (*limits.Book, error) {
			return limits.Open(t.Context(), store, false, newBoard(document), limits.Config{Initial: []byte("x")})
		},
		"the source is nil": func() (*limits.Book, error) { return limits.Open(t.Context(), store, false, nil, limits.Config{}) },
		"the store is nil": func() (*limits.Book, error) {
			return limits.Open(t.Context(), nil, false, newBoard(document), limits.Config{})
		},
		"slots.ws: Open was given no store for slots": func() (*limits.Book, error) {
			return limits.Open(t.Context(), store, false, newBoard(ws(document)), limits.Config{})
		},
		"Every is 1ms: it must be 0 or at least 10ms": func() (*limits.Book, error) {
			return limits.Open(t.Context(), store, false, newBoard(document), limits.Config{Every: time.Millisecond})
		},
		"Timeout is -1ns": func() (*limits.Book, error) {
			return limits.Open(t.Context(), store, false, newBoard(document), limits.Config{Timeout: -1})
		},
	} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
	if _, err := open(t, newBoard(document), limits.Config{}).Limit("apis"); err == nil || !strings.Contains(err.Error(), `there is no "apis" among the limits`) {
		t.Error(err)
	}
}

// A source that does not answer, nor heed its context, blocks nobody, and is asked once.
func TestSilentSource(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		answer := make(chan string)
		source := limits.SourceFunc(func(context.Context) ([]byte, error) {
			calls.Add(1)
			return []byte(<-answer), nil
		})
		start := time.Now()
		b := open(t, source, limits.Config{Initial: []byte(free(`"sliding-log 1/minute"`))})
		if time.Since(start) != 2*time.Second {
			t.Error(time.Since(start))
		}
		api := limit(t, b, "api")
		time.Sleep(time.Hour)
		if s := b.State(); !errors.Is(s.Err, context.DeadlineExceeded) || calls.Load() != 1 {
			t.Errorf("%v after %d calls", s.Err, calls.Load())
		}
		answer <- free(`"sliding-log 2/minute"`)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := text(api.For("", "k")); got != "api: sliding-log 2/minute" {
			t.Error(got)
		}
		b.Close()
		close(answer)
	})
}

var reloads = flag.Int("reloads", 2000, "how many reloads there are under load")

// Thousands of reloads under load: no decision has numbers of two documents, what was used is
// never forgotten, and nothing is left behind.
func TestReloadsUnderLoad(t *testing.T) {
	before := runtime.NumGoroutine()
	store := memstore.New(memstore.Config{})
	n := *reloads
	if testing.Short() {
		n = min(n, 1000)
	}
	reloadsUnderLoad(t, store, n, 8)
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before { // who was waited for may not have ended yet
		if runtime.Gosched(); time.Now().After(deadline) {
			t.Fatalf("there are %d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// reloadsUnderLoad reloads that often while some call.
// An override's policies replace those of the same names, and the others stay: also where one of the two
// counts nothing.
func TestOverridesOverWhatCountsNothing(t *testing.T) {
	source := limits.Bytes([]byte(`{"limits": {"api": {"default": "free", "plans": {
		"free": {"minute": "sliding-log 60/minute", "day": "fixed-window 1000/day"}, "banned": "blocked", "one": {"minute": "sliding-log 9/minute"}},
		"overrides": [
			{"prefix": "acme:", "policies": {"minute": "sliding-log 6000/minute"}},
			{"key": "vip", "policies": {"minute": "unlimited"}},
			{"key": "free", "policies": "unlimited"},
			{"key": "staff", "policies": {"api": "unlimited"}},
			{"key": "out", "policies": {"minute": "blocked"}},
			{"key": "own", "plan": "unlimited", "policies": {"minute": "sliding-log 5/minute"}}]}}}`))
	api := limit(t, open(t, source, limits.Config{}), "api")
	const free = "minute: sliding-log 60/minute, day: fixed-window 1000/day"
	for _, c := range []struct{ plan, key, want string }{
		{"", "anna", free},
		{"", "acme:1", "day: fixed-window 1000/day, minute: sliding-log 6000/minute"},
		{"blocked", "acme:1", "minute: sliding-log 6000/minute"},
		{"banned", "acme:1", "minute: sliding-log 6000/minute"},
		{"unlimited", "acme:1", "minute: sliding-log 6000/minute"},
		{"", "vip", "day: fixed-window 1000/day"},
		{"one", "vip", "minute: unlimited"},
		{"blocked", "vip", "api: blocked"},
		{"unlimited", "vip", "minute: unlimited"},
		{"", "free", "api: unlimited"},
		{"blocked", "free", "api: unlimited"},
		{"", "staff", free},
		{"", "out", "minute: blocked"},
		{"blocked", "own", "minute: sliding-log 5/minute"},
	} {
		if got := text(api.For(c.plan, c.key)); got != c.want {
			t.Errorf("plan %q, key %s: %s, not %s", c.plan, c.key, got, c.want)
		}
	}
}

func reloadsUnderLoad(t *testing.T, store core.Store, reloads, callers int) {
	const most = 1_000_000_000
	// The n-th document has these numbers for both policies, and those for the limiter beside.
	document := func(n int) string {
		return fmt.Sprintf(`{"limits": {"api": {"plans": {"free": {"a": "fixed-window %d/36500d", "b": "fixed-window %d/36499d"}},
			"overrides": [{"key": "o%d", "plan": "blocked"}]},
			"beside": {"plans": {"free": {"c": "fixed-window %[1]d/36500d"}}}}}`, most+n, 2*most+n, n)
	}
	source := newBoard(document(0))
	b, err := limits.Open(t.Context(), store, false, source, limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	api, beside := limit(t, b, "api"), limit(t, b, "beside")
	stop := make(chan struct{})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			var last int64
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := b.View()
				d, err := core.AllowAll(t.Context(), core.Charge{Limiter: v.Limiter(api, "", "k"), Key: "k", N: 1}, core.Charge{Limiter: v.Limiter(beside, "", "k"), Key: "k", N: 1})
				if err != nil || !d.Allowed {
					t.Error(d, err)
					return
				}
				admitted.Add(1)
				n := d.Answer(1).Limit - most // the shorter window is first
				if d.Answer(0).Limit != 2*most+n || d.Answer(2).Limit != most+n {
					t.Errorf("one decision has the limits %d, %d and %d", d.Answer(0).Limit, d.Answer(1).Limit, d.Answer(2).Limit)
					return
				}
				used := d.Answer(1).Limit - d.Answer(1).Remaining
				if used <= last {
					t.Errorf("%d are used, and %d were", used, last)
				}
				last = used
			}
		})
	}
	for n := range reloads {
		source.write(document(n + 1))
		if err := b.Reload(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
	d, err := api.For("", "k").Peek(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if used := d.Answer(0).Limit - d.Answer(0).Remaining; used != admitted.Load() {
		t.Errorf("%d are used, and %d were admitted", used, admitted.Load())
	}
	t.Logf("%d decisions", admitted.Load())
}

// What a book keeps does not grow with the documents that it had.
func TestNothingIsLeftBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	source := newBoard(free(`"sliding-log 1/minute"`))
	b := open(t, source, limits.Config{Every: time.Hour})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	change := func(from, to int) {
		for i := from; i < to; i++ {
			source.write(free(fmt.Sprintf(`"sliding-log %d/minute"`, i%100_000+1)))
			reload(t, b)
		}
	}
	change(1, 1000)
	before := heap()
	change(1000, 11_000)
	if after := heap(); after > before+1<<20 {
		t.Errorf("%d bytes after 10,000 documents, %d before", after, before)
	}
}

// Find is For by the name of a limit, which no later document needs to have, and tells what is unknown.
func TestFind(t *testing.T) {
	page := newBoard(`{"limits": {
		"api": {"default": "free", "plans": {"free": "sliding-log 1/hour", "gold": "sliding-log 2/hour"}, "overrides": [{"key": "anna", "policies": "sliding-log 5/hour"}]},
		"day": {"plans": {"all": "fixed-window 9/day"}}}}`)
	b := open(t, page, limits.Config{})
	v := b.View()
	for _, c := range []struct {
		limit, plan, key string
		max              int64 // of the first policy; 0: there is no limiter
		known            bool
	}{
		{"api", "", "ben", 1, true},
		{"api", "gold", "ben", 2, true},
		{"api", "silver", "ben", 1, false},
		{"api", "", "anna", 5, true},
		{"day", "", "ben", 9, true},
		{"night", "", "ben", 0, false},
	} {
		l, known := v.Find(c.limit, c.plan, c.key)
		var limit int64
		if l != nil {
			limit = l.Policies()[0].Limit()
		}
		if limit != c.max || known != c.known {
			t.Errorf("%+v: %d, %v", c, limit, known)
		}
	}
	var names []string
	for _, l := range v.Limiters() {
		names = append(names, l.Name()+" "+l.Policies()[0].Named("").String())
	}
	if want := []string{"api sliding-log 1/hour", "api sliding-log 2/hour", "day fixed-window 9/day"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	page.write(`{"limits": {"day": {"plans": {"all": "fixed-window 9/day"}}}}`)
	if err := b.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if l, known := b.View().Find("api", "", "ben"); l != nil || known {
		t.Errorf("%v after the limit is gone", l)
	}
	if l, _ := v.Find("api", "", "ben"); l == nil {
		t.Error("the view is as of then")
	}
}

// Fields are for documents with other things than limits.
func TestNodeFields(t *testing.T) {
	n, err := limits.DecodeJSON([]byte(`{"a": 1,` + "\n" + ` "b": 2, "a": 3, "c": 4}`))
	if err != nil {
		t.Fatal(err)
	}
	fields, faults := n.Fields("x", "a", "b")
	if len(fields) != 2 || fields["b"].Text != "2" || len(faults) != 2 || faults[0].Line != 2 || !strings.Contains(faults.Error(), "x: unknown field: one of a, b") {
		t.Errorf("%v\n%v", fields, faults)
	}
	if fields, faults := fields["b"].Fields("x", "a"); len(fields) != 0 || len(faults) != 1 {
		t.Errorf("%v %v", fields, faults)
	}
}
