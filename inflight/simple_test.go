package inflight

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
)

func TestLimitReportsWhatIsWrong(t *testing.T) {
	key := keyfuncs.RemoteAddr()
	var none *memstore.Store
	for _, test := range []struct {
		name string
		make func() (*Guard, error)
		want []string // in the error; none: there is no error
	}{
		{"fine", func() (*Guard, error) { return Limit("ws", key, 5) }, nil},
		{"none at all", func() (*Guard, error) { return Limit("ws", key, 0) }, nil},
		{"no limit", func() (*Guard, error) { return Limit("ws", key, core.NoLimit) }, nil},
		{"no name", func() (*Guard, error) { return Limit("", key, 5) }, []string{`slots "": the name is empty`}},
		{"a name that no field can show", func() (*Guard, error) { return Limit("größe", key, 5) }, []string{`only printable ASCII`}},
		{"no key", func() (*Guard, error) { return Limit("ws", nil, 5) }, []string{`limit "ws": the key is nil: say whose`}},
		{"a negative limit", func() (*Guard, error) { return Limit("ws", key, -1) }, []string{`a limit of -1 slots`}},
		{"a huge limit", func() (*Guard, error) { return Limit("ws", key, math.MaxInt64) }, []string{`slots is not 0 to`}},
		{"everything", func() (*Guard, error) { return Limit("", nil, -1) }, []string{`the name is empty`, `the key is nil`, `a limit of -1 slots`}},
		{"no store", func() (*Guard, error) { return LimitIn(nil, "ws", key, 5) }, []string{`the store is nil`}},
		{"a nil store", func() (*Guard, error) { return LimitIn(none, "ws", key, 5) }, []string{`the store is a nil *memstore.Store`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			guard, err := test.make()
			if len(test.want) == 0 {
				if err != nil || guard == nil {
					t.Fatalf("%v, %v", guard, err)
				}
				guard.Handler(http.NotFoundHandler())
				return
			}
			if err == nil || guard != nil {
				t.Fatalf("%v, %v: want an error", guard, err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is\n%v\nwithout %q", err, want)
				}
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if strings.Count(line, "headgate: ") != 1 {
					t.Errorf("%q has not one prefix", line)
				}
			}
		})
	}
}

// Guards of the short form count on their own, and with a store and a name together.
func TestLimitsShareOnlyAStore(t *testing.T) {
	store, key := memstore.New(memstore.Config{}), keyfuncs.Everyone()
	check := func(g *Guard) int {
		v := g.Check(httptest.NewRequest("GET", "/", nil))
		t.Cleanup(v.Release)
		return v.Status()
	}
	for i, want := range []int{0, 0} {
		if got := check(core.Must(Limit("ws", key, 1))); got != want {
			t.Errorf("guard %d: %d, want %d", i, got, want)
		}
	}
	for i, want := range []int{0, 429} {
		if got := check(core.Must(LimitIn(store, "ws", key, 1))); got != want {
			t.Errorf("guard %d with a store: %d, want %d", i, got, want)
		}
	}
}

// What a guard needs is checked where it is mounted.
func TestMount(t *testing.T) {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 1))
	key := keyfuncs.Everyone()
	own := core.Must(New(Config{Rules: []Rule{{Slots: slots, Key: key}}}))
	theirs := core.Must(New(Config{Rules: []Rule{{Slots: slots, ByFramework: true}}}))
	observed := core.Must(New(Config{
		Rules:   []Rule{{Slots: slots, Key: key}},
		Observe: func(*http.Request, Verdict) {},
	}))
	for _, test := range []struct {
		name      string
		guard     *Guard
		keys      int
		functions bool
		panics    string
	}{
		{"its own key", own, -1, false, ""},
		{"another key", own, 1, false, ""},
		{"a function", observed, -1, true, ""},
		{"a framework's key", theirs, 1, false, ""},
		{"no guard", nil, -1, false, "the guard is nil"},
		{"no key of the framework", theirs, -1, false, `Rules[0] (slots "ws") is ByFramework`},
		{"too many keys", theirs, 2, false, "the number of keys is 2, that of rules 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if test.panics == "" && text != "" || !strings.Contains(text, test.panics) {
					t.Errorf("panic %q, want %q", text, test.panics)
				}
			}()
			if got := test.guard.Mount(test.keys); got != test.functions || test.panics != "" {
				t.Errorf("functions: %v", got)
			}
		})
	}
	if _, err := New(Config{Rules: []Rule{{Slots: slots, Key: key, ByFramework: true}}}); err == nil || !strings.Contains(err.Error(), "Rules[0].Key: the rule is ByFramework") {
		t.Errorf("two keys: %v", err)
	}
	v := theirs.Check(httptest.NewRequest("GET", "/", nil))
	if v.Status() != http.StatusInternalServerError || !errors.Is(v.Err, keyfuncs.ErrProgram) {
		t.Errorf("Check without a key: %d %v", v.Status(), v.Err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Handler did not panic")
		}
	}()
	theirs.Handler(http.NotFoundHandler())
}
