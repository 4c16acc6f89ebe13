// Package echov5mw puts guards in front of the handlers of Echo v5, github.com/labstack/echo/v5:
//
//	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
//
//	e := echo.New()
//	e.Use(echov5mw.Middleware(limit))
//
// A guard of package nethttp limits requests, one of package websocketmw open WebSockets. For Echo v4, see
// package echomw of headgate.
//
//	on everything                       e.Use(echov5mw.Middleware(guard))
//	on a group                          e.Group("/api", echov5mw.Middleware(guard))
//	on a route                          e.POST("/login", login, echov5mw.Middleware(guard))
//	limit the signed-in user            nethttp.Rate{Key: echov5mw.Value("user"), ...}
//	the user, or else the address       keyfuncs.First(keyfuncs.Tag("user", echov5mw.Value("user")),
//	                                        keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
//	each client on each route           keyfuncs.All(echov5mw.Route(), keyfuncs.RemoteAddr())
//	the plan that middleware has set    nethttp.Rate{Plan: echov5mw.Value("plan"), ...}
//	Echo's context in Cost, Settle, ... echov5mw.Context(r)
//	set the cost of a request           nethttp.SetCost(c.Request().Context(), limiter, units)
//	give out signed cookies             e.Use(echov5mw.Middleware(cookie))
//
// # Refusals are errors
//
// A refusal is an error that goes to the application's HTTPErrorHandler, as any other. It has a StatusCode, and wraps a
// [*nethttp.Verdict]. The response has its fields and Retry-After already. Echo's own handler answers with the problem
// document, as application/json. A handler that writes nothing answers 200 and an empty body, as it does for any error.
// If the guard has OnRefused and that writes an answer, there is no error.
//
// With [nethttp.Rate].Settle, an error of a handler is answered by the HTTPErrorHandler inside the guard, so that
// Settle sees the status, and returned as well. So the HTTPErrorHandler must do nothing if the response is committed,
// as Echo asks of it.
//
// # Order
//
// Middleware of e.Use runs in the order of the calls, after the route is found, and for every request, also those that
// Echo answers with 404 and 405. Middleware of a group runs for its routes, and for paths below its prefix that no
// route matches; that of a route only if it matches. Put authentication before the guard, if users are counted, and
// CORS, which answers preflights and lets scripts read refusals.
//
// # The address of the client
//
// Keys of package keyfuncs take the address from the request and not from c.RealIP, which depends on e.IPExtractor and
// may return what a client wrote.
package echov5mw
