// Package inflight limits how many requests are handled at once, for each user, each route or
// the whole service, in one process or across all servers.
//
// A [Guard] stands in front of a handler. It takes a slot of package core, or waits for one in
// line, calls the handler, and releases the slot when the handler returns or panics:
//
//	limit := core.Must(inflight.Limit("exports", keyfuncs.Context(userKey{}), 2))
//	http.Handle("/export", limit.Handler(export))
//
// [New] makes a guard of a [Config], under which requests can wait, among other things:
//
//	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "exports", 2)
//	...
//	guard, err := inflight.New(inflight.Config{
//		Rules: []inflight.Rule{{Slots: slots, Key: keyfuncs.Context(userKey{})}},
//		Queue: 5,
//		Wait:  10 * time.Second,
//	})
//	...
//	http.Handle("/export", guard.Handler(export))
//
// Server-Sent Events and long polls count for as long as their handler runs. WebSockets, which
// outlive their handler, are limited by package websocketmw. Packages ginmw, echomw and
// echov5mw have the middleware InFlight.
//
// # Waiting
//
// A request for which there is no slot waits, if [Config].Queue allows: at most that many in
// this process for each key that is full, each for at most [Config].Wait. They are served in
// the order in which they came. One whose client hangs up leaves the line; of a request with a
// body that is noticed only when the wait is over, as net/http watches the connection only
// when the body has been read.
//
// # What clients see
//
//	RateLimit-Policy: "exports";q=2;qu="concurrent-requests"
//	RateLimit: "exports";r=1
//
// A refusal is a problem document (RFC 9457), with a Retry-After of 1 to 5 seconds, at random,
// so that not all clients come back at once. Its status is one of these:
//
//	400 or 403  a rule has no key for the request ([Config].KeyErrorStatus)
//	429         the client's own limit is reached, and nobody else may wait or the wait is over
//	500         a [Rule].Plan returned slots that do not belong to its rule, or a Key
//	            [keyfuncs.ErrProgram]
//	503         the same for a limit of the service ([Rule].Service); or the store cannot
//	            answer, the slots are closed, or the client has hung up
//
// # Before a limit is enforced
//
// [Config].ObserveOnly is shadow mode.
package inflight
