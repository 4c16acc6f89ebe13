// Package ginmw adapts the guards of packages nethttp and websocketmw to Gin. A request gets the same
// status, fields and body as under net/http.
//
//	you want                                   write
//	----------------------------------------   ------------------------------------------------
//	a limit on everything                      r.Use(ginmw.Use(guard))
//	on a group                                 r.Group("/api", ginmw.Use(guard))
//	on a route                                 r.POST("/login", ginmw.Use(guard), login)
//	a limit on open WebSockets                 r.GET("/ws", ginmw.Use(sockets), upgrade)
//	to charge the signed-in user               nethttp.Rule{Key: ginmw.Value("user"), ...}
//	the user, or else the address              keyfuncs.First(ginmw.Value("user"), keyfuncs.RemoteAddr())
//	each client on each route                  keyfuncs.All(ginmw.Route(), keyfuncs.RemoteAddr())
//	a key of your own                          ginmw.Key(func(c *gin.Context) (string, error) {...})
//	a page instead of the problem document     nethttp.Config.OnRefused
//	to set the cost of a request               nethttp.SetCost(c.Request.Context(), "tokens", n)
//	to see the decision in a handler           r.Use(ginmw.KeepVerdict(), ginmw.Use(guard)), then ginmw.Verdict(c)
//	to know why a request got a 400 or 503     c.Errors
//
// # The address of the client
//
// Package keyfuncs derives the charged address from the request. It does not use c.ClientIP, which
// trusts every proxy unless r.SetTrustedProxies is called, so a client could choose its own key.
//
// # Order
//
// Middleware runs in the order of r.Use. Put these before the guard:
//
//   - gin.Recovery
//   - authentication, if the user is charged
//   - CORS: it answers preflights, so that they are not charged, and lets scripts read refusals
//
// The functions of a guard's Config, such as Plan, Cost, Settle and Report, get the request, for which
// [Context] returns Gin's context:
//
//	Plan: func(r *http.Request, key string) *core.Limiter {
//		return plans[ginmw.Context(r).GetString("plan")]
//	},
//
// # Limited requests
//
// Gin redirects before any middleware, even the engine's. It does so if a path lacks a trailing
// slash or has one too many (r.RedirectTrailingSlash, on by default). It also does so if a path
// differs in case or slashes (r.RedirectFixedPath). No handler of yours runs, but these responses are
// not limited. To limit them too, serve guard.Handler(r), or turn both off; then Gin answers 404.
//
// Otherwise r.Use of the engine limits every request, also those that get 404 and 405.
// Only routes and groups that were made before r.Use are not limited. Middleware of a
// group or a route runs only if one of its routes matches.
//
// # Signed cookies
//
// The Handler of a [keyfuncs.SignedCookie], whose guard limits the address too, becomes
// middleware like this:
//
//	set := cookie.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
//	r.Use(ginmw.Use(guard), func(c *gin.Context) { set.ServeHTTP(c.Writer, c.Request) })
//
// # Settling
//
// A rule's Settle or Report gets c.Writer.Status() and Size() when the following handlers are done.
// With such a rule, they get a wrapped c.Writer.
package ginmw
