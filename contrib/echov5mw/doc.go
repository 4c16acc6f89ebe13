// Package echov5mw adapts the guards of packages nethttp and websocketmw to Echo v5,
// github.com/labstack/echo/v5; for v4, see package echomw. A request gets the same status,
// fields and body as under net/http.
//
// The path is not echomw/v5, which would mean major version 5 of echomw.
//
//	you want                                   write
//	----------------------------------------   ------------------------------------------------
//	a limit on everything                      e.Use(echov5mw.Use(guard))
//	on a group                                 e.Group("/api", echov5mw.Use(guard))
//	on a route                                 e.POST("/login", login, echov5mw.Use(guard))
//	a limit on open WebSockets                 e.GET("/ws", upgrade, echov5mw.Use(sockets))
//	to charge the signed-in user               nethttp.Rule{Key: echov5mw.Value("user"), ...}
//	the user, or else the address              keyfuncs.First(echov5mw.Value("user"), keyfuncs.RemoteAddr())
//	each client on each route                  keyfuncs.All(echov5mw.Route(), keyfuncs.RemoteAddr())
//	a key of your own                          echov5mw.Key(func(c *echo.Context) (string, error) {...})
//	a page instead of the problem document     nethttp.Config.OnRefused
//	to write refusals as errors are written    e.Use(echov5mw.Errors(), echov5mw.Use(guard))
//	to set the cost of a request               nethttp.SetCost(c.Request().Context(), "tokens", n)
//	to see the decision in a handler           e.Use(echov5mw.KeepVerdict(), echov5mw.Use(guard)), then echov5mw.Verdict(c)
//	to know why a request got a 400 or 503     nethttp.Config.Observe, or Errors
//
// # The address of the client
//
// Package keyfuncs derives the charged address from the request, without c.RealIP, which
// depends on e.IPExtractor and may return what a client wrote.
//
// # Order
//
// Middleware of e.Use runs in the order of the calls, after the route is found. Middleware of e.Pre
// runs before. Put authentication before the guard, if the user is charged. Put CORS there too: it
// answers preflights, so that they are not charged, and lets scripts read refusals.
//
// The functions of a guard's Config, such as Plan, Cost, Settle and Report, get the request, for which
// [Context] returns Echo's context:
//
//	Plan: func(r *http.Request, key string) *core.Limiter {
//		plan, _ := echov5mw.Context(r).Get("plan").(string)
//		return plans[plan]
//	},
//
// # Limited requests
//
// Middleware of e.Use runs for every request, also for those that Echo answers by itself:
// with 404, with 405, and OPTIONS with 204. Middleware of a group runs for its routes, and
// for paths under its prefix that no route matches, unless NoGroupAutoRegister404Routes is
// set in Echo's Config. Middleware of a route runs only if the route matches.
//
// # Signed cookies
//
// The Handler of a [keyfuncs.SignedCookie], whose guard limits the address too, becomes
// middleware like this:
//
//	e.Use(echov5mw.Use(guard), echo.WrapMiddleware(cookie.Handler))
//
// # Settling
//
// A rule's Settle or Report gets the status and size of the response, when the following handlers
// are done. If they return an error, it has not been written then. Outcome.Status is the one that
// Echo's default error handler would write, even if HTTPErrorHandler writes another.
// Outcome.Written does not include the body. A writer without Unwrap that middleware passes to
// c.SetResponse hides the status, the size and hijacking from Settle.
package echov5mw
