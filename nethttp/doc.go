// Package nethttp puts rate limits in front of HTTP handlers.
//
// A [Guard] asks limiters of package core whether a request may pass, tells the
// client where it stands, and refuses what is over a limit:
//
//	guard, err := nethttp.New(nethttp.Config{
//		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
//	})
//	...
//	http.ListenAndServe(addr, guard.Handler(mux))
//
// Handler is short for what can also be done by hand:
//
//	verdict := guard.Check(r)      decides and charges, writes nothing
//	verdict.Status()               0: admitted; otherwise the status of the refusal
//	verdict.SetFields(w.Header())  tells the client where it stands
//	guard.Deny(w, r, verdict)      writes the refusal
//
// # What clients see
//
// An admitted response, by draft-ietf-httpapi-ratelimit-headers-11:
//
//	RateLimit-Policy: "api";q=100;w=60
//	RateLimit: "api";r=87;t=1
//
// The policy "api" grants 100 units in 60 seconds; 87 are left, and within a second
// there is one more. A refused response has besides:
//
//	HTTP/1.1 429 Too Many Requests
//	Retry-After: 7
//	Content-Type: application/problem+json
//	Cache-Control: no-store
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["api"]}
//
// All times are in seconds, rounded up. [Config].Fields chooses older fields, or
// none. Scripts in a browser can read the fields of another origin's response only
// if it says
//
//	Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After
//
// which is for the server's CORS middleware to set.
//
// # Statuses of refusals
//
//	400 or 403  no key: nobody can be charged ([Config].KeyErrorStatus)
//	429         over a limit
//	500         a rule answered what makes no sense, such as a negative cost
//	503         the store could not answer; Retry-After is 5 seconds
//
// Whether a store that is away refuses or admits is for the store to say. The
// bodies are problem documents (RFC 9457) and never hold a key.
//
// # Several rules
//
// Rules are asked together, all or nothing: a request that one of them refuses is
// charged to none. So a session can have a limit, and the address that many
// sessions share a larger one.
//
// # After the response
//
// What a request costs is sometimes known only afterwards. [Rule].Settle corrects
// the charge when the handler is done: to count failed logins only, or to reserve
// an estimate and charge the number that the handler tells with [SetCost].
//
// # Before a limit is enforced
//
// [Config].ObserveOnly is shadow mode: every request passes and is charged, no
// client sees anything, and [Config].Observe is told who would have been refused.
package nethttp
