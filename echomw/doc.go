// Package echomw puts the guards of package nethttp in front of the handlers of Echo
// v4, github.com/labstack/echo/v4; for v5 there is package echov5mw. It translates and
// decides nothing: a request gets the same status and fields as under net/http, and
// under Echo's default error handler the same JSON.
//
//	you want                                   write
//	----------------------------------------   ------------------------------------------------
//	a limit on everything                      e.Use(echomw.Limit(guard))
//	on a group                                 e.Group("/api", echomw.Limit(guard))
//	on a route                                 e.POST("/login", login, echomw.Limit(guard))
//	a limit on open WebSockets                 e.GET("/ws", upgrade, echomw.Sockets(sockets))
//	to charge who is signed in                 echomw.LimitBy(guard, echomw.Value("user"))
//	the user, or else the address              echomw.LimitBy(guard, echomw.First(echomw.Value("user"),
//	                                               echomw.Request(keyfuncs.RemoteAddr())))
//	each client on each route                  echomw.LimitBy(guard, echomw.All(echomw.Route(),
//	                                               echomw.Request(keyfuncs.RemoteAddr())))
//	a key of your own                          echomw.LimitBy(guard, func(c echo.Context) (string, error) {...})
//	a page instead of the problem document     nethttp.Config.OnDenied, or the HTTPErrorHandler
//	to tell what a request cost                nethttp.SetCost(c.Request().Context(), "tokens", n)
//	to see the decision in a handler           e.Use(echomw.Keep(), echomw.Limit(guard)), then echomw.Verdict(c)
//	to know why a request got a 400 or 503     errors.Unwrap of the error that the error handler gets
//
// # The address of the client
//
// Package keyfuncs says whose address is charged, from the request, and not Echo:
// what c.RealIP believes depends on e.IPExtractor, and may be what a client wrote.
//
// # Order
//
// Middleware runs in the order of e.Use, after the route is found; with e.Pre there
// is no route yet. Put authentication before the guard if what it finds is charged,
// and CORS, so that scripts can read refusals.
//
// Plan, Cost, Skip and Settle of the guard's Config get the request, not Echo's
// context. What they need, authentication puts in the request's context:
//
//	r := c.Request()
//	c.SetRequest(r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
//
// # Settling
//
// A rule's Settle sees what was written when the handlers that follow are done. An
// error that they return is not yet written then: its status is the one that Echo's
// default error handler gives it, and Outcome.Written does not count its body. An
// HTTPErrorHandler that chooses other statuses is not asked.
package echomw
