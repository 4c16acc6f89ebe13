package nethttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
)

func only(statuses ...int) func(*http.Request, nethttp.Outcome) int64 {
	return func(_ *http.Request, o nethttp.Outcome) int64 {
		if slices.Contains(statuses, o.Status) {
			return o.Cost
		}
		return 0
	}
}

func bytesWritten(_ *http.Request, o nethttp.Outcome) int64 { return o.Written }

// Each case charges an estimate of 10 and ends with a true cost.
func TestSettle(t *testing.T) {
	for _, test := range []struct {
		name    string
		settle  func(*http.Request, nethttp.Outcome) int64
		handler http.HandlerFunc
		cost    int64 // in the end
		panics  any
	}{
		{"counted status", only(401), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, 10, nil},
		{"other status", only(401), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }, 0, nil},
		{"status by writing", only(200), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") }, 10, nil},
		{"status by flushing", only(200), func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.WriteHeader(404)
		}, 10, nil},
		{"status by doing nothing", only(200), func(http.ResponseWriter, *http.Request) {}, 10, nil},
		{"the first status stands", only(403), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			w.WriteHeader(200)
		}, 10, nil},
		{"informational statuses are not final", only(404), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(103)
			w.WriteHeader(404)
		}, 10, nil},
		{"101 is final", only(101), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(101) }, 10, nil},

		{"bytes", bytesWritten, func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte("1234"))
			io.WriteString(w, "56")
			io.Copy(w, strings.NewReader("7"))
		}, 7, nil},
		{"more bytes than reserved", bytesWritten, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat("x", 25))
		}, 25, nil},

		{"stated", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 99)
			if !nethttp.SetCost(r.Context(), "api", 3) {
				t.Error("SetCost: false")
			}
		}, 3, nil},
		{"stated 0", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) { nethttp.SetCost(r.Context(), "api", 0) }, 0, nil},
		{"not stated", nethttp.StatedCost, func(http.ResponseWriter, *http.Request) {}, 10, nil},
		{"stated in a context made of it", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			cancel()
			nethttp.SetCost(ctx, "api", 4)
		}, 4, nil},
		{"stated for another", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			if nethttp.SetCost(r.Context(), "other", 3) {
				t.Error("SetCost of an unknown limiter: true")
			}
		}, 10, nil},
		{"stated negative", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			if nethttp.SetCost(r.Context(), "api", -1) {
				t.Error("SetCost of -1: true")
			}
		}, 10, nil},
		{"stated and counted", only(200), func(w http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 3)
			w.WriteHeader(500)
		}, 0, nil},

		{"panic before the header", only(500), func(http.ResponseWriter, *http.Request) { panic("oh") }, 10, "oh"},
		{"panic after the header", only(200), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			panic(http.ErrAbortHandler)
		}, 10, http.ErrAbortHandler},
		{"panic is no success", only(200), func(http.ResponseWriter, *http.Request) { panic("oh") }, 0, "oh"},
		{"stated before a panic", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 2)
			panic("oh")
		}, 2, "oh"},

		{"negative: the charge stands", func(*http.Request, nethttp.Outcome) int64 { return -1 }, func(http.ResponseWriter, *http.Request) {}, 10, nil},
		{"negative after stated: the charge stands", func(*http.Request, nethttp.Outcome) int64 { return -1 }, func(_ http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 3)
		}, 10, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := newFake()
			limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerHour(100)))
			guard := newGuard(t, rules(nethttp.Rule{
				Limiter: limiter, Key: header,
				Cost:   func(*http.Request) int64 { return 10 },
				Settle: test.settle,
			}))
			func() {
				defer func() {
					if p := recover(); p != test.panics {
						t.Errorf("panic %v, want %v", p, test.panics)
					}
				}()
				serve(guard.Handler(test.handler), request("GET", "/", "X-Client", "anna"))
			}()
			if got := 100 - remaining(t, limiter, "anna"); got != test.cost {
				t.Errorf("it cost %d, want %d", got, test.cost)
			}
			if want := min(1, max(test.cost-10, 10-test.cost)); int64(store.settles) != want {
				t.Errorf("settled %d times, want %d", store.settles, want)
			}
		})
	}
}

// A goroutine that ends itself is no success either.
func TestSettleAfterGoexit(t *testing.T) {
	limiter := memory(t, "api", core.SlidingLog(core.PerHour(100)))
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: only(200)}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Goexit() })),
			request("GET", "/", "X-Client", "anna"))
	}()
	<-done
	if got := remaining(t, limiter, "anna"); got != 100 {
		t.Errorf("%d left", got)
	}
}

// Several rules, of which some settle, and those of cost 0 are not there.
func TestSettleSeveralRules(t *testing.T) {
	store := newFake()
	one := func(name string) *core.Limiter { return newLimiter(t, store, name, core.SlidingLog(core.PerHour(100))) }
	requests, input, output, free := one("requests"), one("input"), one("output"), one("free")
	cost := func(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }
	var uncovered []int64
	c := rules(
		nethttp.Rule{Limiter: requests, Key: header},
		nethttp.Rule{Limiter: free, Key: header, Cost: cost(0), Settle: nethttp.StatedCost},
		nethttp.Rule{Limiter: input, Key: header, Cost: cost(20), Settle: nethttp.StatedCost},
		nethttp.Rule{Limiter: output, Key: header, Cost: cost(50), Settle: nethttp.StatedCost},
	)
	c.OnSettled = func(_ *http.Request, n int64, err error) {
		if err != nil {
			t.Error(err)
		}
		uncovered = append(uncovered, n)
	}
	h := newGuard(t, c).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for name, want := range map[string]bool{"requests": false, "free": false, "input": true, "output": true} {
			if got := nethttp.SetCost(r.Context(), name, map[string]int64{"input": 15, "output": 120}[name]); got != want {
				t.Errorf("SetCost of %s: %v", name, got)
			}
		}
	}))
	if w := serve(h, request("GET", "/", "X-Client", "anna")); w.Code != 200 {
		t.Fatalf("status %d", w.Code)
	}
	for _, x := range []struct {
		l    *core.Limiter
		want int64
	}{{requests, 99}, {free, 100}, {input, 85}, {output, 0}} {
		if got := remaining(t, x.l, "anna"); got != x.want {
			t.Errorf("%s has %d left, want %d", x.l.Name(), got, x.want)
		}
	}
	if !slices.Equal(uncovered, []int64{20}) {
		t.Errorf("uncovered %v, want [20]", uncovered)
	}
}

// Nothing that a guard did not charge is given back.
func TestNothingToSettle(t *testing.T) {
	store := newFake()
	limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerHour(1)))
	all := func(*http.Request, nethttp.Outcome) int64 { return 0 }
	c := rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: all})
	c.Skip = func(r *http.Request) bool { return r.URL.Path == "/skip" }
	c.ObserveOnly = true
	c.OnSettled = func(_ *http.Request, _ int64, err error) {
		if err != nil {
			t.Error(err)
		}
	}
	if d, err := limiter.Allow(t.Context(), "anna"); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	passed := 0
	h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		passed++
		if charged := r.Header.Get("X-Client") == "ben"; nethttp.SetCost(r.Context(), "api", 0) != charged {
			t.Errorf("SetCost: %v", !charged)
		}
	}))
	serve(h, request("GET", "/skip", "X-Client", "anna"))
	serve(h, request("GET", "/", "X-Client", "anna")) // would be refused
	serve(h, request("GET", "/"))                     // no key
	if passed != 3 || store.settles != 0 {
		t.Errorf("%d passed, %d settled", passed, store.settles)
	}
	if nethttp.SetCost(t.Context(), "api", 1) {
		t.Error("SetCost without a guard: true")
	}

	// In shadow mode what was charged is settled.
	serve(h, request("GET", "/", "X-Client", "ben"))
	if passed != 4 || store.settles != 1 || remaining(t, limiter, "ben") != 1 {
		t.Errorf("%d passed, %d settled", passed, store.settles)
	}
}

// The client has gone, and the charge is corrected all the same.
func TestSettleAfterTheClientHasGone(t *testing.T) {
	store := newFake()
	limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerHour(10)))
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: only(401)}))
	ctx, cancel := context.WithCancel(t.Context())
	r := request("GET", "/", "X-Client", "anna").WithContext(ctx)
	serve(guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})), r)
	if store.settles != 1 || store.ctxErr != nil || !store.timed {
		t.Errorf("%d settled, with context error %v, deadline %v", store.settles, store.ctxErr, store.timed)
	}
	if got := remaining(t, limiter, "anna"); got != 10 {
		t.Errorf("%d left", got)
	}
}

func TestSettleErrors(t *testing.T) {
	store := newFake()
	store.settleErr = errDown
	limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerHour(10)))
	result := int64(0)
	var errs []error
	c := rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: func(*http.Request, nethttp.Outcome) int64 { return result }})
	c.OnSettled = func(r *http.Request, uncovered int64, err error) {
		if r.Header.Get("X-Client") != "anna" || uncovered != 0 {
			t.Errorf("%v, uncovered %d", r.Header, uncovered)
		}
		errs = append(errs, err)
	}
	h := newGuard(t, c).Handler(status(204))
	for _, result = range []int64{0, 1, -1} { // a correction, none, nonsense
		if w := serve(h, request("GET", "/", "X-Client", "anna")); w.Code != 204 {
			t.Errorf("status %d", w.Code)
		}
	}
	if len(errs) != 2 || !errors.Is(errs[0], errDown) || errs[1] == nil ||
		errs[1].Error() != `headgate: guard: Rules[0] (limiter "api"): Settle returned -1; it must be 0 or more: the charge stands` || store.settles != 1 {
		t.Errorf("errors %v, %d settled", errs, store.settles)
	}

	// OnSettled may be nil.
	c.OnSettled = nil
	result = 0
	serve(newGuard(t, c).Handler(status(204)), request("GET", "/", "X-Client", "anna"))
}

// Guards around each other settle each its own, and SetCost finds either.
func TestSettleOfNestedGuards(t *testing.T) {
	outer, inner := memory(t, "outer", core.SlidingLog(core.PerHour(10))), memory(t, "inner", core.SlidingLog(core.PerHour(10)))
	guard := func(l *core.Limiter) *nethttp.Guard {
		return newGuard(t, rules(nethttp.Rule{Limiter: l, Key: header, Settle: nethttp.StatedCost}))
	}
	h := guard(outer).Handler(guard(inner).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if !nethttp.SetCost(r.Context(), "outer", 3) || !nethttp.SetCost(r.Context(), "inner", 5) {
			t.Error("SetCost: false")
		}
	})))
	serve(h, request("GET", "/", "X-Client", "anna"))
	if o, i := remaining(t, outer, "anna"), remaining(t, inner, "anna"); o != 7 || i != 5 {
		t.Errorf("outer %d left, inner %d", o, i)
	}
}

// With plans, the rule keeps the name of its own limiter.
func TestSettleOfPlan(t *testing.T) {
	free := memory(t, "api", core.SlidingLog(core.PerHour(1)))
	paid, err := free.With(core.SlidingLog(core.PerHour(100)))
	if err != nil {
		t.Fatal(err)
	}
	guard := newGuard(t, rules(nethttp.Rule{
		Limiter: free, Key: header, Settle: nethttp.StatedCost,
		Plan: func(*http.Request, string) *core.Limiter { return paid },
	}))
	serve(guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		nethttp.SetCost(r.Context(), "api", 40)
	})), request("GET", "/", "X-Client", "anna"))
	if got := remaining(t, paid, "anna"); got != 60 {
		t.Errorf("%d left", got)
	}
}

// The request that Settle gets is the handler's, with the pattern that matched.
func TestSettleSeesTheRoute(t *testing.T) {
	var pattern string
	guard := newGuard(t, rules(nethttp.Rule{
		Limiter: memory(t, "api", core.SlidingLog(core.PerHour(10))), Key: header,
		Settle: func(r *http.Request, o nethttp.Outcome) int64 {
			pattern = r.Pattern
			return o.Cost
		},
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", status(204))
	serve(guard.Handler(mux), request("GET", "/items/7", "X-Client", "anna"))
	if pattern != "GET /items/{id}" {
		t.Errorf("pattern %q", pattern)
	}
}

// SetCost from many goroutines, some of which outlive the handler.
func TestSetCostConcurrently(t *testing.T) {
	limiter := memory(t, "api", core.SlidingLog(core.PerHour(100)))
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header, Settle: nethttp.StatedCost}))
	var late *http.Request
	var wg sync.WaitGroup
	serve(guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		late = r
		ctx := r.Context()
		for range 50 {
			wg.Go(func() { nethttp.SetCost(ctx, "api", 7) })
		}
		nethttp.SetCost(ctx, "api", 7)
	})), request("GET", "/", "X-Client", "anna"))
	wg.Wait()
	if nethttp.SetCost(late.Context(), "api", 1) {
		t.Error("SetCost after the handler: true")
	}
	if got := remaining(t, limiter, "anna"); got != 93 {
		t.Errorf("%d left", got)
	}
}

// What an adapter does, once and twice.
func TestTrack(t *testing.T) {
	store := newFake()
	limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerHour(100)))
	settled := 0
	guard := newGuard(t, rules(nethttp.Rule{
		Limiter: limiter, Key: header, Cost: func(*http.Request) int64 { return 10 },
		Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
			settled++
			return o.Written
		},
	}))
	for _, test := range []struct {
		name    string
		outcome nethttp.Outcome
		stated  int64
		want    int64
	}{
		{"written", nethttp.Outcome{Status: 200, Written: 4}, -1, 4},
		{"hijacked", nethttp.Outcome{Status: 101, Hijacked: true}, -1, 10},
		{"hijacked, stated", nethttp.Outcome{Hijacked: true}, 6, 6},
	} {
		if err := limiter.Reset(t.Context(), "anna"); err != nil {
			t.Fatal(err)
		}
		settled, store.settles = 0, 0
		r := request("GET", "/", "X-Client", "anna")
		v := guard.Check(r)
		begun, watch := v.Begin(r)
		if !watch || !v.Ends() || begun == r {
			t.Fatal("nothing to settle")
		}
		if test.stated >= 0 {
			nethttp.SetCost(begun.Context(), "api", test.stated)
		}
		v.End(test.outcome)
		v.End(test.outcome)
		if got := 100 - remaining(t, limiter, "anna"); got != test.want || store.settles > 1 || settled > 1 {
			t.Errorf("%s: it cost %d, want %d; settled %d times", test.name, got, test.want, store.settles)
		}
		if (settled == 0) != test.outcome.Hijacked {
			t.Errorf("%s: Settle was called %d times", test.name, settled)
		}
	}
}

// Guards without Settle hand on writer and request as they are.
func TestUnwatchedIsUntouched(t *testing.T) {
	store := memstore.New(memstore.Config{})
	guard := newGuard(t, rules(nethttp.Rule{Limiter: newLimiter(t, store, "api", core.SlidingLog(core.PerHour(10))), Key: header}))
	r, w := request("GET", "/", "X-Client", "anna"), &sink{header: make(http.Header)}
	guard.Handler(http.HandlerFunc(func(gotW http.ResponseWriter, gotR *http.Request) {
		if gotW != http.ResponseWriter(w) || gotR != r {
			t.Error("the writer or the request was replaced")
		}
	})).ServeHTTP(w, r)
}
