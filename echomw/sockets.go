package echomw

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/websocketmw"
)

// Sockets returns a middleware that holds a slot for each WebSocket that the handler
// upgrades, as long as it is open. It returns an error like that of [Limit] for upgrades
// for which there is no slot. Other requests are not affected.
//
//	e.GET("/ws", upgrade, echomw.Sockets(guard))
//
// The upgrade may be by any library, on c.Response() and c.Request(), in whose context
// [websocketmw.FromContext] finds the socket. Put Echo's Recover before the guard, which
// closes the connection of a handler that panics. Sockets panics if the guard is nil.
func Sockets(guard *websocketmw.Guard) echo.MiddlewareFunc {
	mustSockets(guard)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			v := guard.Check(c.Request())
			return actSocket(c, next, guard, &v)
		}
	}
}

// SocketsBy is Sockets with keys from Echo's context, like [LimitBy].
// [websocketmw.Rule].Key is required all the same.
//
// The keys replace only those of Rules. Handshakes, and the Key of Inbound, get the
// request, not Echo's context: put what they charge, such as the user, into the request's
// context, and use [keyfuncs.Context].
//
// SocketsBy panics if the guard or a key is nil, or if the numbers of keys and rules
// differ.
func SocketsBy(guard *websocketmw.Guard, keys ...Key) echo.MiddlewareFunc {
	mustSockets(guard)
	keys = perRule("SocketsBy", guard.Rules(), keys)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			v := guard.CheckKeys(c.Request(), func(rule int) (string, error) { return keys[rule](c) })
			return actSocket(c, next, guard, &v)
		}
	}
}

func mustSockets(guard *websocketmw.Guard) {
	if guard == nil {
		panic("headgate: echomw: the guard is nil")
	}
}

// actSocket carries the verdict out.
func actSocket(c echo.Context, next echo.HandlerFunc, guard *websocketmw.Guard, v *websocketmw.Verdict) (err error) {
	switch {
	case v.Status() != 0:
		return refuseWith(c, v.Status(), v.Problem, v.Err, func(w http.ResponseWriter) { guard.Refuse(w, c.Request(), *v) })
	case !v.Upgrades():
		return next(c)
	}
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
