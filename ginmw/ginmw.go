package ginmw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/nethttp"
)

// Use returns a middleware that runs the following handlers for requests that the guard
// admits, and answers and aborts the others. The guard is one of package nethttp or websocketmw. It
// can be used for an engine, a group or a route:
//
//	r.Use(ginmw.Use(guard))
//	r.POST("/login", ginmw.Use(logins), login)
//	r.GET("/ws", ginmw.Use(sockets), upgrade)
//
// The guard's OnRefused is called as under net/http. The verdict's Err, if not nil, is
// added to c.Errors, for the application's logs. Use panics if the guard is nil.
//
// A WebSocket may be upgraded by any library, on c.Writer and c.Request, in whose context
// [websocketmw.FromContext] finds the socket. Put gin.Recovery before the guard, which
// closes the connection of a handler that panics.
//
// [websocketmw.FromContext]: https://pkg.go.dev/github.com/headgate/headgate/websocketmw#FromContext
func Use(guard adapter.Guard) gin.HandlerFunc {
	carries := adapter.Mount(guard)
	return func(c *gin.Context) { use(c, guard, carries) }
}

// use is not within Use, since the compiler would put the verdict on the heap where an
// application inlines that.
func use(c *gin.Context, guard adapter.Guard, carries bool) {
	visit := framework.Enter(c, carries)
	defer visit.End()
	v := guard.Check(visit.Request)
	if framework.Keeps() {
		framework.Keep(c, v)
	}
	switch {
	case v.Status() != 0:
		refuse(c, visit.Request, guard, v)
	case !v.Ends():
		v.SetFields(c.Writer.Header())
	case v.Upgrades():
		upgrade(c, visit.Request, v)
	default:
		v.SetFields(c.Writer.Header())
		serve(c, visit.Request, v)
	}
	// Otherwise Gin calls the next handler itself.
}

// refuse aborts with the refusal.
func refuse(c *gin.Context, r *http.Request, guard adapter.Guard, v nethttp.Verdict) {
	c.Abort()
	if v.Err != nil {
		c.Error(v.Err) //nolint:errcheck // it returns its argument
	}
	c.Status(http.StatusOK) // as under net/http if none is written; Gin would send 404 where no route matched
	guard.Refuse(c.Writer, r, v)
	c.Writer.WriteHeaderNow() // HEAD has no body, and other middleware calls Written
}

// serve runs the following handlers and ends the verdict.
func serve(c *gin.Context, r *http.Request, v nethttp.Verdict) {
	begun, watch := v.Begin(r)
	if !watch {
		defer v.End(nethttp.Outcome{})
		c.Next()
		return
	}
	w := &writer{c.Writer, adapter.Recorder{ResponseWriter: c.Writer}}
	c.Request, c.Writer = begun, w
	returned := false
	defer func() {
		o := nethttp.Outcome{Status: w.Status(), Written: int64(max(w.Size(), 0)), Hijacked: w.recorder.Hijacked}
		if !returned && !w.Written() {
			o.Status = http.StatusInternalServerError
		}
		v.End(o)
	}()
	c.Next()
	returned = true
}

// KeepVerdict returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	r.Use(ginmw.KeepVerdict(), ginmw.Use(guard))
//
// Without it, verdicts are not kept, because that takes about 350 ns and 660 bytes a
// request, longer than the limit itself.
func KeepVerdict() gin.HandlerFunc { return framework.KeepVerdict() }

// Verdict returns the last verdict about the request, for handlers. It returns false if
// no guard has checked the request, or if [KeepVerdict] did not run before the guard.
func Verdict(c *gin.Context) (nethttp.Verdict, bool) { return framework.Verdict(c) }

// A writer is Gin's writer with a recorder of what Gin does not tell.
type writer struct {
	gin.ResponseWriter

	recorder adapter.Recorder
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.recorder.Hijack() }
