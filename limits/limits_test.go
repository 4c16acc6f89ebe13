package limits_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/limits"
)

// A text is a source that a test writes.
type text struct{ atomic.Pointer[[]byte] }

func (s *text) set(format string, args ...any) {
	b := fmt.Appendf(nil, format+"\n...\n", args...)
	s.Store(&b)
}

func (s *text) load(context.Context) ([]byte, error) {
	if b := s.Load(); b != nil {
		return *b, nil
	}
	return nil, errors.New("the source is away")
}

func open(t testing.TB, format string, args ...any) (*limits.Book, *text) {
	t.Helper()
	s := new(text)
	s.set(format, args...)
	book, err := limits.Open(t.Context(), new(core.MemoryStore), s.load, limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	return book, s
}

func limiter(t testing.TB, b *limits.Book, name string) *core.Limiter {
	t.Helper()
	l, err := b.Limiter(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func answers(d core.Decision) []core.Answer { return slices.Collect(d.Answers()) }

func admits(t testing.TB, l *core.Limiter, key string, n int) (admitted int) {
	t.Helper()
	for range n {
		d, err := l.Allow(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		}
	}
	return admitted
}

func TestOverrides(t *testing.T) {
	book, _ := open(t, `
limits:
  api:
    default: free
    plans: {free: fixed-window 2/day, gold: fixed-window 4/day, shut: blocked}
    overrides:
      - {key: 203.0.113.7, policies: fixed-window 7/day}
      - {network: 203.0.113.0/24, policies: fixed-window 3/day}
      - {network: 203.0.113.0/28, policies: fixed-window 5/day}
      - {network: 2001:db8::/32, plan: gold}
      - {network: 2001:db8:f::/48, plan: shut}
      - {key: "2001:db8:f:1::/64", policies: unlimited}
      - {prefix: "203.", policies: fixed-window 1/day}
      - {prefix: "acme:", plan: gold}
      - {prefix: "acme:eu:", plan: shut}
      - {key: old, plan: gold, until: 2020-01-01T00:00:00Z}
      - {key: soon, plan: gold, from: 2999-01-01T00:00:00Z}
slots:
  ws: {default: free, plans: {free: 1, gold: 3}, overrides: [{key: ben, slots: 2}, {network: 10.0.0.0/8, plan: gold}]}`)
	api := limiter(t, book, "api")
	for key, want := range map[string]int{
		"203.0.113.7": 7, "203.0.113.15": 5, "203.0.113.16": 3, "203.0.114.1": 1, "203.0.113.0/25": 3, "203.0.113.0/20": 1,
		"2001:db8:1:2::/64": 4, "2001:db8:f:2::/64": 0, "2001:db8:f:1::/64": 9, "2001:db9::/64": 2,
		"acme:1": 4, "acme:eu:1": 0, "anna": 2, "old": 2, "soon": 2,
	} {
		if n := admits(t, api, key, 9); n != want {
			t.Errorf("%s: %d, not %d", key, n, want)
		}
	}
	for plan, want := range map[string]int{"": 2, "gold": 4, "shut": 0, "none": 2, "unlimited": 2, "blocked": 2} {
		if n := admits(t, api.Plan(plan), "user of "+plan, 9); n != want {
			t.Errorf("plan %s: %d, not %d", plan, n, want)
		}
	}
	ws, err := book.Slots("ws")
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"anna": 1, "ben": 2, "10.1.1.1": 3} {
		n := 0
		for range 5 {
			if _, err := ws.Acquire(t.Context(), key); err == nil {
				n++
			}
		}
		if n != want {
			t.Errorf("slots of %s: %d, not %d", key, n, want)
		}
	}
	if _, err := book.Limiter("other"); err == nil {
		t.Error("a limit that the document does not have")
	}
}

// A plan by the month, with customers whose months begin on another day, or elsewhere.
func TestCalendars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const form = `
limits:
  api:
    plans: {all: calendar 3/month}
    overrides:
      - {key: acme, policies: calendar 5/month starting 15}
      - {prefix: "jp:", policies: calendar 4/month in Asia/Tokyo}`
		book, _ := open(t, form)
		api := limiter(t, book, "api")
		spend := func(want map[string]int) {
			t.Helper()
			for key, units := range want {
				if n := admits(t, api, key, 9); n != units {
					t.Errorf("%v: %s: %d, not %d", time.Now().UTC(), key, n, units)
				}
			}
		}
		at := func(month time.Month, day, hour int) {
			time.Sleep(time.Until(time.Date(2000, month, day, hour, 0, 0, 0, time.UTC)))
		}
		at(1, 10, 0)
		spend(map[string]int{"anna": 3, "acme": 5, "jp:1": 4})
		at(1, 15, 0)
		spend(map[string]int{"anna": 0, "acme": 5, "jp:1": 0})
		at(1, 31, 15) // midnight in Tokyo
		spend(map[string]int{"anna": 0, "acme": 0, "jp:1": 4})
		at(2, 1, 0)
		spend(map[string]int{"anna": 3, "acme": 0, "jp:1": 0})
	})
}

// Usage stays when the limit of a window or log changes, for better or worse; a bucket and another period start fresh.
func TestUsageStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const form = `
limits:
  f: {plans: {all: fixed-window %d/hour}}
  s: {plans: {all: sliding-window %d/hour}}
  l: {plans: {all: sliding-log %d/hour}}
  b: {plans: {all: token-bucket %d/hour}}
  p: {plans: {all: fixed-window 5/%s}}`
		book, s := open(t, form, 5, 5, 5, 5, "hour")
		for _, name := range []string{"f", "s", "l", "b", "p"} {
			if n := admits(t, limiter(t, book, name), "k", 4); n != 4 {
				t.Fatal(name, n)
			}
		}
		s.set(form, 8, 8, 8, 8, "day")
		if err := book.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int{"f": 4, "s": 4, "l": 4, "b": 8, "p": 5} {
			if n := admits(t, limiter(t, book, name), "k", 20); n != want {
				t.Errorf("%s raised: %d, not %d", name, n, want)
			}
		}
		fresh := 0
		for _, c := range book.State().Changes {
			if strings.Contains(c, "starts fresh") {
				fresh++
			}
		}
		if fresh != 2 || len(book.State().Changes) != 5 {
			t.Error(book.State().Changes)
		}
		s.set(form, 3, 3, 3, 3, "day")
		if err := book.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"f", "s", "l", "p"} {
			if n := admits(t, limiter(t, book, name), "k", 20); n != 0 {
				t.Errorf("%s lowered: %d", name, n)
			}
		}
		s.set(form, 9, 9, 9, 9, "day")
		if err := book.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int{"f": 1, "s": 1, "l": 1} {
			if n := admits(t, limiter(t, book, name), "k", 20); n != want {
				t.Errorf("%s raised again: %d, not %d", name, n, want)
			}
		}
	})
}

// A receipt gives back what was charged, under the policies that were charged, whatever the document says by then.
func TestReceiptsOutliveDocuments(t *testing.T) {
	book, s := open(t, "limits: {api: {plans: {all: {minute: fixed-window 5/hour, day: fixed-window 9/day}}}}")
	api := limiter(t, book, "api")
	d, err := api.AllowN(t.Context(), "k", 5)
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	s.set("limits: {api: {plans: {all: {minute: fixed-window 6/hour}}}}")
	if err := book.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := admits(t, api, "k", 9); n != 1 {
		t.Error(n)
	}
	if err := d.Refund(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
		t.Error(err)
	}
	if n := admits(t, api, "k", 9); n != 5 {
		t.Error(n)
	}
	s.set("limits: {api: {plans: {all: {minute: fixed-window 6/hour, day: fixed-window 9/day}}}}")
	if err := book.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err = api.AllowN(t.Context(), "k", 0)
	if err != nil || answers(d)[1].Remaining != 9 {
		t.Error(answers(d)[1], err)
	}
}

// What is wrong changes nothing, and is in the state until it is right again.
func TestBrokenReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seen := new(text), make(chan limits.State, 100)
		s.set("limits: {api: {plans: {all: fixed-window 2/day}}, other: {plans: {all: blocked}}}")
		book, err := limits.Open(t.Context(), new(core.MemoryStore), s.load, limits.Config{OnChange: func(s limits.State) { seen <- s }})
		if err != nil {
			t.Fatal(err)
		}
		api, version := limiter(t, book, "api"), (<-seen).Version
		expect := func(want string) {
			t.Helper()
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			st := book.State()
			if st.Version != version || want == "" && st.Err != nil || want != "" && (st.Err == nil || !strings.Contains(st.Err.Error(), want)) {
				t.Errorf("%v %v, not %s", st.Version, st.Err, want)
			}
			if len(seen) != 1 {
				t.Errorf("%d calls", len(seen))
			}
			for len(seen) > 0 {
				<-seen
			}
			if d, err := api.Peek(t.Context(), "k"); err != nil || answers(d)[0].Limit != 2 {
				t.Error(d, err)
			}
		}
		good := *s.Load()
		s.set("limits: {api: {plans: {all: fixed-window 2/dya}}}")
		expect(`line 1, column 29: "fixed-window 2/dya"`)
		s.Store(nil)
		expect("the source is away")
		s.set("limits: {other: {plans: {all: blocked}}}")
		expect(`the program uses a limit "api", which the document does not have`)
		s.set("limits: {another: {plans: {all: blocked}}}") // a refusal of another document, in the same words
		expect(`the program uses a limit "api", which the document does not have`)
		s.set("")
		expect("the document is empty")
		s.Store(&good)
		expect("")
		s.set("limits: {api: {plans: {all: fixed-window 2/day}}}") // the other is used by nobody
		time.Sleep(1500 * time.Millisecond)
		if st := <-seen; st.Err != nil || st.Version == version || len(st.Changes) != 1 {
			t.Error(st)
		}
		book.Close()
		if st := <-seen; !errors.Is(st.Err, core.ErrClosed) {
			t.Error(st)
		}
	})
}

// Close ends a question to the source, which is not away for that.
func TestCloseWhileTheSourceIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		source := func(ctx context.Context) ([]byte, error) {
			if asked++; asked == 1 {
				return []byte("limits: {api: {plans: {all: blocked}}}\n..."), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		var seen []error
		book, err := limits.Open(t.Context(), new(core.MemoryStore), source, limits.Config{OnChange: func(s limits.State) { seen = append(seen, s.Err) }})
		if err != nil {
			t.Fatal(err)
		}
		reloaded := make(chan error, 1)
		go func() { reloaded <- book.Reload(context.Background()) }()
		synctest.Wait()
		book.Close()
		if err := <-reloaded; !errors.Is(err, core.ErrClosed) {
			t.Error(err)
		}
		if !slices.Equal(seen, []error{nil, core.ErrClosed}) {
			t.Errorf("OnChange got %v", seen)
		}
	})
}

func TestInitial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(text)
		if _, err := limits.Open(t.Context(), new(core.MemoryStore), s.load, limits.Config{}); err == nil {
			t.Error("no document")
		}
		book, err := limits.Open(t.Context(), new(core.MemoryStore), s.load, limits.Config{Initial: []byte("limits: {api: {plans: {all: fixed-window 2/day}}}\n...")})
		if err != nil || book.State().Err == nil {
			t.Fatal(err, book.State())
		}
		defer book.Close()
		if n := admits(t, limiter(t, book, "api"), "k", 9); n != 2 {
			t.Error(n)
		}
		s.set("limits: {api: {plans: {all: fixed-window 5/day}}}")
		time.Sleep(1100 * time.Millisecond)
		if n := admits(t, limiter(t, book, "api"), "k", 9); n != 3 || book.State().Err != nil {
			t.Error(n, book.State())
		}
	})
}

// A ConfigMap is a directory of links: ..data points to a directory of the version, and is swapped.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	put := func(n int) {
		version := filepath.Join(dir, fmt.Sprintf("..%d", n))
		os.Mkdir(version, 0o700)
		os.WriteFile(filepath.Join(version, "limits.yaml"), fmt.Appendf(nil, "limits: {api: {plans: {all: fixed-window %d/day}}}\n...\n", n), 0o600)
		os.Symlink(filepath.Base(version), filepath.Join(dir, "..new"))
		if err := os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	path := filepath.Join(dir, "limits.yaml")
	os.Symlink(filepath.Join("..data", "limits.yaml"), path)
	book, err := limits.Open(t.Context(), new(core.MemoryStore), limits.File(path), limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	api := limiter(t, book, "api")
	limit := func() int64 {
		d, err := api.Peek(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		return answers(d)[0].Limit
	}
	for n := 2; n < 5; n++ {
		put(n)
		os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", n-1)))
		for range 30 {
			if time.Sleep(100 * time.Millisecond); limit() == int64(n) {
				break
			}
		}
		if limit() != int64(n) || book.State().Err != nil {
			t.Error(limit(), book.State())
		}
	}
	os.Remove(filepath.Join(dir, "..data"))
	time.Sleep(1500 * time.Millisecond)
	if limit() != 4 || book.State().Err == nil {
		t.Error(limit(), book.State())
	}
	if out := fmt.Sprintf("%v %+v %#v", book, book, book); strings.Contains(out, "fixed-window") {
		t.Error(out)
	}
}

// A file that somebody writes in place, in pieces, is read when it is whole.
func TestWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	whole := "limits: {api: {plans: {all: fixed-window 1/day}, overrides: [" + strings.Repeat("{key: a, plan: all}, ", 1) + "]}}\n...\n"
	os.WriteFile(path, []byte(whole), 0o600)
	load := limits.File(path)
	if b, err := load(t.Context()); err != nil || string(b) != whole {
		t.Fatal(err)
	}
	f, _ := os.Create(path)
	var done sync.WaitGroup
	done.Go(func() {
		for _, c := range whole + "# more\n" {
			f.WriteString(string(c))
			time.Sleep(2 * time.Millisecond)
		}
		f.Close()
	})
	for {
		b, err := load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if string(b) == whole+"# more\n" {
			break
		}
		if string(b) != whole {
			t.Fatalf("%q", b)
		}
	}
	done.Wait()
}

// A source may be that of several books.
func TestFileOfSeveralBooks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	os.WriteFile(path, []byte("limits: {api: {plans: {all: fixed-window 1/day}}}\n...\n"), 0o600)
	source := limits.File(path)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			book, err := limits.Open(t.Context(), new(core.MemoryStore), source, limits.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			book.Close()
		})
	}
	all.Wait()
}

// While documents take each other's place, no question has two of them: both limiters of a question, and both
// policies, are of one document. Plans and overrides too.
func TestNoMixedQuestions(t *testing.T) {
	form := func(n int) string {
		return strings.ReplaceAll(`
limits:
  a: {default: free, plans: {free: {x: fixed-window N000000/day, y: sliding-window N000000/day}, gold: {x: fixed-window N000001/day, y: sliding-window N000001/day}}, overrides: [{prefix: o, policies: {x: fixed-window N000002/day, y: sliding-window N000002/day}}, {network: 10.0.0.0/8, plan: gold}]}
  b: {plans: {all: fixed-window N000000/day}}
  c`+fmt.Sprint(n)+`: {plans: {all: blocked}}`, "N", fmt.Sprint(n))
	}
	book, s := open(t, "%s", form(1))
	a, b := limiter(t, book, "a"), limiter(t, book, "b")
	stop, asked := make(chan struct{}), atomic.Int64{}
	var done sync.WaitGroup
	for i := range 4 {
		done.Go(func() {
			keys := []string{"k", "o1", "10.1.2.3", "user"}
			for j := 0; ; j++ {
				select {
				case <-stop:
					return
				default:
				}
				l := a
				if j%3 == 0 {
					l = a.Plan("gold")
				}
				d, err := core.AllowAll(t.Context(), l.Charge(keys[j%4], 1), b.Charge(fmt.Sprint(i), 1), b.Plan("none").Charge(fmt.Sprint("x", i), 1))
				if err != nil {
					t.Error(err)
					return
				}
				first := answers(d)[0].Limit / 1e6
				for k := range len(answers(d)) {
					if answers(d)[k].Limit/1e6 != first {
						t.Errorf("a question of two documents: %d and %d", first, answers(d)[k].Limit/1e6)
						return
					}
				}
				if answers(d)[0].Limit != answers(d)[1].Limit {
					t.Error("two policies of two documents")
					return
				}
				asked.Add(1)
			}
		})
	}
	reloads := 0
	for begin := time.Now(); time.Since(begin) < 5*time.Second && !t.Failed(); reloads++ {
		s.set("%s", form(1+rand.IntN(9)))
		if err := book.Reload(t.Context()); err != nil {
			t.Error(err)
		}
		if reloads%10 == 0 {
			_ = book.State()
			if _, err := book.Limiter("b"); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	done.Wait()
	t.Logf("%d questions, %d documents", asked.Load(), reloads)
}

// A program may ask for a limit while a document without it comes: either the one fails or the other.
func TestLimiterAgainstReload(t *testing.T) {
	for range 200 {
		book, s := open(t, "limits: {a: {plans: {all: blocked}}, b: {plans: {all: blocked}}}")
		s.set("limits: {b: {plans: {all: blocked}}}")
		var done sync.WaitGroup
		var err error
		done.Go(func() { err = book.Reload(t.Context()) })
		l, missing := book.Limiter("a")
		done.Wait()
		if (err == nil) == (missing == nil) {
			t.Fatal(err, missing)
		}
		if missing == nil {
			if n := admits(t, l, "k", 1); n != 0 {
				t.Error(n)
			}
		}
		book.Close()
	}
}

// A question of a document allocates nothing, whatever applies.
func TestAllocations(t *testing.T) {
	book, _ := open(t, `
limits:
  a: {default: free, plans: {free: fixed-window 100000/day, gold: fixed-window 200000/day}, overrides: [{key: k, plan: gold}, {prefix: "p", plan: gold}, {network: 10.0.0.0/8, plan: gold}, {network: "2001:db8::/32", plan: gold}]}
  b: {plans: {all: sliding-window 100000/day}}`)
	a, b := limiter(t, book, "a"), limiter(t, book, "b")
	for _, key := range []string{"k", "p1", "10.1.2.3", "2001:db8:1:2::/64", "192.0.2.1", "anna", "1.2.3", "beef"} {
		if n := testing.AllocsPerRun(1000, func() {
			if d, err := a.Plan("gold").Allow(t.Context(), key); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if d, err := core.AllowAll(t.Context(), a.Charge(key, 1), b.Charge(key, 1)); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", key, n)
		}
	}
}

// A reset covers all plans and the override of a key, and no other key. A limiter of a document and one of constants
// are charged together if their store is the same.
func TestReset(t *testing.T) {
	store := new(core.MemoryStore)
	s := new(text)
	s.set("limits: {api: {default: free, plans: {free: token-bucket 2/hour, gold: token-bucket 4/hour}, overrides: [{key: k, policies: token-bucket 3/hour}]}}")
	book, err := limits.Open(t.Context(), store, s.load, limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	api := limiter(t, book, "api")
	use := func(key string) int { return admits(t, api, key, 9) + admits(t, api.Plan("gold"), key, 9) }
	if a, b := use("anna"), use("k"); a != 6 || b != 3 {
		t.Fatal(a, b)
	}
	if err := api.Reset(t.Context(), "anna"); err != nil {
		t.Fatal(err)
	}
	if a, b := use("anna"), use("k"); a != 6 || b != 0 {
		t.Error(a, b)
	}
	if err := api.Plan("gold").Reset(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if b := use("k"); b != 3 {
		t.Error(b)
	}
	plain := core.NewLimiter(store, "plain", core.FixedWindow(1, time.Hour)).WithPlan("gold", core.FixedWindow(2, time.Hour))
	for i := range 3 {
		d, err := core.AllowAll(t.Context(), api.Charge("ben", 1), plain.Plan("gold").Charge("ben", 1))
		if err != nil || d.Allowed != (i < 2) {
			t.Error(i, d, err)
		}
	}
	if err := plain.Reset(t.Context(), "ben"); err != nil || admits(t, plain, "ben", 9) != 1 {
		t.Error(err)
	}
	other := core.NewLimiter(new(core.MemoryStore), "other", core.FixedWindow(1, time.Hour))
	if _, err := core.AllowAll(t.Context(), api.Charge("ben", 1), other.Charge("ben", 1)); !errors.Is(err, core.ErrInvalid) {
		t.Error(err)
	}
}
