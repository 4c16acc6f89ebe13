// Package ginmw puts the guards of package nethttp in front of Gin's handlers. It
// translates and decides nothing: a request gets the same status, fields and body
// as under net/http.
//
//	you want                                   write
//	----------------------------------------   ------------------------------------------------
//	a limit on everything                      r.Use(ginmw.Limit(guard))
//	on a group                                 r.Group("/api", ginmw.Limit(guard))
//	on a route                                 r.POST("/login", ginmw.Limit(guard), login)
//	a limit on open WebSockets                 r.GET("/ws", ginmw.Sockets(sockets), upgrade)
//	to charge who is signed in                 ginmw.LimitBy(guard, ginmw.Value("user"))
//	the user, or else the address              ginmw.LimitBy(guard, ginmw.First(ginmw.Value("user"),
//	                                               ginmw.Request(keyfuncs.RemoteAddr())))
//	each client on each route                  ginmw.LimitBy(guard, ginmw.All(ginmw.Route(),
//	                                               ginmw.Request(keyfuncs.RemoteAddr())))
//	a key of your own                          ginmw.LimitBy(guard, func(c *gin.Context) (string, error) {...})
//	a page instead of the problem document     nethttp.Config.OnDenied
//	to tell what a request cost                nethttp.SetCost(c.Request.Context(), "tokens", n)
//	to see the decision in a handler           r.Use(ginmw.Keep(), ginmw.Limit(guard)), then ginmw.Verdict(c)
//	to know why a request got a 400 or 503     c.Errors
//
// # The address of the client
//
// Package keyfuncs says whose address is charged, from the request, and not Gin:
// c.ClientIP believes every proxy unless r.SetTrustedProxies says otherwise, so a
// client could write its own key.
//
// # Order
//
// Middleware runs in the order of r.Use. Put gin.Recovery before the guard, and
// authentication too if what it finds is charged. CORS goes before the guard, so
// that scripts can read refusals.
//
// Plan, Cost, Skip and Settle of the guard's Config get the request, not Gin's
// context. What they need, authentication puts in the request's context:
//
//	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), userKey{}, user))
//
// # Settling
//
// A rule's Settle sees c.Writer.Status() and Size() when the handlers that follow
// are done. They get another c.Writer then, which passes everything on.
package ginmw
