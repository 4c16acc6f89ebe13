package ginmw

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/adapter"
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
func Limit(guard *nethttp.Guard) gin.HandlerFunc { return limit(guard, nil) }

// LimitBy is Limit with keys from Gin's context: the i-th is that of the guard's i-th rule, in
// place of a Key if that is not [nethttp.Rule].ByFramework. There must be one for each rule; see
// [Request] for keys from the request.
//
// Middleware that sets charged values, such as authentication, must run before.
// LimitBy panics if the guard or a key is nil, or if the numbers of keys and rules differ.
func LimitBy(guard *nethttp.Guard, keys ...Key) gin.HandlerFunc {
	return limit(guard, framework.Keys("LimitBy", keys...))
}

func limit(guard *nethttp.Guard, keys []Key) gin.HandlerFunc {
	functions := guard.Mount(adapter.Count(keys))
	return func(c *gin.Context) {
		var v nethttp.Verdict
		r := c.Request
		if functions { // not for handlers, as what they start may outlive Gin's context
			r = framework.With(c)
		}
		guard.CheckTo(&v, r, adapter.By(keys, c))
		if keeps.Load() {
			if k, ok := keptIn(c); ok {
				*k = kept{v, true}
			}
		}
		if v.Status() != 0 {
			refuse(c, v.Err, func() { guard.Refuse(c.Writer, r, &v) })
			return
		}
		v.SetFields(c.Writer.Header())
		if tracked, settle := v.Track(r); settle != nil {
			serve(c, tracked, settle)
		}
		// Otherwise Gin calls the next handler itself.
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

// keeps reports whether KeepVerdict was ever called. Without it, every request would look for
// the kept verdict in the context in vain, which takes 10 to 40 ns; the context offers
// no cheaper place for it.
var keeps atomic.Bool //nolint:gochecknoglobals // it affects only the speed

// kept is where [KeepVerdict] keeps the last verdict.
type kept struct {
	verdict nethttp.Verdict
	given   bool
}

func keptIn(c *gin.Context) (*kept, bool) {
	value, _ := c.Get(verdictKey)
	k, ok := value.(*kept)
	return k, ok
}

// KeepVerdict returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	r.Use(ginmw.KeepVerdict(), ginmw.Limit(guard))
//
// Without it, verdicts are not kept, because that takes about 300 ns and 600 bytes a
// request, as long as the limit itself.
func KeepVerdict() gin.HandlerFunc {
	keeps.Store(true)
	return func(c *gin.Context) { c.Set(verdictKey, new(kept)) }
}

// Verdict returns the last verdict about the request, for handlers. It returns false if
// no guard has checked the request, or if [KeepVerdict] did not run before the guard.
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
