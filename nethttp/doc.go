// Package nethttp limits the requests that an [http.Handler] gets: how many in a time, what they may cost
// together, and how many at once.
//
//	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
//	http.ListenAndServe(address, limit.Handler(mux))
//
// A [Guard] is rules in front of a handler. [Limit] makes one with a single rate, [MaxInFlight] one with a single
// limit on requests at once, and [New] one with up to eight rules of each kind, with plans, costs and queues.
// Packages ginmw and echomw put the same guards into Gin and Echo; package websocketmw limits open WebSockets.
//
// # What clients see
//
// An admitted response says what is left, as draft-ietf-httpapi-ratelimit-headers-11 defines it:
//
//	RateLimit-Policy: "api";q=60;w=60
//	RateLimit: "api";r=59;t=1
//
// The policy "api" admits 60 units in 60 seconds; 59 are left, and in a second there is one more. A refusal also has
// a Retry-After and a problem document (RFC 9457):
//
//	HTTP/1.1 429 Too Many Requests
//	RateLimit-Policy: "api";q=60;w=60
//	RateLimit: "api";r=0;t=7
//	Retry-After: 7
//	Cache-Control: no-store
//	Content-Type: application/problem+json
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
//	"title":"Quota Exceeded","status":429,"violated-policies":["api"]}
//
// Times are whole seconds, rounded up. No key is in a response. [Config].Fields chooses other fields, and
// [Config].OnRefused another body.
//
// # Statuses of refusals
//
//	400  the request has no key, or a malformed one
//	429  it is over a limit
//	500  a function of a rule failed: keyfuncs.ErrProgram, or a negative cost
//	503  it is over a limit of the service, or there is no decision: Redis is away and the store fails closed, the
//	     slots are closed, or the client has hung up while it waited
//
// Retry-After is exact for rates, and missing if waiting cannot help. Nobody knows when a slot will be free, so there
// it is a random 1 to 5 seconds; without a decision about a rate it is 5 seconds.
//
// # In which order
//
// First every rule gets its key, then all rates are charged in one call of the store, all or none. Then the slots are
// taken: those without a queue at once or not at all, and last the one with a queue, in whose line the request waits.
// So a client over its rate takes no slot and stands in no line. A request that gets no slot is given its units
// back; a guard with a rate of its own around this one counts such attempts. The rules that only observe come last.
//
// Slots are held until the handler returns or panics, so a long poll or a stream of events counts for as long as it
// lasts. A client that hangs up leaves the line, unless it has sent a body that nobody has read: net/http notices
// only after the body.
//
// # Where the guard stands
//
// Put the guard behind what it needs: behind the middleware that finds the user if users are counted, and behind CORS,
// which answers preflights and lets scripts read the refusals and their fields:
//
//	Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After
//
// A guard counts the requests that reach it. What a router in front of it answers by itself is not counted:
//
//	guard.Handler(mux)              everything is limited
//	mux.Handle(p, guard.Handler(h)) not what ServeMux answers: redirects to a clean path, 404, 405
//	chi's r.Use(guard.Handler)      everything that reaches the router r
//	chi's r.With(guard.Handler)     not what chi answers: 404, 405
//
// A Skip, Cost or Plan that compares r.URL.Path can be evaded where the router finds the route by another path: chi
// and Echo use the path as it was sent, with its escapes, in which /%68ealth is not /health; StripSlashes and
// CleanPath of chi and RemoveExtraSlash of Gin change it for the router only. There, put the guard on the route. A
// guard that a request passes twice charges it twice.
//
// The address of a client is r.RemoteAddr, which behind a proxy is the proxy's. Package keyfuncs has functions that
// believe certain proxies and nobody else. A guard warns once if its keys are the address of a private network that
// forwards for others.
//
// # Guards around guards
//
// The RateLimit fields of the inner guard are added to those of the outer one, and [XRateLimitFields] replaces them.
// [VerdictFrom] has the verdict of the innermost, and [SetCost] finds the rule of either.
package nethttp
