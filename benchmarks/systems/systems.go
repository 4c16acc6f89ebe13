// Package middleware measures what limits add to an HTTP request: headgate and
// other libraries around the same handler. See the README in the folder above.
package middleware

import (
	"net"
	"net/http"
	"testing"
	"time"

	ginratelimit "github.com/JGLTechnologies/gin-rate-limit"
	"github.com/didip/tollbooth/v7"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/httprate"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululestore "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A limit is what every system is told to keep for each client address.
type limit struct {
	n   int
	per time.Duration
}

func (l limit) rate() core.Rate    { return core.Rate{Events: int64(l.n), Per: l.per} }
func (l limit) perSecond() float64 { return float64(l.n) / l.per.Seconds() }

// A middleware wraps a handler.
type middleware func(http.Handler) http.Handler

// A system is one library, used as its documentation says, with the fields that it
// sets by default.
type system struct {
	name      string
	framework func(http.Handler, any) http.Handler // what stands around the handler in any case
	new       func(l limit) (guard any, err error) // what the framework calls middleware
}

var systems = []system{
	{"headgate", plain, headgate(tokenBucket, netHTTP)},
	{"headgate-two-policies", plain, headgate(twoPolicies, netHTTP)},
	{"headgate-gin", underGin, headgate(tokenBucket, func(g *nethttp.Guard) any { return ginmw.Limit(g) })},
	{"headgate-echo", underEcho, headgate(tokenBucket, func(g *nethttp.Guard) any { return echomw.Limit(g) })},
	{"throttled", plain, throttledHTTP},
	{"go-limiter", plain, goLimiter},
	{"httprate", plain, chiHTTPRate},
	{"ulule", plain, ululeHTTP},
	{"tollbooth", plain, tollboothHTTP},
	{"ulule-gin", underGin, ululeGin},
	{"gin-rate-limit", underGin, ginRateLimit},
	{"echo", underEcho, echoLimiter},
}

// plain is net/http.
func plain(h http.Handler, guard any) http.Handler {
	if guard == nil {
		return h
	}
	return guard.(middleware)(h)
}

func underGin(h http.Handler, guard any) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	if guard != nil {
		engine.Use(guard.(gin.HandlerFunc))
	}
	engine.GET("/", func(c *gin.Context) { h.ServeHTTP(c.Writer, c.Request) })
	return engine
}

func underEcho(h http.Handler, guard any) http.Handler {
	e := echo.New()
	if guard != nil {
		e.Use(guard.(echo.MiddlewareFunc))
	}
	e.GET("/", func(c echo.Context) error {
		h.ServeHTTP(c.Response(), c.Request())
		return nil
	})
	return e
}

func headgate(policies func(limit) []core.Policy, adapt func(*nethttp.Guard) any) func(limit) (any, error) {
	return func(l limit) (any, error) {
		limiter, err := core.New(memstore.New(memstore.Config{}), "api", policies(l)...)
		if err != nil {
			return nil, err
		}
		guard, err := nethttp.New(nethttp.Config{
			Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
		})
		if err != nil {
			return nil, err
		}
		return adapt(guard), nil
	}
}

func netHTTP(g *nethttp.Guard) any { return middleware(g.Handler) }

func tokenBucket(l limit) []core.Policy {
	return []core.Policy{core.TokenBucket(l.rate(), int64(l.n))}
}

func twoPolicies(l limit) []core.Policy {
	return []core.Policy{
		core.TokenBucket(l.rate(), int64(l.n)).Named("bucket"),
		core.FixedWindow(core.PerDay(1 << 40)).Named("day"),
	}
}

func throttledHTTP(l limit) (any, error) {
	store, err := throttledstore.NewCtx(0) // no bound, which is faster than its LRU list
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(l.n, l.per),
		MaxBurst: l.n - 1,
	})
	h := throttled.HTTPRateLimiterCtx{RateLimiter: limiter, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
	return middleware(h.RateLimit), err
}

func goLimiter(l limit) (any, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.n), Interval: l.per})
	if err != nil {
		return nil, err
	}
	m, err := httplimit.NewMiddleware(store, httplimit.IPKeyFunc())
	if err != nil {
		return nil, err
	}
	return middleware(m.Handle), nil
}

func chiHTTPRate(l limit) (any, error) {
	address := func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return httprate.CanonicalizeIP(host), err
	}
	return middleware(httprate.LimitBy(l.n, l.per, address)), nil
}

func ululeLimiter(l limit) *ulule.Limiter {
	return ulule.New(ululestore.NewStore(), ulule.Rate{Limit: int64(l.n), Period: l.per})
}

func ululeHTTP(l limit) (any, error) {
	return middleware(stdlib.NewMiddleware(ululeLimiter(l)).Handler), nil
}

func ululeGin(l limit) (any, error) {
	return ululegin.NewMiddleware(ululeLimiter(l)), nil
}

func ginRateLimit(l limit) (any, error) {
	store := ginratelimit.InMemoryStore(&ginratelimit.InMemoryOptions{Rate: l.per, Limit: uint(l.n)})
	return ginratelimit.RateLimiter(store, &ginratelimit.Options{
		KeyFunc: func(c *gin.Context) string { return c.ClientIP() },
	}), nil
}

func tollboothHTTP(l limit) (any, error) {
	limiter := tollbooth.NewLimiter(l.perSecond(), nil).SetBurst(l.n).SetIPLookups([]string{"RemoteAddr"})
	return middleware(func(h http.Handler) http.Handler { return tollbooth.LimitHandler(limiter, h) }), nil
}

func echoLimiter(l limit) (any, error) {
	return echomiddleware.RateLimiterWithConfig(echomiddleware.RateLimiterConfig{
		Store: echomiddleware.NewRateLimiterMemoryStoreWithConfig(echomiddleware.RateLimiterMemoryStoreConfig{
			Rate: rate.Limit(l.perSecond()), Burst: l.n,
		}),
	}), nil
}

// handlers returns the handler of the benchmarks without and with the limit.
func (s system) handlers(tb testing.TB, l limit) (bare, guarded http.Handler) {
	tb.Helper()
	guard, err := s.new(l)
	if err != nil {
		tb.Fatal(err)
	}
	work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return s.framework(work, nil), s.framework(work, guard)
}

func TestSystemsKeepTheLimit(t *testing.T) {
	const n = 10
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			bare, guarded := s.handlers(t, limit{n, 24 * time.Hour})
			w, r := newWriter(), request()
			for i := range 2 * n {
				want := http.StatusNoContent
				if got := w.serve(bare, r); got != want {
					t.Fatalf("request %d, no limit: status %d", i+1, got)
				}
				if i >= n {
					want = http.StatusTooManyRequests
				}
				if got := w.serve(guarded, r); got != want {
					t.Fatalf("request %d: status %d, want %d", i+1, got, want)
				}
			}
		})
	}
}
