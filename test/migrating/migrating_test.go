// Package migrating holds the programs of docs/migrating.md, before and after, and tests what that
// page says of the differences. It is a module of its own because it needs the other libraries.
package migrating

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	rate "github.com/go-chi/httprate"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/migrating/express"
	"github.com/headgate/headgate/test/migrating/gogrpc"
	"github.com/headgate/headgate/test/migrating/httprate"
	"github.com/headgate/headgate/test/migrating/redisrate"
	"github.com/headgate/headgate/test/migrating/tollbooth"
	"github.com/headgate/headgate/test/migrating/ulule"
	"github.com/headgate/headgate/test/migrating/xtimerate"
)

// A step sends n requests after a pause.
type step struct{ after, n, before, now int } // seconds; admitted before, and admitted now

// The same requests to both programs: where they decide alike, and where not.
func TestHandlers(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after func(http.Handler) http.Handler
		cleaner       bool // its store has a goroutine, which cannot be in a bubble
		path          func(i int) string
		steps         []step
	}{
		{
			name: "ulule: at once", before: ulule.Before, after: ulule.After, cleaner: true,
			steps: []step{{0, 61, 60, 60}, {61, 61, 60, 60}},
		},
		{
			name: "ulule: around the end of a window", before: ulule.Before, after: ulule.After, cleaner: true,
			steps: []step{{0, 1, 1, 1}, {59, 59, 59, 59}, {2, 60, 60, 1}},
		},
		{
			name: "ulule: the same windows", before: ulule.Before, cleaner: true,
			after: limited(core.FixedWindow(60, time.Minute).FromFirst()),
			steps: []step{{7, 1, 1, 1}, {59, 61, 59, 59}, {2, 61, 60, 60}, {59, 1, 0, 0}, {2, 61, 60, 60}},
		},
		{
			name: "httprate: at once", before: httprate.Before, after: httprate.After,
			steps: []step{{0, 61, 60, 60}, {121, 61, 60, 60}},
		},
		{
			name: "httprate: 90 in 31 seconds", before: httprate.Before, after: httprate.After,
			steps: []step{{59, 60, 60, 60}, {31, 60, 30, 0}},
		},
		{
			name: "httprate: refused although 60 s have passed", before: httprate.Before, after: httprate.After,
			steps: []step{{0, 60, 60, 60}, {61, 60, 1, 60}},
		},
		{
			name: "httprate: the same estimate", before: httprate.Before,
			after: limited(core.SlidingWindow(60, time.Minute).Resolution(1)),
			steps: []step{{59, 60, 60, 60}, {31, 60, 30, 30}, {15, 60, 15, 15}},
		},
		{
			name: "tollbooth", before: tollbooth.Before, after: tollbooth.After,
			steps: []step{{0, 6, 5, 5}, {1, 6, 5, 5}},
		},
		{
			name: "tollbooth: paths that do not exist", before: tollbooth.Before, after: tollbooth.After,
			path:  func(i int) string { return "/" + strconv.Itoa(i) },
			steps: []step{{0, 100, 100, 5}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			var before http.Handler
			if test.cleaner {
				before = test.before(app)
			}
			synctest.Test(t, func(t *testing.T) {
				if before == nil {
					before = test.before(app)
				}
				after := test.after(app)
				path := test.path
				if path == nil {
					path = func(int) string { return "/" }
				}
				for _, s := range test.steps {
					time.Sleep(time.Duration(s.after) * time.Second)
					if got := admitted(before, s.n, path); got != s.before {
						t.Errorf("before, %d s later: %d of %d admitted, want %d", s.after, got, s.n, s.before)
					}
					if got := admitted(after, s.n, path); got != s.now {
						t.Errorf("after, %d s later: %d of %d admitted, want %d", s.after, got, s.n, s.now)
					}
				}
			})
		})
	}
}

// httprate rounds the estimate to the nearest number, and Resolution(1) up.
func TestRounding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		before := rate.LimitBy(5, time.Minute, rate.Key("*"))(app)
		after := limited(core.SlidingWindow(5, time.Minute).Resolution(1))(app)
		var was, is int
		for range 144 {
			was += admitted(before, 1, func(int) string { return "/" })
			is += admitted(after, 1, func(int) string { return "/" })
			time.Sleep(5 * time.Second)
		}
		if was != 60 || is != 49 {
			t.Errorf("%d and %d of 144 admitted", was, is)
		}
	})
}

// limited limits each client address.
func limited(p core.Policy) func(http.Handler) http.Handler {
	return func(app http.Handler) http.Handler {
		return nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), p).Handler(app)
	}
}

func admitted(h http.Handler, n int, path func(int) string) int {
	ok := 0
	for i := range n {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path(i), nil))
		if w.Code == http.StatusOK {
			ok++
		}
	}
	return ok
}

// What a refused client is told.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name   string
		make   func(http.Handler) http.Handler
		fields []string
	}{
		{"ulule", ulule.Before, []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}},
		{"httprate", httprate.Before, []string{"Retry-After", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}},
		{"tollbooth", tollbooth.Before, []string{
			"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset",
			"X-Rate-Limit-Duration", "X-Rate-Limit-Limit", "X-Rate-Limit-Request-Remote-Addr",
		}},
		{"headgate", ulule.After, []string{"Ratelimit", "Ratelimit-Policy", "Retry-After"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := test.make(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			var w *httptest.ResponseRecorder
			for w == nil || w.Code == http.StatusOK {
				w = httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			}
			if w.Code != http.StatusTooManyRequests {
				t.Fatal(w.Code)
			}
			var fields []string
			for name := range w.Header() {
				if !slices.Contains([]string{"Content-Type", "X-Content-Type-Options", "Cache-Control", "Content-Length"}, name) {
					fields = append(fields, name)
				}
			}
			slices.Sort(fields)
			if !slices.Equal(fields, test.fields) {
				t.Errorf("fields %q, want %q", fields, test.fields)
			}
		})
	}
}

// Both wait the same time: 20 at once, then one in each tenth of a second.
func TestWait(t *testing.T) {
	for name, program := range map[string]func() func(context.Context, string) error{
		"before": xtimerate.Before, "after": xtimerate.After,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wait, start := program(), time.Now()
				for i := range 30 {
					if err := wait(t.Context(), "anna"); err != nil {
						t.Fatal(err)
					}
					// The float64 of x/time/rate may round up a nanosecond.
					want := time.Duration(max(0, i-19)) * 100 * time.Millisecond
					if got := time.Since(start).Round(time.Microsecond); got != want {
						t.Errorf("%d: after %v, want %v", i+1, got, want)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if err := wait(ctx, "anna"); err == nil {
					t.Error("no error, although the wait is longer than the deadline")
				}
				if err := wait(t.Context(), "ben"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Both admit 60 at once, and say when the next is admitted.
func TestRedis(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	for name, allow := range map[string]func(context.Context, string) (time.Duration, error){
		"before": redisrate.Before(client), "after": redisrate.After(client),
	} {
		t.Run(name, func(t *testing.T) {
			user := name
			var wait time.Duration
			for i := 0; wait == 0; i++ { // until it is refused, which is later on a busy machine
				var err error
				if wait, err = allow(t.Context(), user); err != nil {
					t.Fatal(err)
				}
				if wait != 0 && i < 60 {
					t.Fatalf("refused after %d", i)
				}
			}
			if wait < 0 || wait > time.Second {
				t.Errorf("wait %v", wait)
			}
		})
	}
	server.Kill()
	if _, err := redisrate.Before(client)(t.Context(), "before"); err == nil {
		t.Error("before: no error without Redis")
	}
	if _, err := redisrate.After(client)(t.Context(), "after"); err != nil {
		t.Error("after:", err)
	}
}

func TestExpress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusOK
		h := express.After(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		send := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest("POST", "/login", nil)
			r.RemoteAddr = "10.0.0.1:1234"
			r.Header.Set("X-Forwarded-For", "203.0.113.7")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		for range 200 {
			if w := send(); w.Code != http.StatusOK {
				t.Fatal(w.Code)
			}
		}
		status = http.StatusUnauthorized
		for range 100 {
			send()
		}
		w := send()
		if w.Code != http.StatusTooManyRequests || w.Header().Get("X-RateLimit-Limit") != "100" || w.Header().Get("Retry-After") != "900" {
			t.Error(w.Code, w.Header())
		}
	})
}

// Under the limiter of go-grpc-middleware, all clients share a limit, and none learns when to come back.
func TestGRPC(t *testing.T) {
	for name, test := range map[string]struct {
		server *grpc.Server
		ben    codes.Code
		told   bool
	}{
		"before": {gogrpc.Before(), codes.ResourceExhausted, false},
		"after":  {gogrpc.After(), codes.OK, true},
	} {
		healthpb.RegisterHealthServer(test.server, health.NewServer())
		listener := bufconn.Listen(1 << 20)
		go test.server.Serve(listener) // until Stop
		defer test.server.Stop()
		conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ask := func(user string) error {
			_, err := healthpb.NewHealthClient(conn).Check(metadata.AppendToOutgoingContext(t.Context(), "user", user), &healthpb.HealthCheckRequest{})
			return err
		}
		var refusal error
		for range 100 { // more than come back meanwhile
			if err := ask("anna"); err != nil {
				refusal = err
			}
		}
		s := status.Convert(refusal)
		if s.Code() != codes.ResourceExhausted || (len(s.Details()) > 0) != test.told {
			t.Errorf("%s: %v, details %v", name, refusal, s.Details())
		}
		if err := ask("ben"); status.Code(err) != test.ben {
			t.Errorf("%s: ben: %v, want %v", name, err, test.ben)
		}
	}
}
