package echomw

import (
	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/inflight"
)

// InFlight returns a middleware that holds a slot for each request while the next handler runs.
// It answers requests for which there is no slot in time, as [Limit] does. It panics if the guard
// is nil.
//
//	e.POST("/export", export, echomw.InFlight(guard))
func InFlight(guard *inflight.Guard) echo.MiddlewareFunc { return inFlight(guard, nil) }

// InFlightBy is InFlight with keys from Echo's context, like [LimitBy]. It panics if the guard or
// a key is nil, or if the numbers of keys and rules differ.
func InFlightBy(guard *inflight.Guard, keys ...Key) echo.MiddlewareFunc {
	return inFlight(guard, framework.Keys("InFlightBy", keys...))
}

func inFlight(guard *inflight.Guard, keys []Key) echo.MiddlewareFunc {
	functions := guard.Mount(adapter.Count(keys))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			if functions { // not for handlers, as what they start may outlive Echo's context
				r = framework.With(c)
			}
			v := guard.CheckKeys(r, adapter.By(keys, c))
			if v.Status() != 0 {
				return refuse(c, v.Status(), v.Err, v.SetFields, func() { guard.Refuse(c.Response(), r, v) })
			}
			defer v.Release()
			v.SetFields(c.Response().Header())
			return next(c)
		}
	}
}
