package ginmw

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"

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
	mustGuard(guard)
	return func(c *gin.Context) {
		var v nethttp.Verdict
		guard.CheckTo(&v, c.Request, nil)
		act(c, guard, &v)
	}
}

// LimitBy is Limit with keys from Gin's context: the i-th key replaces the Key of the
// guard's i-th rule. There must be one for each rule; see [Request] for keys from the
// request. [nethttp.Rule].Key is required all the same, because the guard can be used
// without LimitBy; if it is not, [keyfuncs.RemoteAddr] will do.
//
// Middleware that sets charged values, such as authentication, must run before.
// LimitBy panics if the guard or a key is nil, or if the numbers of keys and rules differ.
func LimitBy(guard *nethttp.Guard, keys ...Key) gin.HandlerFunc {
	mustGuard(guard)
	keys = perRule("LimitBy", guard.Rules(), keys)
	return func(c *gin.Context) {
		var v nethttp.Verdict
		guard.CheckTo(&v, c.Request, func(rule int) (string, error) { return keys[rule](c) })
		act(c, guard, &v)
	}
}

func mustGuard(guard *nethttp.Guard) {
	if guard == nil {
		panic("headgate: ginmw: the guard is nil")
	}
}

// act carries the verdict out.
func act(c *gin.Context, guard *nethttp.Guard, v *nethttp.Verdict) {
	if keeps.Load() {
		if k, ok := keptIn(c); ok {
			*k = kept{*v, true}
		}
	}
	if v.Status() != 0 {
		c.Abort()
		if v.Err != nil {
			c.Error(v.Err) //nolint:errcheck // it returns its argument
		}
		c.Status(http.StatusOK) // as under net/http if none is written; Gin would send 404 where no route matched
		guard.Refuse(c.Writer, c.Request, v)
		c.Writer.WriteHeaderNow() // HEAD has no body, and other middleware calls Written
		return
	}
	v.SetFields(c.Writer.Header())
	if tracked, settle := v.Track(c.Request); settle != nil {
		serve(c, tracked, settle)
	}
	// Otherwise Gin calls the next handler itself.
}

// serve runs the following handlers and settles the charge.
func serve(c *gin.Context, tracked *http.Request, settle func(nethttp.Outcome)) {
	w := &writer{ResponseWriter: c.Writer}
	c.Request, c.Writer = tracked, w
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

// verdictKey is the key of *kept in Gin's context.
const verdictKey = "github.com/headgate/headgate/ginmw.Verdict"

// keeps reports whether Keep was ever called. Without it, every request would look for
// the kept verdict in the context in vain, which takes 10 to 40 ns; the context offers
// no cheaper place for it.
var keeps atomic.Bool //nolint:gochecknoglobals // it affects only the speed

// kept is where [Keep] keeps the last verdict.
type kept struct {
	verdict nethttp.Verdict
	given   bool
}

func keptIn(c *gin.Context) (*kept, bool) {
	value, _ := c.Get(verdictKey)
	k, ok := value.(*kept)
	return k, ok
}

// Keep returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	r.Use(ginmw.Keep(), ginmw.Limit(guard))
//
// Without it, verdicts are not kept, because that takes about 300 ns and 600 bytes a
// request, as long as the limit itself.
func Keep() gin.HandlerFunc {
	keeps.Store(true)
	return func(c *gin.Context) { c.Set(verdictKey, new(kept)) }
}

// Verdict returns the last verdict about the request, for handlers. It returns false if
// no guard has checked the request, or if [Keep] did not run before the guard.
func Verdict(c *gin.Context) (nethttp.Verdict, bool) {
	if k, ok := keptIn(c); ok {
		return k.verdict, k.given
	}
	return nethttp.Verdict{}, false
}

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
