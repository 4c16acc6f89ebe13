package ginmw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/inflight"
	"github.com/headgate/headgate/nethttp"
)

// Limit returns a middleware that runs the following handlers for requests that the guard
// admits, and answers and aborts the others. It can be used for an engine, a group or a
// route:
//
//	r.Use(ginmw.Limit(guard))
//	r.POST("/login", ginmw.Limit(logins), login)
//
// The guard's OnRefused is called as under net/http. The verdict's Err, if not nil, is
// added to c.Errors, for the application's logs. Limit panics if the guard is nil.
func Limit(guard *nethttp.Guard) gin.HandlerFunc {
	carries := guard.Mount()
	return func(c *gin.Context) { limit(c, guard, carries) }
}

// limit is not within Limit, since the compiler would put the verdict on the heap where an
// application inlines that.
func limit(c *gin.Context, guard *nethttp.Guard, carries bool) {
	visit := framework.Enter(c, carries)
	defer visit.End()
	var v nethttp.Verdict
	guard.CheckTo(&v, visit.Request)
	framework.Keep(c, &v)
	if v.Status() != 0 {
		refuse(c, v.Err, func() { guard.Refuse(c.Writer, visit.Request, &v) })
		return
	}
	v.SetFields(c.Writer.Header())
	if begun, settle := v.Begin(visit.Request); settle != nil {
		serve(c, begun, settle)
	}
	// Otherwise Gin calls the next handler itself.
}

// InFlight returns a middleware that holds a slot for each request while the following handlers
// run. It answers and aborts requests for which there is no slot in time, as [Limit] does. It
// panics if the guard is nil.
//
//	r.POST("/export", ginmw.InFlight(guard), export)
func InFlight(guard *inflight.Guard) gin.HandlerFunc {
	carries := guard.Mount()
	return func(c *gin.Context) {
		visit := framework.Enter(c, carries)
		defer visit.End()
		v := guard.Check(visit.Request)
		if v.Status() != 0 {
			refuse(c, v.Err, func() { guard.Refuse(c.Writer, visit.Request, v) })
			return
		}
		defer v.Release()
		v.SetFields(c.Writer.Header())
		c.Next()
	}
}

// refuse aborts with the response that write writes.
func refuse(c *gin.Context, err error, write func()) {
	c.Abort()
	if err != nil {
		c.Error(err) //nolint:errcheck // it returns its argument
	}
	c.Status(http.StatusOK) // as under net/http if none is written; Gin would send 404 where no route matched
	write()
	c.Writer.WriteHeaderNow() // HEAD has no body, and other middleware calls Written
}

// serve runs the following handlers and settles the charge.
func serve(c *gin.Context, begun *http.Request, settle func(nethttp.Outcome)) {
	w := &writer{ResponseWriter: c.Writer}
	c.Request, c.Writer = begun, w
	returned := false
	defer func() {
		o := nethttp.Outcome{Status: w.Status(), Written: int64(max(w.Size(), 0)), Hijacked: w.hijacked}
		if !returned && !w.Written() {
			o.Status = http.StatusInternalServerError
		}
		settle(o)
	}()
	c.Next()
	returned = true
}

// KeepVerdict returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	r.Use(ginmw.KeepVerdict(), ginmw.Limit(guard))
//
// Without it, verdicts are not kept, because that takes about 350 ns and 660 bytes a
// request, longer than the limit itself.
func KeepVerdict() gin.HandlerFunc { return framework.KeepVerdict() }

// Verdict returns the last verdict about the request, for handlers. It returns false if
// no guard has checked the request, or if [KeepVerdict] did not run before the guard.
func Verdict(c *gin.Context) (nethttp.Verdict, bool) { return framework.Verdict(c) }

// A writer records whether the connection was hijacked, which Gin's does not.
type writer struct {
	gin.ResponseWriter

	hijacked bool
}

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.ResponseWriter.Hijack()
	w.hijacked = w.hijacked || err == nil
	return conn, rw, err
}
