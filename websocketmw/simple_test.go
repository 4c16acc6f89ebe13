package websocketmw

import (
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
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
		v := g.Check(upgradeRequest())
		t.Cleanup(func() { v.End(nethttp.Outcome{}) })
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

// Adapters learn where a guard is mounted what it needs.
func TestMount(t *testing.T) {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 1))
	plain := nethttp.Rule{Slots: slots, Key: keyfuncs.Everyone()}
	planned := plain
	planned.PlanSlots = func(*http.Request, string) *core.Slots { return nil }
	for _, test := range []struct {
		name      string
		config    Config
		functions bool
	}{
		{"keys", Config{Rules: []nethttp.Rule{plain}}, false},
		{"a rule's function", Config{Rules: []nethttp.Rule{planned}}, true},
		{"a guard's function", Config{Rules: []nethttp.Rule{plain}, Observe: func(*http.Request, nethttp.Verdict) {}}, true},
		{"a function of a rate", Config{Rules: []nethttp.Rule{plain, {
			Limiter: core.Must(core.New(memstore.New(memstore.Config{}), "rate", core.Unlimited())), Key: keyfuncs.Everyone(),
			Cost: func(*http.Request) int64 { return 1 },
		}}}, true},
	} {
		if got := core.Must(New(test.config)).Mount(nethttp.Ends | nethttp.Upgrades); got != test.functions {
			t.Errorf("%s: functions: %v", test.name, got)
		}
	}
	for name, mount := range map[string]func(g *Guard){
		"Mount":   func(g *Guard) { g.Mount() },
		"Handler": func(g *Guard) { g.Handler(http.NotFoundHandler()) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "the guard is nil") {
					t.Errorf("%s of a nil guard: panic %q", name, text)
				}
			}()
			mount(nil)
		}()
	}
}

// A key that an adapter has to carry is known where the guard is mounted.
func TestCarriedKey(t *testing.T) {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 1))
	key := carried.Required(keyfuncs.Func(func(*http.Request) (string, error) { return "anna", nil }))
	for name, test := range map[string]struct {
		config Config
		panics string
	}{
		"a rule's": {Config{Rules: []nethttp.Rule{{Slots: slots, Key: key}}}, `Rules[0].Key (slots "ws") is from a framework's context`},
		"of Inbound": {Config{
			Rules:   []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone()}},
			Inbound: []Inbound{{Limiter: core.Must(core.New(memstore.New(memstore.Config{}), "in", core.Unlimited())), Key: key}},
		}, "Inbound[0].Key is from a framework's context"},
		"of a rate": {Config{Rules: []nethttp.Rule{
			{Slots: slots, Key: keyfuncs.Everyone()},
			{Limiter: core.Must(core.New(memstore.New(memstore.Config{}), "hands", core.Unlimited())), Key: key},
		}}, `Rules[1].Key (limiter "hands") is from a framework's context`},
	} {
		guard := core.Must(New(test.config))
		if !guard.Mount(nethttp.Ends, nethttp.Upgrades) {
			t.Errorf("%s is not carried", name)
		}
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, test.panics) {
					t.Errorf("%s: panic %q", name, text)
				}
			}()
			guard.Handler(http.NotFoundHandler())
		}()
	}
}
