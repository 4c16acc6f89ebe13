package hertzmw_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cloudwego/hertz/pkg/app"
	"github.com/cloudwego/hertz/pkg/common/config"
	"github.com/cloudwego/hertz/pkg/common/ut"
	"github.com/cloudwego/hertz/pkg/route"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/conformance/scenes"
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

// The guards' scenes are those of net/http.
func TestScenes(t *testing.T) {
	scenes.Test(t, scenes.Framework{
		RequestsOnly: true, Deaf: true,
		Key: func(key keyfuncs.Func) keyfuncs.Func {
			return hertzmw.Framework.Key(func(c *app.RequestContext) (string, error) { return key(hertzmw.Framework.Request(c)) })
		},
		Mount: func(g scenes.Guard, h http.Handler) http.Handler {
			e := newEngine(hertzmw.Use(g.(*nethttp.Guard)), func(ctx context.Context, c *app.RequestContext) {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, string(c.Method()), string(c.URI().RequestURI()), nil))
				c.SetStatusCode(w.Code)
				_, _ = c.Write(w.Body.Bytes())
			})
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { scenes.Copy(w, ask(e, r)) })
		},
	})
}

// What the context holds can be the key, and SetCost and Settle work.
func TestContext(t *testing.T) {
	var settled string
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
		Limiter: core.Must(core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerDay(9)))),
		Key:     hertzmw.Framework.Value("user"),
		Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
			settled = fmt.Sprint(o.Status, " ", o.Written, " ", o.Cost)
			return o.Cost
		},
	}}}))
	e := newEngine(func(ctx context.Context, c *app.RequestContext) {
		c.Set("user", "anna")
		c.Next(ctx)
	}, hertzmw.Use(guard), func(ctx context.Context, c *app.RequestContext) {
		nethttp.SetCost(ctx, "api", 3)
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
		return hertzmw.Use(core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
			Limiter: core.Must(core.New(memstore.New(memstore.Config{}), name, core.FixedWindow(core.PerDay(n)))), Key: keyfuncs.Everyone(),
		}}})))
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
