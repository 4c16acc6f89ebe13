package hertzmw_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudwego/hertz/pkg/app"
	"github.com/cloudwego/hertz/pkg/common/config"
	"github.com/cloudwego/hertz/pkg/common/ut"
	"github.com/cloudwego/hertz/pkg/route"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/thirdparty/hertzmw"
)

// newEngine returns an engine with some middleware, whose last handler answers all paths.
func newEngine(handlers ...app.HandlerFunc) *route.Engine {
	e := route.NewEngine(config.NewOptions(nil))
	e.Use(handlers[:len(handlers)-1]...)
	e.Any("/*path", handlers[len(handlers)-1])
	return e
}

// ask asks an engine what a request of net/http asks.
func ask(e *route.Engine, r *http.Request) *http.Response {
	var fields []ut.Header
	for name, values := range r.Header {
		for _, value := range values {
			fields = append(fields, ut.Header{Key: name, Value: value})
		}
	}
	answer := ut.PerformRequest(e, r.Method, r.URL.String(), nil, fields...).Result()
	w := httptest.NewRecorder()
	answer.Header.VisitAll(func(name, value []byte) { w.Header().Add(string(name), string(value)) })
	w.WriteHeader(answer.StatusCode())
	_, _ = w.Write(answer.Body())
	return w.Result()
}

// What the context holds can be the key, and SetCost and Settle work.
func TestContext(t *testing.T) {
	var settled string
	limiter := core.NewLimiter(new(core.MemoryStore), "api", core.SlidingLog(9, 24*time.Hour))
	guard, err := nethttp.New(nethttp.Config{KeepVerdict: true, Rates: []nethttp.Rate{{
		Limiter: limiter, Key: hertzmw.Value("user"),
		Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
			settled = fmt.Sprint(o.Status, " ", o.Bytes, " ", o.Cost)
			return o.Cost
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(func(ctx context.Context, c *app.RequestContext) {
		c.Set("user", "anna")
		c.Next(ctx)
	}, hertzmw.Middleware(guard), func(ctx context.Context, c *app.RequestContext) {
		if v, ok := nethttp.VerdictFrom(ctx); !ok || v.Status != 0 {
			t.Errorf("the verdict is %v", v)
		}
		if err := nethttp.SetCost(ctx, limiter, 3); err != nil {
			t.Error(err)
		}
		c.String(http.StatusTeapot, "hello")
	})
	for _, left := range []string{"8", "5"} {
		answer := ask(e, httptest.NewRequest("GET", "/", nil))
		if got := answer.Header.Get("RateLimit"); answer.StatusCode != 418 || got != `"api";r=`+left+`;t=86400` || settled != "418 5 3" {
			t.Errorf("%d, %s, settled %s", answer.StatusCode, got, settled)
		}
	}
}

// Guards within each other add to what was set before them, and replace what they have to.
func TestNested(t *testing.T) {
	limit := func(name string, n int64) app.HandlerFunc {
		return hertzmw.Middleware(nethttp.Limit(new(core.MemoryStore), name, keyfuncs.Everyone(), core.FixedWindow(n, 24*time.Hour)))
	}
	outer := limit("outer", 9)
	e := newEngine(func(ctx context.Context, c *app.RequestContext) {
		c.Header("Cache-Control", "public")
		c.Next(ctx)
	}, outer, outer, limit("inner", 1), func(_ context.Context, c *app.RequestContext) { c.String(200, "hello") })
	for _, want := range []string{
		`200 ["outer";q=9;w=86400 "inner";q=1;w=86400] [public] [text/plain; charset=utf-8]`,
		`429 ["outer";q=9;w=86400 "inner";q=1;w=86400] [no-store] [application/problem+json]`,
	} {
		answer := ask(e, httptest.NewRequest("GET", "/", nil))
		h := answer.Header
		if got := fmt.Sprint(answer.StatusCode, " ", h.Values("RateLimit-Policy"), " ", h.Values("Cache-Control"), " ", h.Values("Content-Type")); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// A key of Hertz' context is a fault of the program elsewhere, and absent if it is not there.
func TestFaults(t *testing.T) {
	if _, err := hertzmw.Value("user")(httptest.NewRequest("GET", "/", nil)); !errors.Is(err, keyfuncs.ErrProgram) {
		t.Errorf("elsewhere: %v", err)
	}
	for value, want := range map[any]int{nil: 400, 7: 500, "anna": 200} {
		e := newEngine(func(ctx context.Context, c *app.RequestContext) {
			if value != nil {
				c.Set("user", value)
			}
			c.Next(ctx)
		}, hertzmw.Middleware(nethttp.Limit(new(core.MemoryStore), "api", hertzmw.Value("user"), core.Unlimited())), func(_ context.Context, c *app.RequestContext) { c.String(200, "hello") })
		if got := ask(e, httptest.NewRequest("GET", "/", nil)).StatusCode; got != want {
			t.Errorf("%v: %d, not %d", value, got, want)
		}
	}
}
