package conformance

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// The Handler of a signed cookie is mounted as the adapters' documentation shows: requests
// without a cookie get one, unless they are refused.
func TestSignedCookie(t *testing.T) {
	cookie, err := keyfuncs.NewSignedCookie("__Host-client", time.Hour, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	for name, mount := range map[string]func(g *nethttp.Guard) http.Handler{
		"nethttp": func(g *nethttp.Guard) http.Handler { return g.Handler(cookie.Handler(answering(204))) },
		"gin": func(g *nethttp.Guard) http.Handler {
			r := gin.New()
			r.Use(ginmw.Middleware(g), ginmw.Middleware(cookie))
			r.GET("/", func(c *gin.Context) { c.Status(204) })
			return r
		},
		"echo": func(g *nethttp.Guard) http.Handler {
			e := echo4.New()
			e.Use(echomw.Middleware(g), echomw.Middleware(cookie))
			e.GET("/", func(c echo4.Context) error { return c.NoContent(204) })
			return e
		},
		"echov5": func(g *nethttp.Guard) http.Handler {
			e := echo5.New()
			e.Use(echov5mw.Middleware(g), echov5mw.Middleware(cookie))
			e.GET("/", func(c *echo5.Context) error { return c.NoContent(204) })
			return e
		},
	} {
		l := core.NewLimiter(new(core.MemoryStore), "api", core.SlidingLog(2, 24*time.Hour))
		guard, err := nethttp.New(rates(nethttp.Rate{Limiter: l, Key: keyfuncs.Everyone()}))
		if err != nil {
			t.Fatal(err)
		}
		h := mount(guard)
		ask := func(with ...*http.Cookie) *http.Response {
			r := httptest.NewRequest("GET", "/", nil)
			for _, c := range with {
				r.AddCookie(c)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result()
		}
		first := ask()
		if first.StatusCode != 204 || len(first.Cookies()) != 1 {
			t.Fatalf("%s: %d %v", name, first.StatusCode, first.Header)
		}
		if a := ask(first.Cookies()...); a.StatusCode != 204 || len(a.Cookies()) != 0 {
			t.Errorf("%s, with the cookie: %d %v", name, a.StatusCode, a.Header)
		}
		if a := ask(); a.StatusCode != 429 || len(a.Cookies()) != 0 {
			t.Errorf("%s, refused: %d %v", name, a.StatusCode, a.Header)
		}
	}
}
