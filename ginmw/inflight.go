package ginmw

import (
	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/inflight"
)

// InFlight returns a middleware that holds a slot for each request while the following handlers
// run. It answers and aborts requests for which there is no slot in time. It panics if the
// guard is nil.
//
//	r.POST("/export", ginmw.InFlight(guard), export)
//
// As under [Limit], the verdict's Err, if not nil, is added to c.Errors.
func InFlight(guard *inflight.Guard) gin.HandlerFunc {
	mustInFlight(guard)
	return func(c *gin.Context) { actInFlight(c, guard, guard.Check(c.Request)) }
}

// InFlightBy is InFlight with keys from Gin's context, like [LimitBy]. [inflight.Rule].Key is
// required all the same. It panics if the guard or a key is nil, or if the numbers of keys and
// rules differ.
func InFlightBy(guard *inflight.Guard, keys ...Key) gin.HandlerFunc {
	mustInFlight(guard)
	keys = perRule("InFlightBy", guard.Rules(), keys)
	return func(c *gin.Context) {
		actInFlight(c, guard, guard.CheckKeys(c.Request, func(rule int) (string, error) { return keys[rule](c) }))
	}
}

func mustInFlight(guard *inflight.Guard) {
	if guard == nil {
		panic("headgate: ginmw: the guard is nil")
	}
}

// actInFlight carries the verdict out.
func actInFlight(c *gin.Context, guard *inflight.Guard, v inflight.Verdict) {
	if v.Status() != 0 {
		c.Abort()
		if v.Err != nil {
			c.Error(v.Err) //nolint:errcheck // it returns its argument
		}
		guard.Refuse(c.Writer, c.Request, v)
		c.Writer.WriteHeaderNow()
		return
	}
	defer v.Release()
	v.SetFields(c.Writer.Header())
	c.Next()
}
