package nethttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// only is a Settle that charges certain statuses.
func only(statuses ...int) func(*http.Request, nethttp.Outcome) int64 {
	return func(_ *http.Request, o nethttp.Outcome) int64 {
		if slices.Contains(statuses, o.Status) {
			return o.Cost
		}
		return 0
	}
}

// Each case charges 10 of 100 units, and has used other ones in the end. A correction is one call, and none is made
// for nothing.
func TestSettle(t *testing.T) {
	always := func(n int64) func(*http.Request, nethttp.Outcome) int64 {
		return func(*http.Request, nethttp.Outcome) int64 { return n }
	}
	var l *core.Limiter
	set := func(units ...int64) http.HandlerFunc {
		return func(_ http.ResponseWriter, r *http.Request) {
			for _, n := range units {
				if err := nethttp.SetCost(r.Context(), l, n); (err == nil) != (n >= 0) || err != nil && !errors.Is(err, core.ErrInvalid) {
					t.Errorf("SetCost of %d: %v", n, err)
				}
			}
		}
	}
	writes := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for _, test := range []struct {
		name    string
		settle  func(*http.Request, nethttp.Outcome) int64
		handler http.HandlerFunc
		used    int64
		panics  any
	}{
		{"a status that counts", only(401), writes(401), 10, nil},
		{"another status", only(401), writes(200), 0, nil},
		{"failures", nethttp.FailuresOnly, writes(400), 10, nil},
		{"no failure", nethttp.FailuresOnly, writes(399), 0, nil},
		{"a status by writing", only(200), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") }, 10, nil},
		{"a status by doing nothing", only(200), func(http.ResponseWriter, *http.Request) {}, 10, nil},
		{"an informational status", only(404), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(404)
		}, 10, nil},
		{"bytes", nethttp.BytesWritten, func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("1234"))
			io.WriteString(w, "56")
			io.Copy(w, strings.NewReader("7"))
		}, 7, nil},
		{"more bytes than there were units", nethttp.BytesWritten, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat("x", 101)) }, 100, nil},
		{"the cost is set", nil, set(99, 3), 3, nil},
		{"the cost is set to 0", nil, set(0), 0, nil},
		{"the cost is set to a negative number", nil, set(4, -1), 4, nil},
		{"the cost is set, and not counted", only(200), func(w http.ResponseWriter, r *http.Request) {
			set(3)(w, r)
			w.WriteHeader(500)
		}, 0, nil},
		{"nothing is set", nil, writes(200), 10, nil},
		{"a panic", only(500), func(http.ResponseWriter, *http.Request) { panic("oh") }, 10, "oh"},
		{"a panic after the header", only(200), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			panic(http.ErrAbortHandler)
		}, 10, http.ErrAbortHandler},
		{"the cost is set before a panic", nil, func(w http.ResponseWriter, r *http.Request) {
			set(2)(w, r)
			panic("oh")
		}, 2, "oh"},
		{"a negative number", always(-1), set(3), 10, nil},
		{"a panic of Settle", func(*http.Request, nethttp.Outcome) int64 { panic("in Settle") }, writes(200), 10, "in Settle"},
	} {
		t.Run(test.name, func(t *testing.T) {
			settled := 0
			store := &core.MemoryStore{Observers: []*core.Observer{{Settled: func(context.Context, core.SettleEvent) { settled++ }}}}
			l = core.NewLimiter(store, "api", hour(100))
			func() {
				defer func() {
					if p := recover(); p != test.panics {
						t.Errorf("panic %v, want %v", p, test.panics)
					}
				}()
				serve(guardOf(t, rates(nethttp.Rate{Limiter: l, Key: client, Cost: costs(10), Settle: test.settle})).Handler(test.handler), request("GET", "/"))
			}()
			if used := 100 - left(t, l, "anna"); used != test.used || (settled == 1) != (used != 10) || settled > 1 {
				t.Errorf("used %d, want %d; settled %d times", used, test.used, settled)
			}
		})
	}
}

// Of several rules some settle, under the plan that applied, and those that do not apply are not there. Without a Cost
// 1 unit is charged to get in. Settle gets the request with the pattern that matched.
func TestSettleOfSeveralRules(t *testing.T) {
	store := new(core.MemoryStore)
	limiter := func(name string) *core.Limiter {
		return core.NewLimiter(store, name, hour(10)).WithPlan("gold", hour(100))
	}
	requests, free, input, bytes, waits := limiter("requests"), limiter("free"), limiter("input"), limiter("bytes"), limiter("waits")
	pattern := ""
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(w http.ResponseWriter, r *http.Request) {
		for l, want := range map[*core.Limiter]error{
			requests: core.ErrSettled, free: core.ErrSettled, input: nil, bytes: nil, waits: nil,
			input.Plan("gold"): core.ErrSettled, nil: core.ErrSettled,
		} {
			if err := nethttp.SetCost(r.Context(), l, 15); !errors.Is(err, want) {
				t.Errorf("SetCost: %v, want %v", err, want)
			}
		}
		io.WriteString(w, "hello")
	})
	gold := func(*http.Request) (string, error) { return "gold", nil }
	serve(guardOf(t, rates(
		rate(requests), nethttp.Rate{Limiter: free, Key: client, Cost: costs(0)},
		nethttp.Rate{Limiter: input, Key: client, Plan: gold, Cost: costs(20)},
		nethttp.Rate{Limiter: bytes, Key: client, Settle: func(r *http.Request, o nethttp.Outcome) int64 {
			pattern = r.Pattern
			return o.Bytes
		}},
		nethttp.Rate{Limiter: waits, Key: client, Cost: costs(2), ObserveOnly: true},
	)).Handler(mux), request("GET", "/items/7"))
	got := fmt.Sprint(left(t, requests, "anna"), left(t, free, "anna"), left(t, input.Plan("gold"), "anna"), left(t, bytes, "anna"), left(t, waits, "anna"))
	if got != "9 10 85 5 0" || pattern != "GET /items/{id}" {
		t.Errorf("left: %s, pattern %q", got, pattern)
	}
}

// A last unit that may come back has no t, but for a refusal; one that comes back only by SetCost has it.
func TestFieldsOfSettlements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			rule nethttp.Rate
			want []string
		}{
			{nethttp.Rate{Settle: nethttp.FailuresOnly}, []string{`200 "login";r=1;t=3600`, `200 "login";r=0`, `429 "login";r=0;t=3600`}},
			{nethttp.Rate{Cost: costs(1)}, []string{`200 "login";r=1;t=3600`, `200 "login";r=0;t=3600`, `429 "login";r=0;t=3600`}},
		} {
			store := new(core.MemoryStore)
			test.rule.Limiter, test.rule.Key = core.NewLimiter(store, "login", hour(2)), client
			other := rate(core.NewLimiter(store, "other", hour(9)))
			for _, several := range []bool{false, true} {
				c := rates(test.rule)
				if several {
					c.Rates = append(c.Rates, other)
				}
				got, key := []string{}, fmt.Sprint(several)
				guard := guardOf(t, c)
				var ask func(http.ResponseWriter, *http.Request)
				ask = func(http.ResponseWriter, *http.Request) { // each request asks within the one before
					if len(got) < 3 {
						got = append(got, "")
						n := len(got) - 1
						w := serve(guard.Handler(http.HandlerFunc(ask)), request("GET", "/", "X-Client", key))
						first, _, _ := strings.Cut(w.Header().Get("RateLimit"), ", ")
						got[n] = fmt.Sprintf("%d %s", w.Code, first)
					}
				}
				if ask(nil, nil); !slices.Equal(got, test.want) {
					t.Errorf("%q, want %q", got, test.want)
				}
			}
		}
	})
}

// A client that has gone, and a goroutine that ends itself, are settled as others. What was not charged is not.
func TestSettleAtTheEnds(t *testing.T) {
	l := memory("api", hour(10))
	c := rates(nethttp.Rate{Limiter: l, Key: client, Settle: only(401)})
	c.Skip = func(r *http.Request) bool { return r.URL.Path == "/skip" }
	guard := guardOf(t, c)
	ctx, hangUp := context.WithCancel(t.Context())
	serve(guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		hangUp()
		<-r.Context().Done()
	})), request("GET", "/").WithContext(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Goexit() })), request("GET", "/"))
	}()
	<-done
	serve(guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := nethttp.SetCost(r.Context(), l, 5); !errors.Is(err, core.ErrSettled) {
			t.Error(err)
		}
	})), request("GET", "/skip"))
	if n := left(t, l, "anna"); n != 10 {
		t.Errorf("%d left", n)
	}
	if err := nethttp.SetCost(t.Context(), l, 1); !errors.Is(err, core.ErrSettled) {
		t.Error(err)
	}
}

// SetCost finds the rule of either of two guards, from many goroutines, and is an error when the request is handled.
func TestSetCostOfNestedGuards(t *testing.T) {
	outer, inner := memory("outer", hour(10)), memory("inner", hour(10))
	guard := func(l *core.Limiter) *nethttp.Guard {
		return guardOf(t, rates(nethttp.Rate{Limiter: l, Key: client, Cost: costs(1)}))
	}
	var late context.Context
	var all sync.WaitGroup
	serve(guard(outer).Handler(guard(inner).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		late = r.Context() //nolint:fatcontext // it is looked at when the request is over
		for range 20 {
			all.Go(func() { _ = nethttp.SetCost(late, outer, 3) })
		}
		if err := errors.Join(nethttp.SetCost(late, outer, 3), nethttp.SetCost(late, inner, 5)); err != nil {
			t.Error(err)
		}
	}))), request("GET", "/"))
	all.Wait()
	if err := nethttp.SetCost(late, outer, 9); !errors.Is(err, core.ErrSettled) {
		t.Error(err)
	}
	if o, i := left(t, outer, "anna"), left(t, inner, "anna"); o != 7 || i != 5 {
		t.Errorf("%d and %d left", o, i)
	}
}

// wrapped is what other middleware makes of a writer: it can only be unwrapped.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type hijackable struct {
	*httptest.ResponseRecorder

	err error
}

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, h.err }

// A connection that was hijacked, however deep it was found, is not settled: what it was charged stands. An attempt
// that fails is nothing.
func TestHijackedIsNotSettled(t *testing.T) {
	l := memory("api", hour(10))
	h := guardOf(t, rates(nethttp.Rate{Limiter: l, Key: client, Settle: only()})).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).Hijack()
	}))
	want := int64(10)
	for _, fails := range []error{net.ErrClosed, nil} {
		for _, w := range []http.ResponseWriter{hijackable{httptest.NewRecorder(), fails}, wrapped{hijackable{httptest.NewRecorder(), fails}}} {
			if h.ServeHTTP(w, request("GET", "/")); fails == nil {
				want--
			}
			if n := left(t, l, "anna"); n != want {
				t.Errorf("%d left, want %d", n, want)
			}
		}
	}
}

// Handlers get writer and request as they are, where the guard wants to know nothing of them.
func TestUntouched(t *testing.T) {
	rule := nethttp.Rate{Limiter: memory("api", hour(10)), Key: keyfuncs.Everyone()}
	cost := rule
	cost.Cost = costs(1)
	settle := rule
	settle.Settle = only(200)
	slots := nethttp.Concurrency{Slots: core.NewSlots(new(core.MemoryStore), "slots", 1), Key: keyfuncs.Everyone()}
	for name, test := range map[string]struct {
		config           nethttp.Config
		writer, requests bool // the same
	}{
		"a rate":  {rates(rule), true, true},
		"slots":   {nethttp.Config{Concurrency: []nethttp.Concurrency{slots}}, true, true},
		"Cost":    {rates(cost), true, false},
		"Settle":  {rates(settle), false, false},
		"verdict": {nethttp.Config{Rates: []nethttp.Rate{rule}, KeepVerdict: true}, true, false},
	} {
		w := httptest.NewRecorder()
		r := request("GET", "/").WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, "here"))
		guardOf(t, test.config).Handler(http.HandlerFunc(func(got http.ResponseWriter, q *http.Request) {
			if (got == w) != test.writer || (q == r) != test.requests {
				t.Errorf("%s: the same writer %v, request %v", name, got == w, q == r)
			}
			if q != r && q.Context().Value(http.LocalAddrContextKey) != "here" {
				t.Error("the context has lost its values")
			}
		})).ServeHTTP(w, r)
	}
}
