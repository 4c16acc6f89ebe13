// Package nethttp puts rate limits in front of HTTP handlers.
//
// A [Guard] asks limiters of package core whether to admit a request, reports the state
// of the limits to the client, and refuses requests over a limit. [Limit] makes one for one
// limit:
//
//	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
//	http.ListenAndServe(addr, limit.Handler(mux))
//
// [New] makes one of a [Config], for several limits, plans, costs and more:
//
//	guard, err := nethttp.New(nethttp.Config{
//		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
//	})
//
// Handler combines steps that can also be called separately:
//
//	verdict := guard.Check(r)      decides and charges, writes nothing
//	verdict.Status()               0: admitted; otherwise the status of the refusal
//	verdict.SetFields(w.Header())  sets the fields of the response
//	guard.Refuse(w, r, &verdict)   writes the refusal, or answers a preflight
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
//	400 or 403  a Key callback returned no key ([Config].KeyErrorStatus)
//	403         [Config].Permit returned false
//	429         over a limit
//	500         a Cost or Plan callback returned an invalid value, or a Key callback
//	            [keyfuncs.ErrProgram]
//	503         the store returned an error; Retry-After is 5 seconds
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
// A guard that is in the chain of handlers twice charges each request twice.
//
// # Routers
//
// A guard charges the requests that get to it, and what is behind it is never called
// otherwise. But a router may answer some requests by itself, before a guard that is
// behind it:
//
//	guard.Handler(mux)             everything is limited
//	mux.Handle(p, guard.Handler)   not what ServeMux answers: redirects to a clean path
//	                               or to a trailing slash, 404, 405
//	chi's r.Use(guard.Handler)     everything is limited that gets to the router r
//	chi's r.With(guard.Handler)    not what chi answers: 404, 405
//
// Some routers find the route by another path than r.URL.Path. chi and Echo match the
// path as it was sent, with its escapes: for them /%68ealth is not /health. chi's
// middleware StripSlashes and CleanPath, and Gin's RemoveExtraSlash, change the path only
// for the router. A [Config].Skip, [Rule].Cost or [Rule].Plan that compares paths can be
// evaded there. Give such a route a guard of its own around its handler, and register what
// is exempt outside the guard.
//
// # CORS
//
// Put CORS middleware outside the guard. There it answers preflights, and scripts can
// read refusals. A preflight that reaches the guard is charged like every request, unless
// [Config].Preflight answers it: anyone can send one, so it must not get to the handler
// behind the guard for nothing.
//
// # After the response
//
// The cost of a request is sometimes known only afterwards. [Rule].Settle corrects
// the charge when the handler returns: to count only failed logins, or to reserve an
// estimate and then charge the number that the handler passed to [SetCost].
//
// # Limits in a document
//
// [Rule].Limit takes a limit of package limits in the place of a limiter: plans, and overrides
// for some keys, in a file or in Redis, which are changed while the server runs. All rules of a
// guard decide by the same document. The names of policies in it should differ between the limits
// of a guard: New sees only those of the default plans, as of now.
//
// # Before a limit is enforced
//
// [Config].ObserveOnly is shadow mode: every request is charged and admitted, clients
// see no difference, and [Config].Observe is called with the verdicts as they would
// have been.
package nethttp
