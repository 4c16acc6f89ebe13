package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/didip/tollbooth/v7"
	"github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	echo "github.com/labstack/echo/v4/middleware"
	golimiter "github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/headgate/headgate/core"
)

// A limit is the limit that every system applies to each key.
type limit struct {
	n   int
	per time.Duration
}

func (l limit) perSecond() float64 { return float64(l.n) / l.per.Seconds() }

// A taker charges keys. All are called in the same way, by a method of a type of their own,
// so that the compiler treats them alike.
type taker interface {
	// take charges one unit to a key.
	take(ctx context.Context, key string) (allowed bool, err error)
}

// A several can charge several units at once.
type several interface {
	takeN(ctx context.Context, key string, n int64) (allowed bool, err error)
}

// A system is one library, used as its documentation says. Libraries that read a
// clock in whole windows, or count otherwise, do the work that they always do.
type system struct {
	name string
	new  func(l limit) (taker, error)
}

func (s system) headgate() bool { return strings.HasPrefix(s.name, "headgate") }

var systems = []system{
	{"headgate-TokenBucket", headgateWith(tokenBucket)},
	{"headgate-FixedWindow", headgateWith(func(l limit) []core.Policy { return []core.Policy{core.FixedWindow(int64(l.n), l.per)} })},
	{"headgate-SlidingWindow", headgateWith(func(l limit) []core.Policy { return []core.Policy{core.SlidingWindow(int64(l.n), l.per)} })},
	{"headgate-SlidingLog", headgateWith(slidingLog)},
	{"headgate-two-policies", headgateWith(twoPolicies)},
	{"go-limiter", newGoLimiter},
	{"x-time-rate-syncmap", func(l limit) (taker, error) { return &timeRateSyncMap{limit: l}, nil }},
	{"x-time-rate-mutex", func(l limit) (taker, error) {
		return &timeRateMutex{limit: l, limiters: make(map[string]*rate.Limiter)}, nil
	}},
	{"throttled", newThrottled},
	{"echo", newEcho},
	{"ulule", newUlule},
	{"httprate", newHTTPRate},
	{"tollbooth", newTollbooth},
}

type headgate struct{ limiter *core.Limiter }

func headgateWith(policies func(limit) []core.Policy) func(limit) (taker, error) {
	return func(l limit) (taker, error) {
		// Room for a million keys of any policy; the default has it for token buckets.
		return &headgate{core.NewLimiter(&core.MemoryStore{MaxBytes: 1 << 30}, "bench", policies(l)...)}, nil
	}
}

func (h *headgate) take(ctx context.Context, key string) (bool, error) {
	d, err := h.limiter.Allow(ctx, key)
	return d.Allowed, err
}

func (h *headgate) takeN(ctx context.Context, key string, n int64) (bool, error) {
	d, err := h.limiter.AllowN(ctx, key, n)
	return d.Allowed, err
}

func tokenBucket(l limit) []core.Policy {
	return []core.Policy{core.TokenBucket(int64(l.n), l.per)}
}

func slidingLog(l limit) []core.Policy {
	if l.n > 1024 { // more than a log accepts: as much in a shorter time
		l = limit{1024, 10 * time.Microsecond}
	}
	return []core.Policy{core.SlidingLog(int64(l.n), l.per)}
}

func twoPolicies(l limit) []core.Policy {
	return []core.Policy{
		core.TokenBucket(int64(l.n), l.per).Named("bucket"),
		core.FixedWindow(1<<40, 24*time.Hour).Named("day"),
	}
}

type goLimiter struct{ store golimiter.Store }

func newGoLimiter(l limit) (taker, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.n), Interval: l.per})
	return &goLimiter{store}, err
}

func (g *goLimiter) take(ctx context.Context, key string) (bool, error) {
	_, _, _, ok, err := g.store.Take(ctx, key)
	return ok, err
}

type timeRateSyncMap struct {
	limit    limit
	limiters sync.Map
}

func (m *timeRateSyncMap) of(key string) *rate.Limiter {
	v, ok := m.limiters.Load(key)
	if !ok {
		v, _ = m.limiters.LoadOrStore(key, rate.NewLimiter(rate.Limit(m.limit.perSecond()), m.limit.n))
	}
	return v.(*rate.Limiter)
}

func (m *timeRateSyncMap) take(_ context.Context, key string) (bool, error) {
	return m.of(key).Allow(), nil
}

func (m *timeRateSyncMap) takeN(_ context.Context, key string, n int64) (bool, error) { //nolint:unparam // it is a several
	return m.of(key).AllowN(time.Now(), int(n)), nil
}

type timeRateMutex struct {
	limit    limit
	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

func (m *timeRateMutex) of(key string) *rate.Limiter {
	m.mu.Lock()
	v, ok := m.limiters[key]
	if !ok {
		v = rate.NewLimiter(rate.Limit(m.limit.perSecond()), m.limit.n)
		m.limiters[key] = v
	}
	m.mu.Unlock()
	return v
}

func (m *timeRateMutex) take(_ context.Context, key string) (bool, error) {
	return m.of(key).Allow(), nil
}

func (m *timeRateMutex) takeN(_ context.Context, key string, n int64) (bool, error) { //nolint:unparam // it is a several
	return m.of(key).AllowN(time.Now(), int(n)), nil
}

type throttledGCRA struct {
	limiter *throttled.GCRARateLimiterCtx
}

func newThrottled(l limit) (taker, error) {
	store, err := throttledstore.NewCtx(0) // no bound, which is faster than its LRU list
	if err != nil {
		return nil, err
	}
	g, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(l.n, l.per),
		MaxBurst: l.n - 1,
	})
	return &throttledGCRA{g}, err
}

func (t *throttledGCRA) take(ctx context.Context, key string) (bool, error) {
	return t.takeN(ctx, key, 1)
}

func (t *throttledGCRA) takeN(ctx context.Context, key string, n int64) (bool, error) {
	limited, _, err := t.limiter.RateLimitCtx(ctx, key, int(n))
	return !limited, err
}

type echoStore struct {
	store *echo.RateLimiterMemoryStore
}

func newEcho(l limit) (taker, error) {
	return &echoStore{echo.NewRateLimiterMemoryStoreWithConfig(echo.RateLimiterMemoryStoreConfig{
		Rate: rate.Limit(l.perSecond()), Burst: l.n,
	})}, nil
}

func (e *echoStore) take(_ context.Context, key string) (bool, error) { return e.store.Allow(key) }

type ululeMemory struct{ limiter *ulule.Limiter }

func newUlule(l limit) (taker, error) {
	return &ululeMemory{ulule.New(ululestore.NewStore(), ulule.Rate{Limit: int64(l.n), Period: l.per})}, nil
}

func (u *ululeMemory) take(ctx context.Context, key string) (bool, error) {
	c, err := u.limiter.Get(ctx, key)
	return !c.Reached, err
}

func (u *ululeMemory) takeN(ctx context.Context, key string, n int64) (bool, error) {
	c, err := u.limiter.Increment(ctx, key, n)
	return !c.Reached, err
}

// chiHTTPRate counts without writing fields, which is what the others here do.
type chiHTTPRate struct {
	limiter *httprate.RateLimiter
	w       http.ResponseWriter
	r       *http.Request
}

func newHTTPRate(l limit) (taker, error) {
	return &chiHTTPRate{
		httprate.NewRateLimiter(l.n, l.per, httprate.WithResponseHeaders(httprate.ResponseHeaders{})),
		httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil),
	}, nil
}

func (h *chiHTTPRate) take(_ context.Context, key string) (bool, error) {
	return !h.limiter.OnLimit(h.w, h.r, key), nil
}

type tollboothKeys struct{ limiter *limiter.Limiter }

func newTollbooth(l limit) (taker, error) {
	return &tollboothKeys{tollbooth.NewLimiter(l.perSecond(), nil).SetBurst(l.n)}, nil
}

func (t *tollboothKeys) take(_ context.Context, key string) (bool, error) {
	return tollbooth.LimitByKeys(t.limiter, []string{key}) == nil, nil
}
