// Package scenes has what guards must do behind any framework: one table for all adapters.
package scenes

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// A Guard is one for requests or for sockets.
type Guard interface {
	adapter.Guard

	Handler(next http.Handler) http.Handler
}

// A Framework is what an adapter is for.
type Framework struct {
	// Mount returns what serves a handler at all paths behind a guard. A panic of the handler
	// gets to whoever calls it.
	Mount func(g Guard, h http.Handler) http.Handler

	// Key returns a key that gets the request from the framework's context. Nil: there is none.
	Key func(key keyfuncs.Func) keyfuncs.Func

	// RequestsOnly is for adapters that do not serve sockets.
	RequestsOnly bool

	// Deaf is for frameworks that do not tell a handler that its client has hung up.
	Deaf bool
}

// Keys are a key, and what the framework hands over if it has contexts of its own.
func (f *Framework) Keys(key keyfuncs.Func) []keyfuncs.Func {
	if f.Key == nil {
		return []keyfuncs.Func{key}
	}
	return []keyfuncs.Func{key, f.Key(key)}
}

// guards are the kinds of guards, by the same rules.
var guards = map[string]func(rules []nethttp.Rule, wait time.Duration) (Guard, error){
	"request": func(rules []nethttp.Rule, wait time.Duration) (Guard, error) {
		return nethttp.New(nethttp.Config{Rules: rules, Wait: wait})
	},
	"socket": func(rules []nethttp.Rule, wait time.Duration) (Guard, error) {
		return websocketmw.New(websocketmw.Config{Rules: rules, Wait: wait})
	},
}

// client is the key of the client that a request names.
var client = keyfuncs.Header("X-Client")

func minute(n int64) core.Policy { return core.SlidingLog(core.PerMinute(n)) }

// A gateway is a guard in front of a handler, under a framework.
type gateway struct {
	t       *testing.T
	store   *memstore.Store
	rate    *core.Limiter // 2 in a minute
	slots   *core.Slots   // 1
	handler http.Handler

	mu   sync.Mutex
	said []string
}

func (g *gateway) say(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = append(g.said, fmt.Sprintf(format, args...))
}

// handle does what the path says.
func (g *gateway) handle(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/panic":
		panic("on purpose")
	case "/nest":
		g.ask(r.Context(), "/")
	case "/hold":
		time.Sleep(30 * time.Second)
	case "/waits": // until the one before it is done
		time.Sleep(time.Second / 2)
	}
	fmt.Fprint(w, "done")
}

// pause is a Retry-After for slots, which is random.
var pause = regexp.MustCompile(`^([1-9]|10)$`)

// Upgrade returns a WebSocket's handshake.
func Upgrade(path string) *http.Request {
	r := httptest.NewRequest("GET", path, nil)
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(name, value)
	}
	return r
}

// ask sends anna's request, an upgrade, and notes the answer.
func (g *gateway) ask(ctx context.Context, path string, fields ...string) {
	r := Upgrade(path).WithContext(ctx)
	r.Header.Set("X-Client", "anna")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil {
			g.say("%s panic", path)
		}
	}()
	g.handler.ServeHTTP(w, r)
	after := w.Header().Get("Retry-After")
	if pause.MatchString(after) {
		after = "soon"
	}
	body := w.Body.String()
	if _, named, ok := strings.Cut(body, `"violated-policies":`); ok {
		body = strings.TrimSuffix(named, "}")
	} else if w.Code != 200 {
		body = ""
	}
	g.say("%s", strings.Join(strings.Fields(fmt.Sprint(path, " ", w.Code, " ", w.Header().Get("RateLimit"), " ", after, " ", body)), " "))
}

func (g *gateway) document(text string) *limits.Book {
	book, err := limits.Open(g.t.Context(), g.store, g.store, limits.SourceFunc(func(context.Context) ([]byte, error) {
		return []byte(text), nil
	}), limits.Config{Every: 1000 * time.Hour})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(book.Close)
	return book
}

// used notes what the rate has charged and the slots hold.
func (g *gateway) used() {
	d := core.Must(g.rate.Peek(g.t.Context(), "anna"))
	g.say("used %d, held %d", d.Limit-d.Remaining, core.Must(g.slots.Count(g.t.Context(), "anna")))
}

// cases are what a guard is asked, and what is seen of it.
var cases = []struct {
	name    string
	rules   func(g *gateway, key keyfuncs.Func) []nethttp.Rule
	wait    time.Duration
	hangsUp bool
	run     func(g *gateway)
	want    []string
}{
	{
		name:  "rates",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule { return []nethttp.Rule{{Limiter: g.rate, Key: key}} },
		run: func(g *gateway) {
			for range 3 {
				g.ask(g.t.Context(), "/")
			}
		},
		want: []string{`/ 200 "rate";r=1;t=60 done`, `/ 200 "rate";r=0;t=60 done`, `/ 429 "rate";r=0;t=60 60 ["rate"]`},
	},
	{
		name:  "slots",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule { return []nethttp.Rule{{Slots: g.slots, Key: key}} },
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest")
			g.ask(g.t.Context(), "/")
		},
		want: []string{`/ 429 "slots";r=0 soon ["slots"]`, `/nest 200 "slots";r=0 done`, `/ 200 "slots";r=0 done`},
	},
	{
		name: "both",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{{Limiter: g.rate, Key: key}, {Slots: g.slots, Key: key}}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest")
			g.used()
			g.ask(g.t.Context(), "/")
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want: []string{
			`/ 429 "rate";r=0;t=60, "slots";r=0 soon ["slots"]`, `/nest 200 "rate";r=1;t=60, "slots";r=0 done`, "used 1, held 0",
			`/ 200 "rate";r=0;t=60, "slots";r=0 done`, `/ 429 "rate";r=0;t=60 60 ["rate"]`, "used 2, held 0",
		},
	},
	{
		name: "attempts, and the service",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{{Limiter: g.rate, Key: key, Attempts: true}, {Slots: g.slots, Key: key, Service: true}}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest")
			g.used()
		},
		want: []string{`/ 503 "rate";r=0;t=60 soon`, `/nest 200 "rate";r=1;t=60 done`, "used 2, held 0"},
	},
	{
		name: "plans of code",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			gold, more := core.Must(g.rate.With(minute(9))), core.Must(g.slots.With(5))
			isGold := func(r *http.Request) bool { return r.Header.Get("X-Plan") == "gold" }
			return []nethttp.Rule{
				{Limiter: g.rate, Key: key, Plan: func(r *http.Request, _ string) *core.Limiter {
					if isGold(r) {
						return gold
					}
					return nil
				}},
				{Slots: g.slots, Key: key, PlanSlots: func(r *http.Request, _ string) *core.Slots {
					if isGold(r) {
						return more
					}
					return nil
				}},
			}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.ask(g.t.Context(), "/", "X-Plan", "gold")
		},
		want: []string{`/ 200 "rate";r=1;t=60, "slots";r=0 done`, `/ 200 "rate";r=7;t=60, "slots";r=4 done`},
	},
	{
		name: "plans of a document",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			book := g.document(`{"limits": {"rate": {"default": "free", "plans": {"free": "sliding-log 2/minute", "gold": "sliding-log 9/minute"}}},
				"slots": {"slots": {"plans": {"free": 1, "gold": 5}}}}`)
			plan := func(r *http.Request) string { return r.Header.Get("X-Plan") }
			return []nethttp.Rule{
				{Limit: core.Must(book.Limit("rate")), Key: key, PlanName: plan},
				{LimitSlots: core.Must(book.Slots("slots")), Key: key, PlanName: plan},
			}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.ask(g.t.Context(), "/", "X-Plan", "gold")
		},
		want: []string{`/ 200 "rate";r=1;t=60, "slots";r=0 done`, `/ 200 "rate";r=7;t=60, "slots";r=4 done`},
	},
	{
		name: "waiting",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{{Limiter: core.Must(g.rate.With(minute(9))), Key: key}, {Slots: g.slots, Key: key, Queue: 1}}
		},
		wait: time.Minute,
		run: func(g *gateway) {
			go g.ask(g.t.Context(), "/hold")
			synctest.Wait()
			go g.ask(g.t.Context(), "/waits")
			synctest.Wait()
			g.ask(g.t.Context(), "/") // there is no place in the line
			time.Sleep(31 * time.Second)
			synctest.Wait()
			g.used()
		},
		want: []string{
			`/ 429 "rate";r=6;t=60, "slots";r=0 soon ["slots"]`,
			`/hold 200 "rate";r=8;t=60, "slots";r=0 done`, `/waits 200 "rate";r=7;t=60, "slots";r=0 done`, "used 2, held 0",
		},
	},
	{
		name:    "waiting, and hanging up",
		hangsUp: true,
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{{Limiter: core.Must(g.rate.With(minute(9))), Key: key}, {Slots: g.slots, Key: key, Queue: 2}}
		},
		wait: time.Minute,
		run: func(g *gateway) {
			ctx, hangUp := context.WithCancel(g.t.Context())
			go g.ask(g.t.Context(), "/hold")
			synctest.Wait()
			go g.ask(ctx, "/hangs-up")
			synctest.Wait()
			go g.ask(g.t.Context(), "/waits")
			synctest.Wait()
			g.ask(g.t.Context(), "/") // there is no place in the line
			hangUp()
			synctest.Wait()
			g.used()
			time.Sleep(31 * time.Second)
			synctest.Wait()
			g.used()
		},
		want: []string{
			`/ 429 "rate";r=5;t=60, "slots";r=0 soon ["slots"]`, `/hangs-up 503 "rate";r=7;t=60 soon`, "used 2, held 1",
			`/hold 200 "rate";r=8;t=60, "slots";r=0 done`, `/waits 200 "rate";r=6;t=60, "slots";r=0 done`, "used 2, held 0",
		},
	},
	{
		name: "panics",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{
				{Limiter: g.rate, Key: key, Settle: func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }},
				{Slots: g.slots, Key: key},
			}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/panic")
			g.used()
			g.ask(g.t.Context(), "/")
		},
		want: []string{"/panic panic", "used 1, held 0", `/ 200 "rate";r=0;t=60, "slots";r=0 done`},
	},
	{
		name: "shutdown",
		rules: func(g *gateway, key keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{{Limiter: g.rate, Key: key}, {Slots: g.slots, Key: key}}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			if err := g.slots.Close(g.t.Context()); err != nil {
				g.t.Error(err)
			}
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want: []string{`/ 200 "rate";r=1;t=60, "slots";r=0 done`, `/ 503 "rate";r=0;t=60 soon`, "used 1, held 0"},
	},
	{
		name: "no key",
		rules: func(g *gateway, _ keyfuncs.Func) []nethttp.Rule {
			return []nethttp.Rule{{Limiter: g.rate, Key: client}, {Slots: g.slots, Key: keyfuncs.Header("X-Nobody")}}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want: []string{`/ 400`, "used 0, held 0"},
	},
}

// Test tries both guards, with keys of the request and of the framework.
func Test(t *testing.T, f Framework) {
	for kind, newGuard := range guards {
		if kind == "socket" && f.RequestsOnly {
			continue
		}
		for i, key := range f.Keys(client) {
			for _, c := range cases {
				if c.hangsUp && f.Deaf {
					continue
				}
				t.Run(fmt.Sprint(kind, "/", i > 0, "/", c.name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						g := &gateway{t: t, store: memstore.New(memstore.Config{})}
						g.rate = core.Must(core.New(g.store, "rate", minute(2)))
						g.slots = core.Must(core.NewSlots(g.store, "slots", 1))
						guard, err := newGuard(c.rules(g, key), c.wait)
						if err != nil {
							t.Fatal(err)
						}
						g.handler = f.Mount(guard, http.HandlerFunc(g.handle))
						if c.run(g); strings.Join(g.said, "\n") != strings.Join(c.want, "\n") {
							t.Errorf("%s\nwant\n%s", strings.Join(g.said, "\n"), strings.Join(c.want, "\n"))
						}
					})
				})
			}
		}
	}
}

// Copy writes an answer.
func Copy(w http.ResponseWriter, answer *http.Response) {
	defer answer.Body.Close()
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}
