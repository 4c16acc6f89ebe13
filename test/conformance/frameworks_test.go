package conformance

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/conformance/scenes"
)

// A framework serves a handler at all paths behind a guard, or behind a middleware
// that does nothing if that is nil.
type framework struct {
	name  string
	serve func(g *nethttp.Guard, h http.HandlerFunc) http.Handler
}

// handed are keys that get the request from the context of a framework.
var handed = map[string]func(key keyfuncs.Func) keyfuncs.Func{
	"gin": func(key keyfuncs.Func) keyfuncs.Func {
		return ginmw.Key(func(c *gin.Context) (string, error) { return key(c.Request) })
	},
	"echo": func(key keyfuncs.Func) keyfuncs.Func {
		return echomw.Key(func(c echo4.Context) (string, error) { return key(c.Request()) })
	},
	"echov5": func(key keyfuncs.Func) keyfuncs.Func {
		return echov5mw.Key(func(c *echo5.Context) (string, error) { return key(c.Request()) })
	},
}

// mounts serve a handler at all paths behind a guard.
var mounts = map[string]func(g scenes.Guard, h http.Handler) http.Handler{
	"nethttp": func(g scenes.Guard, h http.Handler) http.Handler { return g.Handler(h) },
	"chi": func(g scenes.Guard, h http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(g.Handler)
		r.Handle("/*", h)
		return r
	},
	"gin": func(g scenes.Guard, h http.Handler) http.Handler {
		r := gin.New()
		r.Use(ginmw.Middleware(g))
		r.Any("/*path", gin.WrapH(h))
		return r
	},
	"echo": func(g scenes.Guard, h http.Handler) http.Handler {
		e := echo4.New()
		e.Use(echomw.Middleware(g))
		e.Any("/*", echo4.WrapHandler(h))
		return e
	},
	"echov5": func(g scenes.Guard, h http.Handler) http.Handler {
		e := echo5.New()
		e.Use(echov5mw.Middleware(g))
		e.Any("/*", echo5.WrapHandler(h))
		return e
	},
}

// sceneOf is a framework for the scenes.
func sceneOf(name string) scenes.Framework {
	return scenes.Framework{Mount: mounts[name], Key: handed[name]}
}

// keysOf are a key, and what the framework hands over if it has contexts of its own.
func keysOf(framework string, key keyfuncs.Func) []keyfuncs.Func {
	f := sceneOf(framework)
	return f.Keys(key)
}

// Both guards, under all frameworks: the same.
func TestGuards(t *testing.T) {
	for name := range mounts {
		t.Run(name, func(t *testing.T) { scenes.Test(t, sceneOf(name)) })
	}
}

// mountOr mounts a guard, or a middleware that does nothing if that is nil.
func mountOr(name string, none func(h http.Handler) http.Handler) framework {
	return framework{name, func(g *nethttp.Guard, h http.HandlerFunc) http.Handler {
		if g == nil {
			return none(h)
		}
		return mounts[name](g, h)
	}}
}

// frameworks begins with the one that the others are compared with.
var frameworks = []framework{
	mountOr("nethttp", func(h http.Handler) http.Handler { return h }),
	mountOr("chi", func(h http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(func(next http.Handler) http.Handler { return next })
		r.Handle("/*", h)
		return r
	}),
	mountOr("gin", func(h http.Handler) http.Handler {
		r := gin.New()
		r.Use(func(*gin.Context) {})
		r.Any("/*path", gin.WrapH(h))
		return r
	}),
	mountOr("echo", func(h http.Handler) http.Handler {
		e := echo4.New()
		e.Use(func(next echo4.HandlerFunc) echo4.HandlerFunc {
			return func(c echo4.Context) error { return next(c) }
		})
		e.Any("/*", echo4.WrapHandler(h))
		return e
	}),
	mountOr("echov5", func(h http.Handler) http.Handler {
		e := echo5.New()
		e.Use(func(next echo5.HandlerFunc) echo5.HandlerFunc {
			return func(c *echo5.Context) error { return next(c) }
		})
		e.Any("/*", echo5.WrapHandler(h))
		return e
	}),
}

// A key from the context of a framework is a fault of the program where that is not, with each request.
func TestKeyOfAnotherFramework(t *testing.T) {
	limiter := core.NewLimiter(new(core.MemoryStore), "api", core.Unlimited())
	for own, from := range handed {
		everyone := from(keyfuncs.Everyone())
		for name, key := range map[string]keyfuncs.Func{
			"alone":  everyone,
			"all":    keyfuncs.All(keyfuncs.Everyone(), everyone),
			"first":  keyfuncs.First(keyfuncs.Tag("a", keyfuncs.Hashed(everyone))),
			"nested": keyfuncs.First(keyfuncs.Tag("a", keyfuncs.All(everyone)), keyfuncs.Tag("b", keyfuncs.RemoteAddr())),
		} {
			for _, f := range frameworks {
				var refusal *nethttp.Verdict
				c := rates(nethttp.Rate{Limiter: limiter, Key: key})
				c.Observe = func(_ *http.Request, v *nethttp.Verdict) { refusal = v }
				guard, err := nethttp.New(c)
				if err != nil {
					t.Fatal(err)
				}
				a := ask(f.serve(guard, answering(204)), request("GET", "/"))
				want := 500
				if f.name == own {
					want = 204
				}
				if a.Status != want || want == 500 && !errors.Is(refusal, keyfuncs.ErrProgram) {
					t.Errorf("%s, %s under %s: status %d, %v", own, name, f.name, a.Status, refusal)
				}
			}
		}
	}
}

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	redis.SetLogger(silent{}) // scenarios have no Redis on purpose
	proctest.Main(m, proctest.Funcs{"waiting": waiting})
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
