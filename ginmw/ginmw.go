package ginmw

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/nethttp"
)

// Limit returns a middleware that lets the requests pass which the guard admits,
// and answers and aborts the others. It is for a whole engine, a group or a route:
//
//	r.Use(ginmw.Limit(guard))
//	r.POST("/login", ginmw.Limit(logins), login)
//
// The guard's OnDenied is honoured. A refusal that is not for a limit, because
// there is no key or no store, leaves its reason in c.Errors, for the application's
// logs. Limit panics if the guard is nil.
func Limit(guard *nethttp.Guard) gin.HandlerFunc {
	mustGuard(guard)
	return func(c *gin.Context) {
		v := guard.Check(c.Request)
		act(c, guard, &v)
	}
}

// LimitBy is Limit with keys from Gin's context: the i-th is that of the guard's
// i-th rule, in place of the rule's own Key. There must be one for each rule; for
// what is in the request, see [Request]. A rule without one refuses its requests,
// as one that finds no key. [nethttp.Rule].Key is needed all the same, for uses of the
// guard without LimitBy; where there are none, [keyfuncs.RemoteAddr] will do.
//
// What sets the values that are charged, as authentication, must run before.
// LimitBy panics if the guard or a key is nil, or if there is no key.
func LimitBy(guard *nethttp.Guard, keys ...Key) gin.HandlerFunc {
	mustGuard(guard)
	keys = members("LimitBy", keys)
	return func(c *gin.Context) {
		v := guard.CheckKeys(c.Request, func(rule int) (string, error) {
			if rule >= len(keys) {
				return "", errNoKey
			}
			return keys[rule](c)
		})
		act(c, guard, &v)
	}
}

func mustGuard(guard *nethttp.Guard) {
	if guard == nil {
		panic("headgate: ginmw: the guard is nil")
	}
}

// act does what the verdict says.
func act(c *gin.Context, guard *nethttp.Guard, v *nethttp.Verdict) {
	if keeps.Load() {
		if k, ok := keptIn(c); ok {
			*k = kept{*v, true}
		}
	}
	if v.Status() != 0 {
		c.Abort()
		if v.Err != nil {
			c.Error(v.Err) //nolint:errcheck // it returns what it was given
		}
		guard.Deny(c.Writer, c.Request, *v)
		c.Writer.WriteHeaderNow() // HEAD has no body: others ask Gin what was written
		return
	}
	v.SetFields(c.Writer.Header())
	if tracked, settle := v.Track(c.Request); settle != nil {
		serve(c, tracked, settle)
	}
	// Otherwise Gin goes on by itself.
}

// serve runs the handlers that follow, and settles what they cost.
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

// keeps is whether Keep was ever called: looking in vain costs a tenth of the limit.
var keeps atomic.Bool //nolint:gochecknoglobals // it changes nothing but the speed

// kept is what [Keep] makes room for.
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
// Without it they are not kept, for that costs more than half of what the limit does.
func Keep() gin.HandlerFunc {
	keeps.Store(true)
	return func(c *gin.Context) { c.Set(verdictKey, new(kept)) }
}

// Verdict returns the last verdict about the request, for handlers. It reports
// false if no guard was asked, or if [Keep] did not run before it.
func Verdict(c *gin.Context) (nethttp.Verdict, bool) {
	if k, ok := keptIn(c); ok {
		return k.verdict, k.given
	}
	return nethttp.Verdict{}, false
}

// A writer notes that the connection was taken over, which Gin's does not tell.
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
