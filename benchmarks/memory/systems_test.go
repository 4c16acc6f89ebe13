// Package memory measures limits that are kept in the process: headgate and other
// libraries at the same work. See the README in the folder above.
package memory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/didip/tollbooth/v7"
	"github.com/go-chi/httprate"
	echo "github.com/labstack/echo/v4/middleware"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// A limit is the limit that every system applies to each key.
type limit struct {
	n   int
	per time.Duration
}

func (l limit) rate() core.Rate    { return core.Rate{Events: int64(l.n), Per: l.per} }
func (l limit) perSecond() float64 { return float64(l.n) / l.per.Seconds() }

// An ask charges one unit to a key.
type ask func(ctx context.Context, key string) (allowed bool, err error)

// A system is one library, used as its documentation says. Libraries that read a
// clock in whole windows, or count otherwise, do the work that they always do.
type system struct {
	name string
	new  func(l limit) (ask, error)
}

var systems = []system{
	{"headgate-TokenBucket", headgate(tokenBucket)},
	{"headgate-FixedWindow", headgate(func(l limit) []core.Policy { return []core.Policy{core.FixedWindow(l.rate())} })},
	{"headgate-SlidingWindow", headgate(func(l limit) []core.Policy { return []core.Policy{core.SlidingWindow(l.rate())} })},
	{"headgate-SlidingLog", headgate(slidingLog)},
	{"headgate-two-policies", headgate(twoPolicies)},
	{"go-limiter", goLimiter},
	{"x-time-rate-syncmap", timeRateSyncMap},
	{"x-time-rate-mutex", timeRateMutex},
	{"throttled", throttledGCRA},
	{"echo", echoStore},
	{"ulule", ululeMemory},
	{"httprate", chiHTTPRate},
	{"tollbooth", tollboothKeys},
}

func headgate(policies func(limit) []core.Policy) func(limit) (ask, error) {
	return func(l limit) (ask, error) {
		// Room for a million keys of any policy; the default has it for token buckets.
		limiter, err := core.New(memstore.New(memstore.Config{MaxBytes: 1 << 30}), "bench", policies(l)...)
		return func(ctx context.Context, key string) (bool, error) {
			d, err := limiter.Allow(ctx, key)
			return d.Allowed, err
		}, err
	}
}

func tokenBucket(l limit) []core.Policy {
	return []core.Policy{core.TokenBucket(l.rate(), int64(l.n))}
}

func slidingLog(l limit) []core.Policy {
	if l.n > 1<<20 { // more than a log accepts: as much in a shorter time
		l = limit{1 << 20, 10 * time.Millisecond}
	}
	return []core.Policy{core.SlidingLog(l.rate())}
}

func twoPolicies(l limit) []core.Policy {
	return []core.Policy{
		core.TokenBucket(l.rate(), int64(l.n)).Named("bucket"),
		core.FixedWindow(core.PerDay(1 << 40)).Named("day"),
	}
}

func goLimiter(l limit) (ask, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.n), Interval: l.per})
	return func(ctx context.Context, key string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, key)
		return ok, err
	}, err
}

func timeRateSyncMap(l limit) (ask, error) {
	var limiters sync.Map
	return func(_ context.Context, key string) (bool, error) {
		v, ok := limiters.Load(key)
		if !ok {
			v, _ = limiters.LoadOrStore(key, rate.NewLimiter(rate.Limit(l.perSecond()), l.n))
		}
		return v.(*rate.Limiter).Allow(), nil
	}, nil
}

func timeRateMutex(l limit) (ask, error) {
	var mu sync.Mutex
	limiters := make(map[string]*rate.Limiter)
	return func(_ context.Context, key string) (bool, error) {
		mu.Lock()
		v, ok := limiters[key]
		if !ok {
			v = rate.NewLimiter(rate.Limit(l.perSecond()), l.n)
			limiters[key] = v
		}
		mu.Unlock()
		return v.Allow(), nil
	}, nil
}

func throttledGCRA(l limit) (ask, error) {
	store, err := throttledstore.NewCtx(0) // no bound, which is faster than its LRU list
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(l.n, l.per),
		MaxBurst: l.n - 1,
	})
	return func(ctx context.Context, key string) (bool, error) {
		limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}, err
}

func echoStore(l limit) (ask, error) {
	store := echo.NewRateLimiterMemoryStoreWithConfig(echo.RateLimiterMemoryStoreConfig{
		Rate: rate.Limit(l.perSecond()), Burst: l.n,
	})
	return func(_ context.Context, key string) (bool, error) { return store.Allow(key) }, nil
}

func ululeMemory(l limit) (ask, error) {
	limiter := ulule.New(ululestore.NewStore(), ulule.Rate{Limit: int64(l.n), Period: l.per})
	return func(ctx context.Context, key string) (bool, error) {
		c, err := limiter.Get(ctx, key)
		return !c.Reached, err
	}, nil
}

// chiHTTPRate counts without writing fields, which is what the others here do.
func chiHTTPRate(l limit) (ask, error) {
	limiter := httprate.NewRateLimiter(l.n, l.per, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	return func(_ context.Context, key string) (bool, error) { return !limiter.OnLimit(w, r, key), nil }, nil
}

func tollboothKeys(l limit) (ask, error) {
	limiter := tollbooth.NewLimiter(l.perSecond(), nil).SetBurst(l.n)
	return func(_ context.Context, key string) (bool, error) {
		return tollbooth.LimitByKeys(limiter, []string{key}) == nil, nil
	}, nil
}

// key is the name of the i-th key: 16 bytes.
func key(i int) string { return fmt.Sprintf("client-%09d", i) }

func TestSystemsKeepTheLimit(t *testing.T) {
	const n = 10
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			allow, err := s.new(limit{n, 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			for k := range 3 {
				for i := range 2 * n {
					ok, err := allow(t.Context(), key(k))
					if err != nil || ok != (i < n) {
						t.Fatalf("call %d of key %d: %v, %v", i+1, k, ok, err)
					}
				}
			}
		})
	}
}

func TestSystemsAdmitWhatTheBenchmarksNeed(t *testing.T) {
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			allow, err := s.new(never)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 10_000 {
				if ok, err := allow(t.Context(), key(0)); err != nil || !ok {
					t.Fatalf("call %d: %v, %v", i+1, ok, err)
				}
			}
		})
	}
}
