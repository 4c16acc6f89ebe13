// Package scenes has what guards must do behind any framework: one table for all adapters, and for
// guards of remote calls.
package scenes

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// A Guard is one for requests or for sockets.
type Guard interface {
	Handler(next http.Handler) http.Handler
}

// A Framework is what an adapter is for.
type Framework struct {
	// Mount returns what serves a handler at all paths behind a guard. A panic of the handler
	// gets to whoever calls it.
	Mount func(g Guard, h http.Handler) http.Handler

	// Key returns a key that gets the request from the framework's context. Nil: there is none.
	Key func(key keyfuncs.Func) keyfuncs.Func
}

// Keys are a key, and what the framework hands over if it has contexts of its own.
func (f *Framework) Keys(key keyfuncs.Func) []keyfuncs.Func {
	if f.Key == nil {
		return []keyfuncs.Func{key}
	}
	return []keyfuncs.Func{key, f.Key(key)}
}

// client is the key of the client that a request names.
var client = keyfuncs.Header("X-Client")

func minute(n int64) core.Policy { return core.SlidingLog(n, time.Minute) }

// A gateway is a guard in front of a handler, under a framework.
type gateway struct {
	t     *testing.T
	store *core.MemoryStore
	rate  *core.Limiter // 2 in a minute, 9 with the plan gold
	slots *core.Slots   // 1, or 5
	serve func(ctx context.Context, path string, header http.Header) Answer

	mu   sync.Mutex
	said []string
}

func (g *gateway) say(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = append(g.said, fmt.Sprintf(format, args...))
}

// handle does what the path says.
func (g *gateway) handle(ctx context.Context, path string) {
	switch path {
	case "/panic":
		panic("on purpose")
	case "/nest":
		g.ask(ctx, "/")
	case "/hold":
		time.Sleep(30 * time.Second)
	case "/waits": // until the one before it is done
		time.Sleep(time.Second / 2)
	}
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

// An Answer is what a client gets.
type Answer struct {
	Status     string // of HTTP, or the code of a call
	RateLimit  string // the field
	RetryAfter string // the field
	Said       string // what the handler or the refusal says
}

// ask sends anna's request, and notes the answer.
func (g *gateway) ask(ctx context.Context, path string, fields ...string) {
	header := http.Header{"X-Client": {"anna"}}
	for i := 0; i < len(fields); i += 2 {
		header.Set(fields[i], fields[i+1])
	}
	defer func() {
		if p := recover(); p != nil {
			g.say("%s panic", path)
		}
	}()
	a := g.serve(ctx, path, header)
	if pause.MatchString(a.RetryAfter) {
		a.RetryAfter = "soon"
	}
	g.say("%s", strings.Join(strings.Fields(fmt.Sprint(path, " ", a.Status, " ", a.RateLimit, " ", a.RetryAfter, " ", a.Said)), " "))
}

// overHTTP returns what serves upgrades by a handler.
func overHTTP(h http.Handler) func(ctx context.Context, path string, header http.Header) Answer {
	return func(ctx context.Context, path string, header http.Header) Answer {
		r := Upgrade(path).WithContext(ctx)
		maps.Copy(r.Header, header)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		body := w.Body.String()
		if _, named, ok := strings.Cut(strings.TrimSpace(body), `"violated-policies":`); ok {
			body = strings.TrimSuffix(named, "}")
		} else if w.Code != http.StatusOK {
			body = ""
		}
		return Answer{strconv.Itoa(w.Code), w.Header().Get("RateLimit"), w.Header().Get("Retry-After"), body}
	}
}

func (g *gateway) document(text string) *limits.Book {
	source := func(context.Context) ([]byte, error) { return []byte(text), nil }
	ctx, cancel := context.WithCancel(g.t.Context())
	book, err := limits.Open(ctx, g.store, source, limits.Config{})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { book.Close(); cancel() })
	return book
}

// must returns a value without an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// used notes what the rate has charged and the slots hold.
func (g *gateway) used() {
	d := must(g.rate.Peek(g.t.Context(), "anna"))
	g.say("used %d, held %d", d.Limit-d.Remaining, must(g.slots.Count(g.t.Context(), "anna")))
}

// A scene is what a guard is asked, and what is seen of it.
type scene struct {
	name  string
	rules func(g *gateway, key keyfuncs.Func) nethttp.Config
	run   func(g *gateway)
	want  []string

	// calls are the refusals among want as remote calls get them.
	calls []refusal
}

// A refusal is the status of a remote call that is not admitted.
type refusal struct {
	code rpc.Code
	text string
}

// The refusals that several scenes have.
var (
	rateExceeded  = refusal{rpc.ResourceExhausted, `quota exceeded: "rate"`}
	slotsExceeded = refusal{rpc.ResourceExhausted, `quota exceeded: "slots"`}
	usedExceeded  = refusal{rpc.ResourceExhausted, `quota exceeded: "used"`}
	serviceBusy   = refusal{rpc.ResourceExhausted, "the service is busy"}
)

func both(g *gateway, key keyfuncs.Func) nethttp.Config {
	return nethttp.Config{
		Rates:       []nethttp.Rate{{Limiter: g.rate, Key: key, Plan: keyfuncs.Header("X-Plan")}},
		Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: key, Plan: keyfuncs.Header("X-Plan")}},
	}
}

var gold = []string{"X-Plan", "gold"}

// cases are all scenes. Each applies to calls too: the path is that of the procedure, and the header is the metadata.
var cases = []scene{
	{
		name: "rates",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			return nethttp.Config{Rates: []nethttp.Rate{{Limiter: g.rate, Key: key}}}
		},
		run: func(g *gateway) {
			for range 3 {
				g.ask(g.t.Context(), "/")
			}
		},
		want:  []string{`/ 200 "rate";r=1;t=60 done`, `/ 200 "rate";r=0;t=60 done`, `/ 429 "rate";r=0;t=60 60 ["rate"]`},
		calls: []refusal{rateExceeded},
	},
	{
		name: "slots",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			return nethttp.Config{Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: key}}}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest")
			g.ask(g.t.Context(), "/")
		},
		want:  []string{`/ 429 "slots";r=0 soon ["slots"]`, `/nest 200 "slots";r=0 done`, `/ 200 "slots";r=0 done`},
		calls: []refusal{slotsExceeded},
	},
	{
		name:  "both: a refusal by slots does not show a rate whose unit was given back",
		rules: both,
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest")
			g.used()
			g.ask(g.t.Context(), "/")
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want: []string{
			`/ 429 "slots";r=0 soon ["slots"]`, `/nest 200 "rate";r=1;t=60, "slots";r=0 done`, "used 1, held 0",
			`/ 200 "rate";r=0;t=60, "slots";r=0 done`, `/ 429 "rate";r=0;t=60 60 ["rate"]`, "used 2, held 0",
		},
		calls: []refusal{slotsExceeded, rateExceeded},
	},
	{
		name: "slots of the service",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			c := both(g, key)
			c.Concurrency[0].Service = true
			return c
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest")
			g.used()
		},
		want:  []string{`/ 503 soon`, `/nest 200 "rate";r=1;t=60 done`, "used 1, held 0"},
		calls: []refusal{serviceBusy},
	},
	{
		name: "a rate of the service",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			all := core.NewLimiter(g.store, "all", minute(2))
			return nethttp.Config{Rates: []nethttp.Rate{{Limiter: g.rate, Key: key}, {Limiter: all, Key: keyfuncs.Everyone(), Service: true}}}
		},
		run: func(g *gateway) {
			for _, who := range []string{"anna", "anna", "anna", "ben"} {
				g.ask(g.t.Context(), "/", "X-Client", who)
			}
		},
		want: []string{
			`/ 200 "rate";r=1;t=60 done`, `/ 200 "rate";r=0;t=60 done`, `/ 429 "rate";r=0;t=60 60 ["rate"]`, `/ 503 "rate";r=2 60`,
		},
		calls: []refusal{rateExceeded, serviceBusy},
	},
	{
		name:  "plans",
		rules: both,
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.ask(g.t.Context(), "/", gold...)
		},
		want: []string{`/ 200 "rate";r=1;t=60, "slots";r=0 done`, `/ 200 "rate";r=7;t=60, "slots";r=4 done`},
	},
	{
		name: "waiting",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			return nethttp.Config{
				Rates:       []nethttp.Rate{{Limiter: g.rate.Plan("gold"), Key: key}},
				Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: key, Queue: 1, MaxWait: time.Minute}},
			}
		},
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
			`/ 429 "slots";r=0 soon ["slots"]`, `/hold 200 "rate";r=8;t=60, "slots";r=0 done`,
			`/waits 200 "rate";r=7;t=60, "slots";r=0 done`, "used 2, held 0",
		},
		calls: []refusal{slotsExceeded},
	},
	{
		name: "waiting in vain, and holding the slots of another rule meanwhile",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			return nethttp.Config{Concurrency: []nethttp.Concurrency{
				{Slots: core.NewSlots(g.store, "all", 1), Key: keyfuncs.Everyone(), Queue: 5, MaxWait: 10 * time.Second},
				{Slots: g.slots.Plan("gold"), Key: key},
			}}
		},
		run: func(g *gateway) {
			go g.ask(g.t.Context(), "/hold")
			synctest.Wait()
			go g.ask(g.t.Context(), "/")
			synctest.Wait()
			g.used()
			time.Sleep(11 * time.Second)
			g.used()
			time.Sleep(20 * time.Second)
			g.used()
		},
		want: []string{
			"used 0, held 2", `/ 429 "all";r=0 soon ["all"]`, "used 0, held 1", `/hold 200 "slots";r=4, "all";r=0 done`, "used 0, held 0",
		},
		calls: []refusal{{rpc.ResourceExhausted, `quota exceeded: "all"`}},
	},
	{
		name: "waiting, and hanging up",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			return nethttp.Config{
				Rates:       []nethttp.Rate{{Limiter: g.rate.Plan("gold"), Key: key}},
				Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: key, Queue: 2, MaxWait: time.Minute}},
			}
		},
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
			`/ 429 "slots";r=0 soon ["slots"]`, `/hangs-up 503 soon`, "used 2, held 1",
			`/hold 200 "rate";r=8;t=60, "slots";r=0 done`, `/waits 200 "rate";r=6;t=60, "slots";r=0 done`, "used 2, held 0",
		},
		calls: []refusal{slotsExceeded, {rpc.Canceled, "the call was canceled"}},
	},
	{
		name: "panics",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			c := both(g, key)
			c.Rates[0].Settle = func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }
			return c
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/panic")
			g.used()
			g.ask(g.t.Context(), "/")
		},
		want: []string{"/panic panic", "used 1, held 0", `/ 200 "rate";r=0, "slots";r=0 done`},
	},
	{
		name: "an observer that panics releases the slots",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			c := both(g, key)
			c.Observe = func(*http.Request, *nethttp.Verdict) { panic("on purpose") }
			return c
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want: []string{"/ panic", "used 1, held 0"},
	},
	{
		name:  "shutdown",
		rules: both,
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			if err := g.slots.Close(g.t.Context()); err != nil {
				g.t.Error(err)
			}
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want:  []string{`/ 200 "rate";r=1;t=60, "slots";r=0 done`, `/ 503 soon`, "used 1, held 0"},
		calls: []refusal{{rpc.Unavailable, "the limits are not available"}},
	},
	{
		name: "no key",
		rules: func(g *gateway, _ keyfuncs.Func) nethttp.Config {
			return nethttp.Config{Rates: []nethttp.Rate{{Limiter: g.rate, Key: client}}, Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: keyfuncs.Header("X-Nobody")}}}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.used()
		},
		want:  []string{`/ 400`, "used 0, held 0"},
		calls: []refusal{{rpc.InvalidArgument, "the call does not say who makes it"}},
	},
	{
		name: "plans of a document",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			book := g.document(`{"limits": {"rate": {"default": "free", "plans": {"free": "sliding-log 2/minute", "gold": "sliding-log 9/minute"}}},
				"slots": {"slots": {"default": "free", "plans": {"free": 1, "gold": 5}}}}`)
			plan := keyfuncs.Header("X-Plan")
			return nethttp.Config{
				Rates:       []nethttp.Rate{{Limiter: must(book.Limiter("rate")), Key: key, Plan: plan}},
				Concurrency: []nethttp.Concurrency{{Slots: must(book.Slots("slots")), Key: key, Plan: plan}},
			}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/")
			g.ask(g.t.Context(), "/", gold...)
		},
		want: []string{`/ 200 "rate";r=1;t=60, "slots";r=0 done`, `/ 200 "rate";r=7;t=60, "slots";r=4 done`},
	},
	{
		name: "settling afterwards",
		rules: func(g *gateway, key keyfuncs.Func) nethttp.Config {
			used := core.NewLimiter(g.store, "used", core.FixedWindow(10, time.Minute))
			return nethttp.Config{
				Rates: []nethttp.Rate{
					{Limiter: g.rate, Key: key}, {Limiter: used, Key: key, Settle: func(*http.Request, nethttp.Outcome) int64 { return 50 }},
				},
				Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: key}},
			}
		},
		run: func(g *gateway) {
			g.ask(g.t.Context(), "/nest") // what slots refuse is not settled
			g.ask(g.t.Context(), "/")
			g.used()
			g.ask(g.t.Context(), "/panic", "X-Client", "ben")
			g.ask(g.t.Context(), "/", "X-Client", "ben")
		},
		want: []string{
			`/ 429 "slots";r=0 soon ["slots"]`, `/nest 200 "rate";r=1;t=60, "used";r=9;t=60, "slots";r=0 done`,
			`/ 429 "rate";r=1;t=60, "used";r=0;t=60 60 ["used"]`, "used 1, held 0",
			"/panic panic", `/ 429 "rate";r=1;t=60, "used";r=0;t=60 60 ["used"]`,
		},
		calls: []refusal{slotsExceeded, usedExceeded, usedExceeded},
	},
}

// play compares what is seen of a scene in a bubble. The function mounts what serves its rules.
func (c *scene) play(t *testing.T, key keyfuncs.Func, want []string, mount func(g *gateway, c nethttp.Config) error) {
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{t: t, store: new(core.MemoryStore)}
		g.rate = core.NewLimiter(g.store, "rate", minute(2)).WithPlan("gold", minute(9))
		g.slots = core.NewSlots(g.store, "slots", 1).WithPlan("gold", 5)
		if err := mount(g, c.rules(g, key)); err != nil {
			t.Fatal(err)
		}
		if c.run(g); strings.Join(g.said, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s\nwant\n%s", strings.Join(g.said, "\n"), strings.Join(want, "\n"))
		}
	})
}

// mount mounts a guard in front of the handler.
func (f *Framework) mount(g *gateway, guard Guard) {
	g.serve = overHTTP(f.Mount(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.handle(r.Context(), r.URL.Path)
		fmt.Fprint(w, "done")
	})))
}

// Test tries guards of requests with keys of the request and of the framework, and one of sockets.
func Test(t *testing.T, f Framework) {
	for i, key := range f.Keys(client) {
		for _, c := range cases {
			t.Run(fmt.Sprint("request/", i > 0, "/", c.name), func(t *testing.T) {
				c.play(t, key, c.want, func(g *gateway, c nethttp.Config) error {
					guard, err := nethttp.New(c)
					if err == nil {
						f.mount(g, guard)
					}
					return err
				})
			})
			if c.name == "slots" {
				t.Run(fmt.Sprint("socket/", i > 0, "/", c.name), func(t *testing.T) {
					c.play(t, key, []string{`/ 429 "slots";r=0 soon ["slots"]`, `/nest 200 done`, `/ 200 done`}, func(g *gateway, _ nethttp.Config) error {
						guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: g.slots, Key: key}}})
						if err == nil {
							f.mount(g, guard)
						}
						return err
					})
				})
			}
		}
	}
}

// A Call makes a remote call with metadata, by canonical names. A panic of the handler gets to the
// caller.
type Call func(ctx context.Context, procedure string, header http.Header) Status

// A Status is how a remote call ends, and its metadata.
type Status struct {
	Code     rpc.Code
	Text     string
	Violated []string // subjects of a google.rpc.QuotaFailure
	Header   http.Header
}

// TestCalls tries a guard of remote calls. The function serves a handler behind a guard.
func TestCalls(t *testing.T, serve func(c nethttp.Config, handler func(ctx context.Context, procedure string)) (Call, error)) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.play(t, client, c.inCalls(t), func(g *gateway, c nethttp.Config) error {
				call, err := serve(c, g.handle)
				g.serve = func(ctx context.Context, path string, header http.Header) Answer {
					return call(ctx, path, header).answer()
				}
				return err
			})
		})
	}
}

// answer returns a status as scenes note it.
func (s Status) answer() Answer {
	a := Answer{"200", s.Header.Get("RateLimit"), s.Header.Get("Retry-After"), "done"}
	if s.Code != rpc.OK {
		a.Status, a.Said = fmt.Sprint("code ", s.Code), s.Text
		if len(s.Violated) > 0 {
			a.Said = fmt.Sprintf("%q %s", s.Violated, s.Text)
		}
	}
	return a
}

// inCalls returns what is seen of a scene in remote calls: the same, but for status and texts of refusals.
func (c *scene) inCalls(t *testing.T) (want []string) {
	refusals := c.calls
	for _, line := range c.want {
		path, rest, _ := strings.Cut(line, " ")
		if _, err := strconv.Atoi(rest[:3]); err == nil && rest[:3] != "200" {
			if len(refusals) == 0 {
				t.Fatalf("nothing says what %q is for a call", line)
			}
			line = fmt.Sprint(path, " code ", refusals[0].code, rest[3:], " ", refusals[0].text)
			refusals = refusals[1:]
		}
		want = append(want, line)
	}
	if len(refusals) > 0 {
		t.Fatalf("%d refusals too many", len(refusals))
	}
	return want
}

// Copy writes an answer.
func Copy(w http.ResponseWriter, answer *http.Response) {
	defer answer.Body.Close()
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}
