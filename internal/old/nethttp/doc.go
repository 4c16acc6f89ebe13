// Package nethttp is a rate limiter and a concurrency limiter for HTTP handlers, as middleware. It
// throttles requests, enforces quotas of their cost, and limits how many are handled at once.
//
// A [Guard] asks limiters and slots of package core whether to admit a request. It reports the
// state of the limits to the client, and refuses requests over a limit. [Limit] makes a guard with
// one limit on the rate. [InFlight] makes one with a limit on requests at once:
//
//	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
//	http.ListenAndServe(addr, limit.Handler(mux))
//
// [New] makes one from a [Config], for several limits, plans, costs, waiting and more. A [Rule]
// says who is limited and how much. The guard says for how long: each request. Rates and slots
// stand side by side:
//
//	guard, err := nethttp.New(nethttp.Config{
//		Rules: []nethttp.Rule{
//			{Key: user, Limiter: requests},
//			{Key: user, Limiter: tokens, Cost: estimate, Settle: nethttp.StatedCost},
//			{Key: user, Slots: running, Queue: 5},
//		},
//		Wait: 10 * time.Second,
//	})
//
// Package websocketmw has the guard that limits sockets, by the same rules.
//
// A [Transport] is for the other side: programs that call servers which have limits.
//
// # What clients see
//
// An admitted response, as defined by draft-ietf-httpapi-ratelimit-headers-11:
//
//	RateLimit-Policy: "api";q=100;w=60
//	RateLimit: "api";r=87;t=1
//
// The policy "api" grants 100 units in 60 seconds; 87 are left, and one more becomes
// available within a second. A refused response also has:
//
//	HTTP/1.1 429 Too Many Requests
//	Retry-After: 7
//	Content-Type: application/problem+json
//	Cache-Control: no-store
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["api"]}
//
// All times are in seconds, rounded up. [Config].Fields selects older fields, or
// none. Scripts in a browser can read the fields of a cross-origin response only if
// the server's CORS middleware sets
//
//	Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After
//
// # Statuses of refusals
//
//	400         a Key callback returned no key
//	429         over a limit
//	500         a Cost, Plan or PlanSlots callback returned an invalid value, or a Key callback
//	            [keyfuncs.ErrProgram]
//	503         over a limit of the service ([Rule].Service); or the store returned an error, the
//	            slots are closed, or the client has hung up
//
// Retry-After is the wait that the decision states. If the store has not decided about a rate, it
// is 5 seconds. After slots were asked for, it is a random 1 to 5 seconds. Nobody can predict when
// a slot is released, and not all clients should come back at once.
//
// The store is configured to return an error while it is unreachable, or to admit. The
// bodies are problem documents (RFC 9457) and never contain a key.
//
// # Several rules
//
// Rules are applied together, all or nothing: a request that one of them refuses is
// charged to none. So a session can have one limit, and the address that many
// sessions share a larger one.
//
// The order is: all keys, then the rates, then the slots. Among the rates, rules with [Rule].Report
// are checked first. Then all others are charged together. A client over its rate takes no slot and
// does not wait for one.
//
// A request may find no slot, or stop waiting for one, or lose its client. Then its units are given
// back, so it may try as often as it likes: to limit that, put a guard with a rate of its own around this
// one. Until then the units count: other requests may be refused for them. If the process ends in
// between, they are not given back.
//
// # Slots
//
// A request holds its slots until its handler returns or panics. Server-Sent Events and long polls
// count for as long. A request that finds no slot waits, if [Rule].Queue allows, for up to
// [Config].Wait. A request leaves the line when its client hangs up. With a body that the handler has
// not read, that shows only when the wait is over: net/http watches the connection after the body.
// The fields of the response have a policy for slots, too:
//
//	RateLimit-Policy: "exports";q=2;qu="concurrent-requests"
//	RateLimit: "exports";r=1
//
// A guard that is in the chain of handlers twice charges each request twice.
//
// # Routers
//
// A guard charges each request that reaches it, before it calls the handler behind it. But a router
// in front of the guard may answer some requests alone:
//
//	guard.Handler(mux)             everything is limited
//	mux.Handle(p, guard.Handler)   not what ServeMux answers: redirects to a clean path
//	                               or to a trailing slash, 404, 405
//	chi's r.Use(guard.Handler)     everything is limited that gets to the router r
//	chi's r.With(guard.Handler)    not what chi answers: 404, 405
//
// Some routers find the route by another path than r.URL.Path. With chi and Echo that is the path
// as it was sent, with its escapes. For them, /%68ealth is not /health. The middleware StripSlashes
// and CleanPath of chi, and Gin's RemoveExtraSlash, change the path only for the router. A
// [Config].Skip, [Rule].Cost or [Rule].Plan that compares paths can be evaded there. Give such a
// route a guard of its own around its handler. Register exempt routes outside the guard.
//
// # CORS
//
// Put CORS middleware outside the guard. There it answers preflights, and scripts can read refusals.
// A preflight that reaches the guard is charged like every request, because anyone can send one. Browsers
// send preflights without credentials, so keys by user or cookie refuse them with 400.
//
// # More
//
//	what a request costs, before and after     [Rule].Cost, [Rule].Settle, [Rule].Report, [SetCost],
//	                                           [StatedCost], [FailuresOnly], [BytesWritten]
//	plans                                      [Rule].Plan, [Rule].PlanSlots
//	limits in a file or in Redis               [Rule].Limit, [Rule].LimitSlots, of package limits
//	requests that wait for a slot              [Rule].Queue, [Config].Wait
//	a trial: nothing is refused                [Config].ObserveOnly
//	to see what is decided                     [Config].Observe, and core's Observer
//	to be told of wrong keys                   [Config].Logger, by default slog's
//	to forget what a client was charged        [Guard.Reset]
package nethttp
