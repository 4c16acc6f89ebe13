package echov5mw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/inflight"
	"github.com/headgate/headgate/nethttp"
)

// Limit returns a middleware that calls the next handler for requests that the guard
// admits, and answers the others. It can be used for a server, a group or a route:
//
//	e.Use(echov5mw.Limit(guard))
//	e.POST("/login", login, echov5mw.Limit(logins))
//
// The refusal is written as under net/http, and no error is returned, unless [Errors] runs
// before. Limit panics if the guard is nil.
func Limit(guard *nethttp.Guard) echo.MiddlewareFunc {
	carries := guard.Mount()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error { return limit(c, next, guard, carries) }
	}
}

// limit is not within Limit, since the compiler would put the verdict on the heap where an
// application inlines that.
func limit(c *echo.Context, next echo.HandlerFunc, guard *nethttp.Guard, carries bool) error {
	visit := framework.Enter(c, carries)
	defer visit.End()
	var v nethttp.Verdict
	guard.CheckTo(&v, visit.Request)
	framework.Keep(c, &v)
	if v.Status() != 0 {
		return refuse(c, v.Status(), v.Err, v.SetFields, func() { guard.Refuse(c.Response(), visit.Request, &v) })
	}
	v.SetFields(c.Response().Header())
	if begun, settle := v.Begin(visit.Request); settle != nil {
		return serve(c, next, begun, settle)
	}
	return next(c)
}

// InFlight returns a middleware that holds a slot for each request while the next handler runs.
// It answers requests for which there is no slot in time, as [Limit] does. It panics if the guard
// is nil.
//
//	e.POST("/export", export, echov5mw.InFlight(guard))
func InFlight(guard *inflight.Guard) echo.MiddlewareFunc {
	carries := guard.Mount()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			visit := framework.Enter(c, carries)
			defer visit.End()
			v := guard.Check(visit.Request)
			if v.Status() != 0 {
				return refuse(c, v.Status(), v.Err, v.SetFields, func() { guard.Refuse(c.Response(), visit.Request, v) })
			}
			defer v.Release()
			v.SetFields(c.Response().Header())
			return next(c)
		}
	}
}

// errorsKey is the key of true in Echo's context, if Errors ran.
const errorsKey = "github.com/headgate/headgate/echov5mw.Errors"

// Errors returns a middleware that makes the guards which run after it return refusals as
// errors, for the application's HTTPErrorHandler, instead of writing them:
//
//	e.Use(echov5mw.Errors(), echov5mw.Limit(guard))
//
// An error is an [*echo.HTTPError] with the status of the refusal, or wraps one, and the
// verdict's Err, if that is not nil.
// The fields of the response are set, and the guard's OnRefused is not called. Refusals of
// [Sockets] are written in any case: no page shows them.
func Errors() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.Set(errorsKey, true)
			return next(c)
		}
	}
}

// refuse writes a refusal, or returns it as an error. A preflight is none.
func refuse(c *echo.Context, status int, cause error, fields func(http.Header), write func()) error {
	if returned, _ := c.Get(errorsKey).(bool); !returned || status < http.StatusBadRequest {
		write()
		return nil
	}
	fields(c.Response().Header())
	err := &echo.HTTPError{Code: status, Message: http.StatusText(status)}
	if cause == nil {
		return err
	}
	return err.Wrap(cause)
}

// serve runs the following handlers and settles the charge.
func serve(c *echo.Context, next echo.HandlerFunc, begun *http.Request, settle func(nethttp.Outcome)) (err error) {
	w := &writer{}
	if response, e := echo.UnwrapResponse(c.Response()); e == nil {
		w.ResponseWriter = response.ResponseWriter
		response.ResponseWriter = w
	}
	c.SetRequest(begun)
	returned := false
	defer func() {
		response, status := echo.ResolveResponseStatus(c.Response(), err)
		o := nethttp.Outcome{Status: status, Hijacked: w.hijacked}
		if response != nil {
			o.Written = response.Size
		}
		if !returned && (response == nil || !response.Committed) {
			o.Status = http.StatusInternalServerError
		}
		settle(o)
	}()
	err = next(c)
	returned = true
	return err
}

// A writer records whether the connection was hijacked, which Echo's does not.
type writer struct {
	http.ResponseWriter

	hijacked bool
}

// Unwrap is for [http.ResponseController], by which Echo flushes.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = w.hijacked || err == nil
	return conn, rw, err
}

// KeepVerdict returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	e.Use(echov5mw.KeepVerdict(), echov5mw.Limit(guard))
//
// Without it, verdicts are not kept, because that takes about 200 ns and 320 bytes a
// request, as long as the limit itself.
func KeepVerdict() echo.MiddlewareFunc {
	keep := framework.KeepVerdict()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			keep(c)
			return next(c)
		}
	}
}

// Verdict returns the last verdict about the request, for handlers and for the
// application's HTTPErrorHandler. It returns false if no guard has checked the request,
// or if [KeepVerdict] did not run before the guard.
func Verdict(c *echo.Context) (nethttp.Verdict, bool) { return framework.Verdict(c) }
