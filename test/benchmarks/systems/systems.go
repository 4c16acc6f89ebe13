// Package systems has headgate and other libraries as limits around an HTTP handler, for
// the benchmarks of what they add to a request.
package systems

import (
	"net"
	"net/http"
	"strings"
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
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A Limit is the limit that every system applies to each client address.
type Limit struct {
	N   int
	Per time.Duration
}

func (l Limit) perSecond() float64 { return float64(l.N) / l.Per.Seconds() }

// A middleware wraps a handler.
type middleware func(http.Handler) http.Handler

// A System is one library, used as its documentation says, with the fields that it
// sets by default.
type System struct {
	Name      string
	Framework string
	Fields    bool                                 // it sets fields in each response
	new       func(l Limit) (guard any, err error) // what the framework calls middleware
}

// Headgate reports whether the system is headgate.
func (s System) Headgate() bool { return strings.HasPrefix(s.Name, "headgate") }

// frameworks are what stands around the handler in any case. The guard is nil or what the
// framework calls middleware.
var frameworks = map[string]func(h http.Handler, guard any) http.Handler{
	"net/http": plain,
	"Gin":      underGin,
	"Echo":     underEcho,
}

// All are the systems.
var All = []System{
	{"headgate", "net/http", true, headgate(tokenBucket, netHTTP)},
	{"headgate-two-policies", "net/http", true, headgate(twoPolicies, netHTTP)},
	{"headgate-gin", "Gin", true, headgate(tokenBucket, func(g *nethttp.Guard) any { return ginmw.Middleware(g) })},
	{"headgate-echo", "Echo", true, headgate(tokenBucket, func(g *nethttp.Guard) any { return echomw.Middleware(g) })},
	{"throttled", "net/http", true, throttledHTTP},
	{"go-limiter", "net/http", true, goLimiter},
	{"httprate", "net/http", true, chiHTTPRate},
	{"ulule", "net/http", true, ululeHTTP},
	{"tollbooth", "net/http", true, tollboothHTTP},
	{"ulule-gin", "Gin", true, ululeGin},
	{"gin-rate-limit", "Gin", true, ginRateLimit},
	{"echo", "Echo", false, echoLimiter},
}

// plain is net/http.
func plain(h http.Handler, guard any) http.Handler {
	if wrap, ok := guard.(middleware); ok {
		return wrap(h)
	}
	return h
}

func underGin(h http.Handler, guard any) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	if limit, ok := guard.(gin.HandlerFunc); ok {
		engine.Use(limit)
	}
	engine.GET("/", func(c *gin.Context) { h.ServeHTTP(c.Writer, c.Request) })
	return engine
}

func underEcho(h http.Handler, guard any) http.Handler {
	e := echo.New()
	if limit, ok := guard.(echo.MiddlewareFunc); ok {
		e.Use(limit)
	}
	e.GET("/", func(c echo.Context) error {
		h.ServeHTTP(c.Response(), c.Request())
		return nil
	})
	return e
}

func headgate(policies func(Limit) []core.Policy, adapt func(*nethttp.Guard) any) func(Limit) (any, error) {
	return func(l Limit) (any, error) {
		limiter := core.NewLimiter(new(core.MemoryStore), "api", policies(l)...)
		guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}}})
		if err != nil {
			return nil, err
		}
		return adapt(guard), nil
	}
}

func netHTTP(g *nethttp.Guard) any { return middleware(g.Handler) }

func tokenBucket(l Limit) []core.Policy {
	return []core.Policy{core.TokenBucket(int64(l.N), l.Per)}
}

func twoPolicies(l Limit) []core.Policy {
	return []core.Policy{
		core.TokenBucket(int64(l.N), l.Per).Named("bucket"),
		core.FixedWindow(1<<40, 24*time.Hour).Named("day"),
	}
}

func throttledHTTP(l Limit) (any, error) {
	store, err := throttledstore.NewCtx(0) // no bound, which is faster than its LRU list
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(l.N, l.Per),
		MaxBurst: l.N - 1,
	})
	h := throttled.HTTPRateLimiterCtx{RateLimiter: limiter, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
	return middleware(h.RateLimit), err
}

func goLimiter(l Limit) (any, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.N), Interval: l.Per})
	if err != nil {
		return nil, err
	}
	m, err := httplimit.NewMiddleware(store, httplimit.IPKeyFunc())
	if err != nil {
		return nil, err
	}
	return middleware(m.Handle), nil
}

func chiHTTPRate(l Limit) (any, error) {
	address := func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return httprate.CanonicalizeIP(host), err
	}
	return middleware(httprate.LimitBy(l.N, l.Per, address)), nil
}

func ululeLimiter(l Limit) *ulule.Limiter {
	return ulule.New(ululestore.NewStore(), ulule.Rate{Limit: int64(l.N), Period: l.Per})
}

func ululeHTTP(l Limit) (any, error) {
	return middleware(stdlib.NewMiddleware(ululeLimiter(l)).Handler), nil
}

func ululeGin(l Limit) (any, error) {
	return ululegin.NewMiddleware(ululeLimiter(l)), nil
}

func ginRateLimit(l Limit) (any, error) {
	store := ginratelimit.InMemoryStore(&ginratelimit.InMemoryOptions{Rate: l.Per, Limit: uint(l.N)})
	return ginratelimit.RateLimiter(store, &ginratelimit.Options{
		KeyFunc: func(c *gin.Context) string { return c.ClientIP() },
	}), nil
}

func tollboothHTTP(l Limit) (any, error) {
	limiter := tollbooth.NewLimiter(l.perSecond(), nil).SetBurst(l.N).SetIPLookups([]string{"RemoteAddr"})
	return middleware(func(h http.Handler) http.Handler { return tollbooth.LimitHandler(limiter, h) }), nil
}

func echoLimiter(l Limit) (any, error) {
	return echomiddleware.RateLimiterWithConfig(echomiddleware.RateLimiterConfig{
		Store: echomiddleware.NewRateLimiterMemoryStoreWithConfig(echomiddleware.RateLimiterMemoryStoreConfig{
			Rate: rate.Limit(l.perSecond()), Burst: l.N,
		}),
	}), nil
}

// Handlers returns the handler h under the system's framework, without and with the limit.
func (s System) Handlers(h http.Handler, l Limit) (bare, guarded http.Handler, err error) {
	guard, err := s.new(l)
	if err != nil {
		return nil, nil, err
	}
	framework := frameworks[s.Framework]
	return framework(h, nil), framework(h, guard), nil
}
