package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
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
		r.Use(ginmw.Use(g))
		r.Any("/*path", gin.WrapH(h))
		return r
	},
	"echo": func(g scenes.Guard, h http.Handler) http.Handler {
		e := echo4.New()
		e.Use(echomw.Use(g))
		e.Any("/*", echo4.WrapHandler(h))
		return e
	},
	"echov5": func(g scenes.Guard, h http.Handler) http.Handler {
		e := echo5.New()
		e.Use(echov5mw.Use(g))
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

// A key from the context of a framework is a fault of the program where that is not: without an
// adapter when the guard is mounted, and under another framework with each request.
func TestKeyOfAnotherFramework(t *testing.T) {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "api", core.Unlimited()))
	for own, from := range handed {
		for name, key := range map[string]keyfuncs.Func{
			"alone":  from(keyfuncs.Everyone()),
			"all":    keyfuncs.All(keyfuncs.Everyone(), from(keyfuncs.Everyone())),
			"first":  keyfuncs.First(keyfuncs.Hashed(from(keyfuncs.Everyone()))),
			"nested": keyfuncs.First(keyfuncs.All(from(keyfuncs.Everyone()))),
		} {
			for _, f := range frameworks {
				var refusal nethttp.Verdict
				c := rules(nethttp.Rule{Limiter: limiter, Key: key})
				c.Observe = func(_ *http.Request, v nethttp.Verdict) { refusal = v }
				h, panics := mounted(f, core.Must(nethttp.New(c)))
				if without := handed[f.name] == nil; without || h == nil {
					if !without || !strings.Contains(panics, `Rules[0].Key (limiter "api") is from a framework's context`) {
						t.Errorf("%s, %s under %s: panic %q", own, name, f.name, panics)
					}
					continue
				}
				a := ask(h, request("GET", "/"))
				if f.name == own {
					if a.Status != 204 {
						t.Errorf("%s, %s under %s: status %d", own, name, f.name, a.Status)
					}
				} else if a.Status != 500 || !errors.Is(refusal.Err, keyfuncs.ErrProgram) || !strings.Contains(refusal.Err.Error(), "did not pass") {
					t.Errorf("%s, %s under %s: status %d, %v", own, name, f.name, a.Status, refusal.Err)
				}
			}
		}
	}
}

// mounted returns the handler behind a guard, or the text of the panic.
func mounted(f framework, g *nethttp.Guard) (h http.Handler, panics string) {
	defer func() {
		if p := recover(); p != nil {
			h, panics = nil, fmt.Sprint(p)
		}
	}()
	h = f.serve(g, answering(204))
	// A router may mount its middleware with the first request.
	h.ServeHTTP(httptest.NewRecorder(), request("GET", "/"))
	return h, ""
}

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	redis.SetLogger(silent{}) // scenarios have no Redis on purpose
	proctest.Main(m, proctest.Funcs{"waiting": waiting})
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
