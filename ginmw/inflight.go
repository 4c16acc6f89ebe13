package ginmw

import (
	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/inflight"
)

// InFlight returns a middleware that holds a slot for each request while the following handlers
// run. It answers and aborts requests for which there is no slot in time. It panics if the
// guard is nil.
//
//	r.POST("/export", ginmw.InFlight(guard), export)
//
// As under [Limit], the verdict's Err, if not nil, is added to c.Errors.
func InFlight(guard *inflight.Guard) gin.HandlerFunc { return inFlight(guard, nil) }

// InFlightBy is InFlight with keys from Gin's context, like [LimitBy]. It panics if the guard or
// a key is nil, or if the numbers of keys and rules differ.
func InFlightBy(guard *inflight.Guard, keys ...Key) gin.HandlerFunc {
	return inFlight(guard, framework.Keys("InFlightBy", keys...))
}

func inFlight(guard *inflight.Guard, keys []Key) gin.HandlerFunc {
	functions := guard.Mount(adapter.Count(keys))
	return func(c *gin.Context) {
		r := c.Request
		if functions { // not for handlers, as what they start may outlive Gin's context
			r = framework.With(c)
		}
		v := guard.CheckKeys(r, adapter.By(keys, c))
		if v.Status() != 0 {
			refuse(c, v.Err, func() { guard.Refuse(c.Writer, r, v) })
			return
		}
		defer v.Release()
		v.SetFields(c.Writer.Header())
		c.Next()
	}
}
