package echov5mw

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// Sockets returns a middleware that holds a slot for each WebSocket that the handler upgrades,
// as long as it is open. It answers upgrades for which there is no slot. Other requests are
// not affected.
//
//	e.GET("/ws", upgrade, echov5mw.Sockets(guard))
//
// The upgrade may be by any library, on c.Response() and c.Request(), in whose context
// [websocketmw.FromContext] finds the socket. Put Echo's Recover before the guard, which
// closes the connection of a handler that panics. Sockets panics if the guard is nil.
func Sockets(guard *websocketmw.Guard) echo.MiddlewareFunc {
	carries := guard.Mount()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			visit := framework.Enter(c, carries)
			defer visit.End()
			v := guard.Check(visit.Request)
			switch {
			case v.Status() != 0:
				guard.Refuse(c.Response(), visit.Request, v)
				return nil
			case !v.Upgrades():
				return next(c)
			}
			return upgrade(c, next, visit.Request, &v)
		}
	}
}

// upgrade carries out a verdict about the checked request, which admits an upgrade.
func upgrade(c *echo.Context, next echo.HandlerFunc, checked *http.Request, v *websocketmw.Verdict) (err error) {
	var settle func(nethttp.Outcome)
	inner, replace := c.Response(), c.SetResponse
	if response, e := echo.UnwrapResponse(inner); e == nil {
		inner = response.ResponseWriter
		replace = func(w http.ResponseWriter) { response.ResponseWriter = w }
		handshake, _ := v.Handshake()
		_, settle = handshake.Begin(checked)
	}
	defer replace(inner)
	v.Serve(inner, c.Request(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		replace(w)
		if settle != nil { // before Serve does, which does not see errors
			err = serve(c, next, r, settle)
			return
		}
		c.SetRequest(r)
		err = next(c)
	}))
	return err
}
