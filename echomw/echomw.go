package echomw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/inflight"
	"github.com/headgate/headgate/nethttp"
)

// Limit returns a middleware that calls the next handler for requests that the guard
// admits, and answers the others. It can be used for a server, a group or a route:
//
//	e.Use(echomw.Limit(guard))
//	e.POST("/login", login, echomw.Limit(logins))
//
// The refusal is written as under net/http, and no error is returned, unless [Errors] runs
// before. Limit panics if the guard is nil.
func Limit(guard *nethttp.Guard) echo.MiddlewareFunc {
	carries := guard.Mount()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { return limit(c, next, guard, carries) }
	}
}

// limit is not within Limit, since the compiler would put the verdict on the heap where an
// application inlines that.
func limit(c echo.Context, next echo.HandlerFunc, guard *nethttp.Guard, carries bool) error {
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
//	e.POST("/export", export, echomw.InFlight(guard))
func InFlight(guard *inflight.Guard) echo.MiddlewareFunc {
	carries := guard.Mount()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
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
const errorsKey = "github.com/headgate/headgate/echomw.Errors"

// Errors returns a middleware that makes the guards which run after it return refusals as
// errors, for the application's HTTPErrorHandler, instead of writing them:
//
//	e.Use(echomw.Errors(), echomw.Limit(guard))
//
// An error is an [*echo.HTTPError] with the status of the refusal, and its Internal is the
// verdict's Err, nil for a limit.
// The fields of the response are set, and the guard's OnRefused is not called. Refusals of
// [Sockets] are written in any case: no page shows them.
func Errors() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set(errorsKey, true)
			return next(c)
		}
	}
}

// refuse writes a refusal, or returns it as an error. A preflight is none.
func refuse(c echo.Context, status int, cause error, fields func(http.Header), write func()) error {
	if returned, _ := c.Get(errorsKey).(bool); !returned || status < http.StatusBadRequest {
		write()
		return nil
	}
	fields(c.Response().Header())
	return &echo.HTTPError{Code: status, Message: http.StatusText(status), Internal: cause}
}

// serve runs the following handlers and settles the charge.
func serve(c echo.Context, next echo.HandlerFunc, begun *http.Request, settle func(nethttp.Outcome)) (err error) {
	response := c.Response()
	w := &writer{ResponseWriter: response.Writer}
	response.Writer = w
	c.SetRequest(begun)
	returned := false
	defer func() {
		o := nethttp.Outcome{Status: response.Status, Written: response.Size, Hijacked: w.hijacked}
		if !response.Committed && (err != nil || !returned) {
			o.Status = statusOf(err)
		}
		settle(o)
	}()
	err = next(c)
	returned = true
	return err
}

// statusOf is what Echo's error handler will answer; nil stands for a panic. Like
// that handler it does not look into errors of other types.
func statusOf(err error) int {
	he, ok := err.(*echo.HTTPError) //nolint:errorlint // see above
	if !ok {
		return http.StatusInternalServerError
	}
	if inner, ok := he.Internal.(*echo.HTTPError); ok { //nolint:errorlint // see above
		return inner.Code
	}
	return he.Code
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
//	e.Use(echomw.KeepVerdict(), echomw.Limit(guard))
//
// Without it, verdicts are not kept, because that takes about 320 ns and 680 bytes a
// request, longer than the limit itself.
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
