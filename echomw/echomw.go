package echomw

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/nethttp"
)

// Use returns a middleware that calls the next handler for requests that the guard
// admits, and answers the others. The guard is one of package nethttp or websocketmw. It can be used
// for a server, a group or a route:
//
//	e.Use(echomw.Use(guard))
//	e.POST("/login", login, echomw.Use(logins))
//	e.GET("/ws", upgrade, echomw.Use(sockets))
//
// The refusal is written as under net/http, and no error is returned, unless [Errors] runs
// before. Use panics if the guard is nil.
//
// A WebSocket may be upgraded by any library, on c.Response() and c.Request(), in whose context
// [websocketmw.FromContext] finds the socket.
//
// [websocketmw.FromContext]: https://pkg.go.dev/github.com/headgate/headgate/websocketmw#FromContext
func Use(guard adapter.Guard) echo.MiddlewareFunc {
	carries := adapter.Mount(guard)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { return use(c, next, guard, carries) }
	}
}

// use is not within Use, since the compiler would put the verdict on the heap where an
// application inlines that.
func use(c echo.Context, next echo.HandlerFunc, guard adapter.Guard, carries bool) error {
	visit := framework.Enter(c, carries)
	defer visit.End()
	v := guard.Check(visit.Request)
	if framework.Keeps() {
		framework.Keep(c, v)
	}
	switch {
	case v.Status() != 0:
		return refuse(c, visit.Request, guard, v)
	case v.Upgrades():
		return upgrade(c, next, visit.Request, v)
	}
	v.SetFields(c.Response().Header())
	if v.Ends() {
		return serve(c, next, visit.Request, v)
	}
	return next(c)
}

// errorsKey is the key of true in Echo's context, if Errors ran.
const errorsKey = "github.com/headgate/headgate/echomw.Errors"

// Errors returns a middleware that makes the guards which run after it return refusals as
// errors, for the application's HTTPErrorHandler, instead of writing them:
//
//	e.Use(echomw.Errors(), echomw.Use(guard))
//
// An error is an [*echo.HTTPError] with the status of the refusal, or wraps one, and wraps the
// verdict's Err, if that is not nil. The fields of the response are set, and the guard's OnRefused is
// not called. Refusals of WebSockets are written in any case: no page shows them.
func Errors() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set(errorsKey, true)
			return next(c)
		}
	}
}

// refuse writes a refusal, or returns it as an error.
func refuse(c echo.Context, r *http.Request, guard adapter.Guard, v nethttp.Verdict) error {
	if returned, _ := c.Get(errorsKey).(bool); !returned || v.Attempt() != nil {
		guard.Refuse(c.Response(), r, v)
		return nil
	}
	v.SetFields(c.Response().Header())
	return refusal(v.Status(), v.Err)
}

// serve runs the following handlers and ends the verdict.
func serve(c echo.Context, next echo.HandlerFunc, r *http.Request, v nethttp.Verdict) (err error) {
	begun, watch := v.Begin(r)
	if !watch {
		defer v.End(nethttp.Outcome{})
		return next(c)
	}
	w := new(adapter.Recorder)
	if inner, replace, ok := within(c); ok {
		w.ResponseWriter = inner
		replace(w)
	}
	c.SetRequest(begun)
	returned := false
	defer func() {
		o := outcome(c, err, returned)
		o.Hijacked = w.Hijacked
		v.End(o)
	}()
	err = next(c)
	returned = true
	return err
}

// upgrade runs the following handlers for a socket.
func upgrade(c echo.Context, next echo.HandlerFunc, r *http.Request, v nethttp.Verdict) (err error) {
	inner, replace, known := within(c)
	defer replace(inner)
	v.Upgrade(inner, r, func(w http.ResponseWriter, r *http.Request) int {
		replace(w)
		c.SetRequest(r)
		if err = next(c); known {
			return outcome(c, err, true).Status
		}
		return 0
	})
	return err
}

// KeepVerdict returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	e.Use(echomw.KeepVerdict(), echomw.Use(guard))
//
// Without it, verdicts are not kept, because that takes about 320 ns and 680 bytes a
// request, about as long as the limit itself.
func KeepVerdict() echo.MiddlewareFunc {
	keep := framework.KeepVerdict()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			keep(c)
			return next(c)
		}
	}
}

// Verdict returns the last verdict about the request, for handlers and for the
// application's HTTPErrorHandler. It returns false if no guard has checked the request,
// or if [KeepVerdict] did not run before the guard.
func Verdict(c echo.Context) (nethttp.Verdict, bool) { return framework.Verdict(c) }
