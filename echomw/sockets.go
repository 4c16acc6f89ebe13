package echomw

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/websocketmw"
)

// Sockets returns a middleware that holds a slot for each WebSocket that the handler upgrades,
// as long as it is open. It answers upgrades for which there is no slot. Other requests are
// not affected.
//
//	e.GET("/ws", upgrade, echomw.Sockets(guard))
//
// The upgrade may be by any library, on c.Response() and c.Request(), in whose context
// [websocketmw.FromContext] finds the socket. Put Echo's Recover before the guard, which
// closes the connection of a handler that panics. Sockets panics if the guard is nil.
func Sockets(guard *websocketmw.Guard) echo.MiddlewareFunc { return sockets(guard, nil) }

// SocketsBy is Sockets with keys from Echo's context, like [LimitBy]. They are those of Rules.
// The functions of the guard's Config, Handshakes, and the Key of Inbound get the request, not
// Echo's context, which ends before the socket does: put what they need, such as the user, into
// the context of the request.
//
// SocketsBy panics if the guard or a key is nil, or if the numbers of keys and rules
// differ.
func SocketsBy(guard *websocketmw.Guard, keys ...Key) echo.MiddlewareFunc {
	return sockets(guard, framework.Keys("SocketsBy", keys...))
}

func sockets(guard *websocketmw.Guard, keys []Key) echo.MiddlewareFunc {
	guard.Mount(adapter.Count(keys))
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			v := guard.CheckKeys(c.Request(), adapter.By(keys, c))
			switch {
			case v.Status() != 0:
				guard.Refuse(c.Response(), c.Request(), v)
				return nil
			case !v.Upgrades():
				return next(c)
			}
			return upgrade(c, next, &v)
		}
	}
}

// upgrade carries out a verdict that admits an upgrade.
func upgrade(c echo.Context, next echo.HandlerFunc, v *websocketmw.Verdict) (err error) {
	handshake, _ := v.Handshake()
	_, settle := handshake.Track(c.Request())
	response := c.Response()
	inner := response.Writer
	defer func() { response.Writer = inner }()
	v.Serve(inner, c.Request(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response.Writer = w
		if settle != nil { // before Serve does, which does not see errors
			err = serve(c, next, r, settle)
			return
		}
		c.SetRequest(r)
		err = next(c)
	}))
	return err
}
