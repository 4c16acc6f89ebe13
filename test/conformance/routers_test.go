package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A router serves GET /api/items and GET /api/files/, behind a guard of the whole server,
// of what begins with /api, or of the two routes.
type router func(g *nethttp.Guard, where string, h http.HandlerFunc) http.Handler

func withMux(g *nethttp.Guard, where string, h http.HandlerFunc) http.Handler {
	var route http.Handler = h
	if where == "routes" {
		route = g.Handler(h)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /api/items", route)
	mux.Handle("GET /api/files/", route)
	switch where {
	case "server":
		return g.Handler(mux)
	case "group":
		outer := http.NewServeMux()
		outer.Handle("/api/", g.Handler(mux))
		return outer
	}
	return mux
}

func withChi(g *nethttp.Guard, where string, h http.HandlerFunc) http.Handler {
	r := chi.NewRouter()
	if where == "server" {
		r.Use(g.Handler)
	}
	r.Route("/api", func(r chi.Router) {
		switch where {
		case "group":
			r.Use(g.Handler)
		case "routes":
			r = r.With(g.Handler)
		}
		r.Get("/items", h)
		r.Get("/files/", h)
	})
	return r
}

func withGin(g *nethttp.Guard, where string, h http.HandlerFunc) http.Handler {
	r := gin.New()
	r.RedirectFixedPath = true
	if where == "server" {
		r.Use(ginmw.Middleware(g))
	}
	api := r.Group("/api")
	if where == "group" {
		api.Use(ginmw.Middleware(g))
	}
	handlers := []gin.HandlerFunc{gin.WrapF(h)}
	if where == "routes" {
		handlers = append([]gin.HandlerFunc{ginmw.Middleware(g)}, handlers...)
	}
	api.GET("/items", handlers...)
	api.GET("/files/", handlers...)
	if where == "around" {
		return g.Handler(r)
	}
	return r
}

func withEcho(g *nethttp.Guard, where string, h http.HandlerFunc) http.Handler {
	e := echo4.New()
	if where == "server" {
		e.Use(echomw.Middleware(g))
	}
	api := e.Group("/api")
	if where == "group" {
		api.Use(echomw.Middleware(g))
	}
	var own []echo4.MiddlewareFunc
	if where == "routes" {
		own = append(own, echomw.Middleware(g))
	}
	api.GET("/items", echo4.WrapHandler(h), own...)
	api.GET("/files/", echo4.WrapHandler(h), own...)
	return e
}

func withEchoV5(g *nethttp.Guard, where string, h http.HandlerFunc) http.Handler {
	e := echo5.New()
	if where == "server" {
		e.Use(echov5mw.Middleware(g))
	}
	api := e.Group("/api")
	if where == "group" {
		api.Use(echov5mw.Middleware(g))
	}
	var own []echo5.MiddlewareFunc
	if where == "routes" {
		own = append(own, echov5mw.Middleware(g))
	}
	api.GET("/items", echo5.WrapHandler(h), own...)
	api.GET("/files/", echo5.WrapHandler(h), own...)
	return e
}

// No router calls a handler that is behind a guard without asking the guard. What routers
// answer by themselves, some do before the guard; the documentation says which.
func TestRouters(t *testing.T) {
	requests := []string{
		"GET /api/items", "GET /api/items/", "GET /api/files", "GET /api//items", "GET /API/items", "GET /api/none", "GET /api", "GET /none",
		"POST /api/items", "OPTIONS /api/items", "HEAD /api/items",
	}
	for _, test := range []struct {
		name   string
		serve  router
		where  string
		before []string // what is answered before the guard
	}{
		{"ServeMux", withMux, "server", nil},
		{"ServeMux", withMux, "group", []string{"307 GET /api//items", "404 GET /API/items", "307 GET /api", "404 GET /none"}},
		{"ServeMux", withMux, "routes", []string{
			"404 GET /api/items/", "307 GET /api/files", "307 GET /api//items", "404 GET /API/items", "404 GET /api/none", "404 GET /api",
			"404 GET /none", "405 POST /api/items", "405 OPTIONS /api/items",
		}},
		{"chi", withChi, "server", nil},
		{"chi", withChi, "group", []string{"404 GET /API/items", "404 GET /none"}},
		{"chi", withChi, "routes", []string{
			"404 GET /api/items/", "404 GET /api/files", "404 GET /api//items", "404 GET /API/items", "404 GET /api/none", "404 GET /api",
			"404 GET /none", "405 POST /api/items", "405 OPTIONS /api/items", "405 HEAD /api/items",
		}},
		{"gin", withGin, "around", nil},
		{"gin", withGin, "server", []string{"301 GET /api/items/", "301 GET /api/files", "301 GET /api//items", "301 GET /API/items"}},
		{"gin", withGin, "group", []string{
			"301 GET /api/items/", "301 GET /api/files", "301 GET /api//items", "301 GET /API/items", "404 GET /api/none", "404 GET /api",
			"404 GET /none", "404 POST /api/items", "404 OPTIONS /api/items", "404 HEAD /api/items",
		}},
		{"gin", withGin, "routes", []string{
			"301 GET /api/items/", "301 GET /api/files", "301 GET /api//items", "301 GET /API/items", "404 GET /api/none", "404 GET /api",
			"404 GET /none", "404 POST /api/items", "404 OPTIONS /api/items", "404 HEAD /api/items",
		}},
		{"echo", withEcho, "server", nil},
		{"echo", withEcho, "group", []string{"404 GET /API/items", "404 GET /none"}},
		{"echo", withEcho, "routes", []string{
			"404 GET /api/items/", "404 GET /api/files", "404 GET /api//items", "404 GET /API/items", "404 GET /api/none", "404 GET /api",
			"404 GET /none", "405 POST /api/items", "204 OPTIONS /api/items", "405 HEAD /api/items",
		}},
		{"echov5", withEchoV5, "server", nil},
		{"echov5", withEchoV5, "group", []string{"404 GET /API/items", "404 GET /none"}},
		{"echov5", withEchoV5, "routes", []string{
			"404 GET /api/items/", "404 GET /api/files", "404 GET /api//items", "404 GET /API/items", "404 GET /api/none", "404 GET /api",
			"404 GET /none", "405 POST /api/items", "204 OPTIONS /api/items", "405 HEAD /api/items",
		}},
	} {
		t.Run(test.name+" "+test.where, func(t *testing.T) {
			l := core.NewLimiter(new(core.MemoryStore), "api", core.Unlimited())
			asked, ran := false, false
			c := rates(nethttp.Rate{Limiter: l, Key: keyfuncs.Everyone()})
			c.Observe = func(*http.Request, *nethttp.Verdict) { asked = true }
			guard, err := nethttp.New(c)
			if err != nil {
				t.Fatal(err)
			}
			h := test.serve(guard, test.where, func(http.ResponseWriter, *http.Request) { ran = true })
			var before []string
			for _, line := range requests {
				asked, ran = false, false
				method, target, _ := strings.Cut(line, " ")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
				if ran && !asked {
					t.Errorf("%s: the handler ran, and the guard was not asked", line)
				}
				if !asked {
					before = append(before, fmt.Sprintf("%d %s", w.Code, line))
				}
			}
			if !slices.Equal(before, test.before) {
				t.Errorf("answered before the guard:\n%q, want\n%q", before, test.before)
			}
		})
	}
}

// Where a router finds the route by another path than r.URL.Path, a Skip, Cost or Plan
// that compares paths can be evaded. The documentation of nethttp warns of that.
func TestPathsAreNotRoutes(t *testing.T) {
	type routes func(to func(route string) http.HandlerFunc) http.Handler
	chiWith := func(mw ...func(http.Handler) http.Handler) routes {
		return func(to func(string) http.HandlerFunc) http.Handler {
			r := chi.NewRouter()
			r.Use(mw...)
			r.Get("/export", to("/export"))
			r.Get("/{id}", to("/{id}"))
			return r
		}
	}
	ginWith := func(set func(*gin.Engine)) routes {
		return func(to func(string) http.HandlerFunc) http.Handler {
			r := gin.New()
			set(r)
			r.GET("/export", gin.WrapF(to("/export")))
			r.GET("/:id", gin.WrapF(to("/{id}")))
			return r
		}
	}
	for _, test := range []struct {
		name   string
		routes routes
		target string
		path   string // what the guard sees
		route  string // what is served
	}{
		{"ServeMux", func(to func(string) http.HandlerFunc) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/export", to("/export"))
			mux.Handle("/{id}", to("/{id}"))
			return mux
		}, "/%65xport", "/export", "/export"},
		{"chi", chiWith(), "/%65xport", "/export", "/{id}"},
		{"chi, StripSlashes", chiWith(middleware.StripSlashes), "/export/", "/export/", "/export"},
		{"chi, CleanPath", chiWith(middleware.CleanPath), "//export", "//export", "/export"},
		{"gin", ginWith(func(*gin.Engine) {}), "/%65xport", "/export", "/export"},
		{"gin, UseRawPath", ginWith(func(r *gin.Engine) { r.UseRawPath = true }), "/%65xport", "/export", "/{id}"},
		{"gin, RemoveExtraSlash", ginWith(func(r *gin.Engine) { r.RemoveExtraSlash = true }), "//export", "//export", "/export"},
		{"echo", func(to func(string) http.HandlerFunc) http.Handler {
			e := echo4.New()
			e.GET("/export", echo4.WrapHandler(to("/export")))
			e.GET("/:id", echo4.WrapHandler(to("/{id}")))
			return e
		}, "/%65xport", "/export", "/{id}"},
		{"echov5", func(to func(string) http.HandlerFunc) http.Handler {
			e := echo5.New()
			e.GET("/export", echo5.WrapHandler(to("/export")))
			e.GET("/:id", echo5.WrapHandler(to("/{id}")))
			return e
		}, "/%65xport", "/export", "/{id}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var path, route string
			c := rates(nethttp.Rate{Key: keyfuncs.Everyone(), Cost: func(r *http.Request) int64 {
				path = r.URL.Path
				return 1
			}})
			l := core.NewLimiter(new(core.MemoryStore), "api", core.Unlimited())
			c.Rates[0].Limiter = l
			guard, err := nethttp.New(c)
			if err != nil {
				t.Fatal(err)
			}
			h := guard.Handler(test.routes(func(name string) http.HandlerFunc {
				return func(http.ResponseWriter, *http.Request) { route = name }
			}))
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://a"+test.target, nil))
			if path != test.path || route != test.route {
				t.Errorf("the guard sees %q, and the router serves %q; want %q and %q", path, route, test.path, test.route)
			}
		})
	}
}
