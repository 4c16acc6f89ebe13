package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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

// An engine is a framework that has contexts of its own.
type engine struct {
	name string
	user keyfuncs.Func // from the context

	// serve signs a user in and calls h behind the guard.
	serve func(user string, g *nethttp.Guard, h http.Handler) http.Handler
}

var engines = []engine{
	{"gin", ginmw.Value("user"), func(user string, g *nethttp.Guard, h http.Handler) http.Handler {
		r := gin.New()
		r.Use(func(c *gin.Context) { c.Set("user", user) }, ginmw.Middleware(g))
		r.Any("/*path", gin.WrapH(h))
		return r
	}},
	{"echo", echomw.Value("user"), func(user string, g *nethttp.Guard, h http.Handler) http.Handler {
		e := echo4.New()
		e.Use(func(next echo4.HandlerFunc) echo4.HandlerFunc {
			return func(c echo4.Context) error {
				c.Set("user", user)
				return next(c)
			}
		}, echomw.Middleware(g))
		e.Any("/*", echo4.WrapHandler(h))
		return e
	}},
	{"echov5", echov5mw.Value("user"), func(user string, g *nethttp.Guard, h http.Handler) http.Handler {
		e := echo5.New()
		e.Use(func(next echo5.HandlerFunc) echo5.HandlerFunc {
			return func(c *echo5.Context) error {
				c.Set("user", user)
				return next(c)
			}
		}, echov5mw.Middleware(g))
		e.Any("/*", echo5.WrapHandler(h))
		return e
	}},
}

// wrapped returns a function around a key that nothing is known about.
func wrapped(key keyfuncs.Func) keyfuncs.Func {
	return func(r *http.Request) (string, error) { return key(r) }
}

// combinators are all of package keyfuncs, around a key.
var combinators = map[string]func(key keyfuncs.Func) keyfuncs.Func{
	"itself": func(key keyfuncs.Func) keyfuncs.Func { return key },
	"All":    func(key keyfuncs.Func) keyfuncs.Func { return keyfuncs.All(keyfuncs.Everyone(), key) },
	"First": func(key keyfuncs.Func) keyfuncs.Func {
		return keyfuncs.First(keyfuncs.Tag("a", keyfuncs.Header("X-Absent")), keyfuncs.Tag("b", key), keyfuncs.Tag("c", keyfuncs.RemoteAddr()))
	},
	"Hashed": keyfuncs.Hashed,
	"From": func(key keyfuncs.Func) keyfuncs.Func {
		return keyfuncs.From(func(r *http.Request) (string, bool) {
			text, err := key(r)
			return text, err == nil
		})
	},
	"nested": func(key keyfuncs.Func) keyfuncs.Func {
		return keyfuncs.First(keyfuncs.Tag("a", keyfuncs.All(keyfuncs.Hashed(key), keyfuncs.Everyone())))
	},
}

// charged returns a guard, and a function that returns the keys that it has charged.
func charged(t *testing.T, key keyfuncs.Func, observed bool) (*nethttp.Guard, func() []string) {
	t.Helper()
	var keys []string
	limiter := core.NewLimiter(new(core.MemoryStore), "api", core.SlidingLog(100, 24*time.Hour))
	c := nethttp.Config{Rates: []nethttp.Rate{{Limiter: limiter, Key: func(r *http.Request) (string, error) {
		text, err := key(r)
		keys = append(keys, fmt.Sprint(text, " ", err != nil))
		return text, err
	}}}}
	if observed {
		c.Observe = func(*http.Request, *nethttp.Verdict) {}
	}
	guard, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return guard, func() []string { return keys }
}

// Whatever is around the key of a framework, and whatever else the guard has, it is found.
func TestKeysAreFoundWhateverIsAroundThem(t *testing.T) {
	for _, e := range engines {
		for name, combine := range combinators {
			want := ""
			for _, key := range []keyfuncs.Func{combine(e.user), combine(wrapped(e.user)), wrapped(combine(e.user)), wrapped(combine(wrapped(e.user)))} {
				for _, observed := range []bool{false, true} {
					guard, keys := charged(t, key, observed)
					w := httptest.NewRecorder()
					e.serve("anna", guard, answering(204)).ServeHTTP(w, request("GET", "/"))
					got := fmt.Sprint(w.Code, keys())
					if want == "" {
						want = got
					}
					if got != want || w.Code != 204 || strings.Contains(got, "true") {
						t.Errorf("%s, %s, observed %v: %s, want %s", e.name, name, observed, got, want)
					}
				}
			}
		}
	}
}

// A framework within another, or within itself: the guard of the inner one charges whom that
// knows, and the key of a framework that is not around it is a fault.
func TestKeysOfNestedEngines(t *testing.T) {
	for _, outer := range engines {
		for _, inner := range engines {
			for _, observed := range []bool{false, true} {
				around, _ := charged(t, outer.user, observed)
				guard, keys := charged(t, wrapped(inner.user), observed)
				h := outer.serve("olga", around, inner.serve("ivan", guard, answering(204)))
				w := httptest.NewRecorder()
				h.ServeHTTP(w, request("GET", "/"))
				if got := fmt.Sprint(w.Code, keys()); got != "204 [ivan false]" {
					t.Errorf("%s within %s, observed %v: %s", inner.name, outer.name, observed, got)
				}
			}
		}
	}
}
