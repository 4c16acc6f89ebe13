package echomw

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/inflight"
)

// InFlight returns a middleware that holds a slot for each request while the next handler runs.
// It returns an error like that of [Limit] for requests for which there is no slot in time. It
// panics if the guard is nil.
//
//	e.POST("/export", export, echomw.InFlight(guard))
func InFlight(guard *inflight.Guard) echo.MiddlewareFunc {
	mustInFlight(guard)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			return actInFlight(c, next, guard, guard.Check(c.Request()))
		}
	}
}

// InFlightBy is InFlight with keys from Echo's context, like [LimitBy]. [inflight.Rule].Key is
// required all the same. It panics if the guard or a key is nil, or if the numbers of keys and
// rules differ.
func InFlightBy(guard *inflight.Guard, keys ...Key) echo.MiddlewareFunc {
	mustInFlight(guard)
	keys = perRule("InFlightBy", guard.Rules(), keys)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			v := guard.CheckKeys(c.Request(), func(rule int) (string, error) { return keys[rule](c) })
			return actInFlight(c, next, guard, v)
		}
	}
}

func mustInFlight(guard *inflight.Guard) {
	if guard == nil {
		panic("headgate: echomw: the guard is nil")
	}
}

// actInFlight carries the verdict out.
func actInFlight(c echo.Context, next echo.HandlerFunc, guard *inflight.Guard, v inflight.Verdict) error {
	if v.Status() != 0 {
		return refuseWith(c, v.Status(), v.Problem, v.Err, func(w http.ResponseWriter) { guard.Refuse(w, c.Request(), v) })
	}
	defer v.Release()
	v.SetFields(c.Response().Header())
	return next(c)
}
