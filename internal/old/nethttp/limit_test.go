package nethttp_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/nethttp"
)

// A page is a document that tests rewrite.
type page struct{ text atomic.Value }

func (p *page) Load(context.Context) ([]byte, error) { return []byte(p.text.Load().(string)), nil }

func newPage(text string) *page {
	p := &page{}
	p.text.Store(text)
	return p
}

// openBook opens a book that is read again by Reload only, in that store.
func openBook(t testing.TB, store core.Store, p *page) *limits.Book {
	t.Helper()
	b, err := limits.Open(t.Context(), store, nil, p, limits.Config{Every: 1000 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func limitOf(t testing.TB, b *limits.Book, name string) *limits.Limit {
	t.Helper()
	l, err := b.Limit(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const pageText = `{"limits": {
	"api": {"default": "free", "plans": {"free": "sliding-log 1/hour", "gold": "sliding-log 2/hour"},
		"overrides": [{"key": "anna", "policies": "sliding-log 5/hour"}, {"key": "ben", "plan": "blocked"}]},
	"all": {"plans": {"all": "fixed-window 100/day"}}}}`

func planOf(r *http.Request) string { return r.Header.Get("X-Plan") }

// A rule takes the limiter of the document, by the request's plan and its key, and from the next
// request on that of the next document.
func TestLimit(t *testing.T) {
	p := newPage(pageText)
	b := openBook(t, memstore.New(memstore.Config{}), p)
	guard := newGuard(t, rules(
		nethttp.Rule{Limit: limitOf(t, b, "api"), Key: header, PlanName: planOf},
		nethttp.Rule{Limit: limitOf(t, b, "all"), Key: header}))
	get := func(client, plan string) string {
		w := serve(guard.Handler(status(200)), request("GET", "/", "X-Client", client, "X-Plan", plan))
		return fmt.Sprint(w.Code, " ", w.Header().Get("RateLimit-Policy"))
	}
	for _, c := range []struct{ client, plan, want string }{
		{"carl", "", `200 "api";q=1;w=3600, "all";q=100;w=86400`},
		{"carl", "gold", `200 "api";q=2;w=3600, "all";q=100;w=86400`},
		{"carl", "silver", `429 "api";q=1;w=3600, "all";q=100;w=86400`},
		{"anna", "gold", `200 "api";q=5;w=3600, "all";q=100;w=86400`},
		{"ben", "gold", `429 "api";q=0, "all";q=100;w=86400`},
		{"dora", "unlimited", `200 "all";q=100;w=86400`},
	} {
		if got := get(c.client, c.plan); got != c.want {
			t.Errorf("%s, plan %q: %s, not %s", c.client, c.plan, got, c.want)
		}
	}
	p.text.Store(strings.Replace(pageText, "1/hour", "3/hour", 1))
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := get("carl", ""), `200 "api";q=3;w=3600, "all";q=100;w=86400`; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if got, want := get("carl", ""), `429 "api";q=3;w=3600, "all";q=100;w=86400`; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// The rules of a guard decide by one document, however often it changes.
func TestLimitsOfOneDocument(t *testing.T) {
	document := func(n int) string {
		return fmt.Sprintf(`{"limits": {"a": {"plans": {"p": "fixed-window %d/day"}}, "b": {"plans": {"p": "fixed-window %d/day"}}}}`, n, 2*n)
	}
	const least = 1_000_000
	p := newPage(document(least))
	b := openBook(t, memstore.New(memstore.Config{}), p)
	guard := newGuard(t, rules(nethttp.Rule{Limit: limitOf(t, b, "a"), Key: header}, nethttp.Rule{Limit: limitOf(t, b, "b"), Key: header}))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := guard.Check(request("GET", "/", "X-Client", "c"))
				if a, b := v.Decision.Answer(0).Limit, v.Decision.Answer(1).Limit; v.Status() != 0 || b != 2*a {
					t.Errorf("status %d, limits %d and %d", v.Status(), a, b)
					return
				}
			}
		})
	}
	for i := range 1000 {
		p.text.Store(document(least + i + 1))
		if err := b.Reload(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
}

// A rule with Limit is settled, and named in errors and events, like others.
func TestLimitIsSettled(t *testing.T) {
	b := openBook(t, memstore.New(memstore.Config{}), newPage(pageText))
	guard := newGuard(t, rules(nethttp.Rule{
		Limit: limitOf(t, b, "api"), Key: header,
		Settle: nethttp.StatedCost,
	}))
	h := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !nethttp.SetCost(r.Context(), "api", 0) || nethttp.SetCost(r.Context(), "all", 0) {
			t.Error("SetCost does not know the limit")
		}
	}))
	for range 3 { // each is given back
		if w := serve(h, request("GET", "/", "X-Client", "carl")); w.Code != 200 {
			t.Error(w.Code)
		}
	}
	if v := guard.Check(request("GET", "/")); v.Limiter() != "api" || v.Status() != 400 {
		t.Error(v.Limiter(), v.Err)
	}
}

func TestFaultsOfLimit(t *testing.T) {
	store := memstore.New(memstore.Config{})
	b := openBook(t, store, newPage(pageText))
	other := openBook(t, store, newPage(`{"limits": {"third": {"plans": {"a": {"api": "sliding-log 1/hour"}}}}}`))
	api := limitOf(t, b, "api")
	for want, c := range map[string]nethttp.Config{
		"Rules[0].Limit: Limiter is set too":                               rules(nethttp.Rule{Limit: api, Limiter: newLimiter(t, store, "api", core.Blocked()), Key: header}),
		"Rules[0].Plan: the plans are those":                               rules(nethttp.Rule{Limit: api, Plan: func(*http.Request, string) *core.Limiter { return nil }, Key: header}),
		"Rules[0].PlanName: it is for Limit":                               rules(nethttp.Rule{Limiter: newLimiter(t, store, "api", core.Blocked()), PlanName: planOf, Key: header}),
		"Rules[0].Limiter: it is nil":                                      rules(nethttp.Rule{Key: header}),
		"Rules[1].Limit: with Rules[0]: both":                              rules(nethttp.Rule{Limit: api, Key: header}, nethttp.Rule{Limit: api, Key: header}),
		"Rules[1].Limit: with Rules[0]: the limits are of different books": rules(nethttp.Rule{Limit: api, Key: header}, nethttp.Rule{Limit: limitOf(t, other, "third"), Key: header}),
		`both limiters have a policy named "api"`:                          rules(nethttp.Rule{Limit: api, Key: header}, nethttp.Rule{Limit: limitOf(t, other, "third"), Key: header}),
		`"api" and "x" have different stores`:                              rules(nethttp.Rule{Limit: api, Key: header}, nethttp.Rule{Limiter: memory(t, "x", core.Blocked()), Key: header}),
	} {
		if _, err := nethttp.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
}
