package conformance

import (
	"context"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/echov5mw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A framework serves a handler at all paths behind a guard, or behind a middleware
// that does nothing if that is nil. With keys, they are handed over by the
// framework's LimitBy.
type framework struct {
	name  string
	serve func(g *nethttp.Guard, h http.HandlerFunc, keys ...keyfuncs.Func) http.Handler
}

// frameworks begins with the one that the others are compared with.
var frameworks = []framework{
	{"nethttp", func(g *nethttp.Guard, h http.HandlerFunc, _ ...keyfuncs.Func) http.Handler {
		if g == nil {
			return h
		}
		return g.Handler(h)
	}},
	{"chi", func(g *nethttp.Guard, h http.HandlerFunc, _ ...keyfuncs.Func) http.Handler {
		r := chi.NewRouter()
		if g == nil {
			r.Use(func(next http.Handler) http.Handler { return next })
		} else {
			r.Use(g.Handler)
		}
		r.HandleFunc("/*", h)
		return r
	}},
	{"gin", func(g *nethttp.Guard, h http.HandlerFunc, keys ...keyfuncs.Func) http.Handler {
		r := gin.New()
		var own []ginmw.Key
		for _, key := range keys {
			own = append(own, ginmw.Request(key))
		}
		switch {
		case own != nil:
			r.Use(ginmw.LimitBy(g, own...))
		case g != nil:
			r.Use(ginmw.Limit(g))
		default:
			r.Use(func(*gin.Context) {})
		}
		r.Any("/*path", gin.WrapF(h))
		return r
	}},
	{"echo", func(g *nethttp.Guard, h http.HandlerFunc, keys ...keyfuncs.Func) http.Handler {
		e := echo4.New()
		var own []echomw.Key
		for _, key := range keys {
			own = append(own, echomw.Request(key))
		}
		switch {
		case own != nil:
			e.Use(echomw.LimitBy(g, own...))
		case g != nil:
			e.Use(echomw.Limit(g))
		default:
			e.Use(func(next echo4.HandlerFunc) echo4.HandlerFunc {
				return func(c echo4.Context) error { return next(c) }
			})
		}
		e.Any("/*", echo4.WrapHandler(h))
		return e
	}},
	{"echov5", func(g *nethttp.Guard, h http.HandlerFunc, keys ...keyfuncs.Func) http.Handler {
		e := echo5.New()
		var own []echov5mw.Key
		for _, key := range keys {
			own = append(own, echov5mw.Request(key))
		}
		switch {
		case own != nil:
			e.Use(echov5mw.LimitBy(g, own...))
		case g != nil:
			e.Use(echov5mw.Limit(g))
		default:
			e.Use(func(next echo5.HandlerFunc) echo5.HandlerFunc {
				return func(c *echo5.Context) error { return next(c) }
			})
		}
		e.Any("/*", echo5.WrapHandler(h))
		return e
	}},
}

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	redis.SetLogger(silent{}) // scenarios have no Redis on purpose
	m.Run()
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
