package nethttp_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
)

func TestNewReportsEveryFault(t *testing.T) {
	store, other := memstore.New(memstore.Config{}), memstore.New(memstore.Config{})
	minute := core.SlidingLog(core.PerMinute(1))
	a, b := newLimiter(t, store, "a", minute), newLimiter(t, store, "b", minute)
	rule := func(l *core.Limiter) nethttp.Rule { return nethttp.Rule{Limiter: l, Key: header} }
	var nine []nethttp.Rule
	for name := range strings.SplitSeq("123456789", "") {
		nine = append(nine, rule(newLimiter(t, store, name, minute)))
	}

	for _, test := range []struct {
		name   string
		config nethttp.Config
		want   []string // Field, and a part of the text
	}{
		{"no rules", nethttp.Config{}, []string{"Rules", "1 to 8 rules, not 0"}},
		{"too many rules", rules(nine...), []string{"Rules", "not 9"}},
		{"no key", rules(nethttp.Rule{Limiter: a}), []string{"Rules[0].Key", "who is charged"}},
		{"no limiter", rules(rule(a), nethttp.Rule{Key: header}), []string{"Rules[1].Limiter", "core.New"}},
		{"one limiter twice", rules(rule(a), rule(b), rule(a)), []string{"Rules[2].Limiter", `with Rules[0]: both limiters are named "a"`}},
		{
			"one name twice", rules(rule(a), rule(newLimiter(t, other, "a", minute))),
			[]string{"Rules[1].Limiter", `both limiters are named "a"`},
		},
		{
			"two stores", rules(rule(a), rule(newLimiter(t, other, "c", minute))),
			[]string{"Rules[1].Limiter", `"a" and "c" have different stores`},
		},
		{
			"two stores, all constant", rules(rule(newLimiter(t, store, "u", core.Unlimited())), rule(newLimiter(t, other, "v", core.Blocked()))),
			[]string{"Rules[1].Limiter", `different stores`},
		},
		{
			"one policy name twice", rules(rule(a), rule(newLimiter(t, store, "c", minute.Named("a"), minute.Named("x")))),
			[]string{"Rules[1].Limiter", `a policy named "a"`},
		},
		{
			"fields, and none", nethttp.Config{Rules: []nethttp.Rule{rule(a)}, Fields: nethttp.XRateLimit, NoFields: true},
			[]string{"NoFields", "Fields is set too"},
		},
		{
			"all together",
			nethttp.Config{Rules: []nethttp.Rule{{}, rule(a), rule(newLimiter(t, other, "c", minute.Named("a")))}},
			[]string{
				"Rules[0].Key", "who is charged", "Rules[0].Limiter", "core.New",
				"Rules[2].Limiter", "different stores", "Rules[2].Limiter", "a policy named",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			guard, err := nethttp.New(test.config)
			if guard != nil || err == nil {
				t.Fatalf("New: %v, %v", guard, err)
			}
			faults := err.(interface{ Unwrap() []error }).Unwrap()
			if len(faults) != len(test.want)/2 {
				t.Fatalf("%d faults, want %d:\n%v", len(faults), len(test.want)/2, err)
			}
			for i, fault := range faults {
				var ce *nethttp.ConfigError
				if !errors.As(fault, &ce) {
					t.Fatalf("%T", fault)
				}
				field, text := test.want[2*i], test.want[2*i+1]
				if ce.Field != field || !strings.Contains(ce.Error(), text) || errors.Unwrap(ce) == nil {
					t.Errorf("fault %d is %v, want %s: %s", i, ce, field, text)
				}
			}
		})
	}
}

func TestNewAcceptsWhatIsRight(t *testing.T) {
	store := memstore.New(memstore.Config{})
	var eight []nethttp.Rule
	for name := range strings.SplitSeq("abcdefgh", "") {
		eight = append(eight, nethttp.Rule{Limiter: newLimiter(t, store, name, core.SlidingLog(core.PerMinute(1))), Key: header})
	}
	newGuard(t, nethttp.Config{Rules: eight})
	// A validation that asked a limiter would show here.
	if n := store.Stats().Keys; n != 0 {
		t.Errorf("New has charged %d keys", n)
	}
}

// Later changes of the slice of rules have no effect.
func TestNewCopiesTheRules(t *testing.T) {
	c := rules(nethttp.Rule{Limiter: memory(t, "api", core.Blocked()), Key: header})
	guard := newGuard(t, c)
	c.Rules[0] = nethttp.Rule{}
	if w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna")); w.Code != 429 {
		t.Errorf("status %d", w.Code)
	}
}

// What is forgotten shows when the handler is made, not at the first request.
func TestHandlerOfNil(t *testing.T) {
	guard := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.Unlimited()), Key: header}))
	for want, make := range map[string]func(){
		"headgate: guard: the handler is nil":                             func() { guard.Handler(nil) },
		"headgate: guard: the guard is nil: see the error of nethttp.New": func() { (*nethttp.Guard)(nil).Handler(status(204)) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic %v, want %q", got, want)
				}
			}()
			make()
		}()
	}
}
