// Package ginmw puts guards in front of the handlers of Gin:
//
//	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
//
//	r := gin.Default()
//	r.Use(ginmw.Middleware(limit))
//
// A guard of package nethttp limits requests, one of package websocketmw open WebSockets. A request gets the same
// status, fields and body as under net/http, and Gin learns of refusals: they are in c.Errors, as a
// [*nethttp.Verdict].
//
//	on everything                       r.Use(ginmw.Middleware(guard))
//	on a group                          r.Group("/api", ginmw.Middleware(guard))
//	on a route                          r.POST("/login", ginmw.Middleware(guard), login)
//	limit the signed-in user            nethttp.Rate{Key: ginmw.Value("user"), ...}
//	the user, or else the address       keyfuncs.First(keyfuncs.Tag("user", ginmw.Value("user")),
//	                                        keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
//	each client on each route           keyfuncs.All(ginmw.Route(), keyfuncs.RemoteAddr())
//	the plan that middleware has set    nethttp.Rate{Plan: ginmw.Value("plan"), ...}
//	Gin's context in Cost, Settle, ...  ginmw.Context(r)
//	set the cost of a request           nethttp.SetCost(c.Request.Context(), limiter, units)
//	give out signed cookies             r.Use(ginmw.Middleware(cookie))
//
// # Order
//
// Middleware runs in the order of r.Use. Put these before the guard: gin.Recovery; authentication, if users are
// counted; and CORS, which answers preflights and lets scripts read refusals.
//
// # What is limited
//
// r.Use limits what the engine answers, also 404 and 405, but for routes and groups that were made before it, and for
// redirects: Gin redirects a path with a slash too many or too few (RedirectTrailingSlash, which is on) or in another
// spelling (RedirectFixedPath) before any middleware. To limit those as well, serve guard.Handler(r), or turn them
// off. Middleware of a group or a route runs only if one of its routes matches.
//
// # The address of the client
//
// Keys of package keyfuncs take the address from the request and not from c.ClientIP, which believes any proxy unless
// SetTrustedProxies says otherwise.
package ginmw
