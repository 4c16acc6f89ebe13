// Package headgated is a rate limit service: it offers the limits of this library to programs in
// any language, and to proxies. Proxies ask it before they let a request through. Envoy asks it as
// its rate limit service. Its command runs on its own, in a checkout:
//
//	go run ./cmd/headgated -config example.yaml
//
// A program that embeds it makes a [Server]:
//
//	s, err := headgated.New(headgated.Config{Document: limits.File("example.yaml"), HTTP: "127.0.0.1:8080"})
//	...
//	addrs, err := s.Listen()
//	...
//	err = s.Serve(ctx)
//
// Packages core and limits make the decisions. They count quotas in memory, or in Redis, where all
// servers share them.
//
// # The document
//
// It is YAML, or JSON if it begins with a brace:
//
//	limits:                        # as package limits describes
//	  api:
//	    default: free
//	    plans: {free: sliding-window 20/minute, gold: sliding-window 600/minute}
//	trusted: [10.0.0.0/8]          # the proxies whose X-Forwarded fields are believed
//	routes:                        # what requests are charged that proxies ask about
//	  - path: /healthz
//	    charge: []
//	  - {host: api.example.com, method: [POST], path: "/v1/{tenant}/chat", charge: [
//	      {limit: api, key: ["path:tenant", bearer], units: 1, plan: "header:X-Plan"}]}
//	  - charge: [{limit: api, key: address}]
//	rls:                           # what Envoy asks about: configurations of its rate limit service
//	  - domain: front
//	    charge: all                # or each
//	    failure: closed            # who decides without Redis: local, open or closed
//	    descriptors:
//	      - {key: user, rate_limit: {unit: minute, requests_per_unit: 20}}
//	      - {key: tenant, headgate: {limit: api}}
//	      - {key: model, headgate: {policy: sliding-window 100/minute}}
//
// The first route that matches a request names its charges: up to 8 limits, all or none. A host is
// compared without its port. A route for GET matches HEAD too. In a path, {name} stands for one
// segment, and {name...} for all that follows. The path is compared as servers read it: decoded,
// with dots resolved and repeated slashes as one. A request that matches no route is charged
// nothing. So let the last route match everything.
//
// Servers may read an encoded slash or dot, or a semicolon, in several ways. If these have other
// first routes, the request is charged for all of them. What they have in common is charged once. If
// the charges are more than 8 together, the request is refused with 400. Charges of one limit, plan
// and key are one charge, of all units. One key of a limit under two plans is refused with 400.
//
// A key is one of these, or a list of them, which is charged as one. Package keyfuncs describes each.
//
//	address        the client's address, or its /64 network
//	header:NAME    a header, such as an API key
//	cookie:NAME    a cookie, as a hash
//	bearer         the token of Authorization: Bearer, as a hash
//	basic          the user name of basic authentication
//	path:NAME      a segment of the path
//	method         the method
//	everyone       one key for all
//
// units are 1 by default. 0 units only check, for a cost that the application reports later. A
// request that lacks a key is refused with 400. plan names the header with the plan of the request.
// Without that header, or for an unknown plan, the default of the limit applies. Let the proxy set
// the header, or clients choose their plan.
//
// The document is read again when it changes, and applies as a whole or not at all. Replace the file by
// renaming another over it. With [Config].LimitsKey, the limits are in Redis instead, where the command
// headgate push writes them. Counts, remembered refusals and leases of limits that did not change stay.
//
// A domain has the keys of envoyproxy/ratelimit. It may also have charge, failure and headgate, which
// only this service knows. The page docs/envoy.md describes them. Domains may also be in files of their
// own, in [Config].EnvoyConfig. A document with rls needs no limits.
//
// # For programs
//
// POST /v1/charge charges several limits, all or none. POST /v1/check gives the same answer and
// charges nothing. POST /v1/report counts units that have been used already, such as the tokens of an
// answer, whether they fit or not.
//
//	{"charges": [{"limit": "api", "key": "anna", "units": 1, "plan": "gold"}]}
//
// There are up to 64 charges. units are 1 by default, and plan is the default of the limit. 0 units
// check only. An admitted charge is answered with status 200, and a refused one with 429. A check and
// a report have 200 for either.
//
//	{"allowed": true, "source": "store", "limit": 20, "remaining": 19, "reset_after_us": 3000000, "retry_after_us": 0,
//	 "answers": [{"limiter": "api", "policy": "api", "allowed": true, "limit": 20, "remaining": 19, "window_us": 60000000,
//	              "next_after_us": 3000000, "reset_after_us": 3000000, "retry_after_us": 0}]}
//
// A report also has "uncovered", the units for which there was no room. The members are the fields
// of core.Decision. Times are in microseconds, and null is never. A 429 is a problem document (RFC
// 9457) with the same members, and has Retry-After. Every decision has the RateLimit fields. Other
// errors are problem documents too, whose detail names the fault. They have status 400, 413 or
// 415. An unknown limit or plan has 404, and a missing decision 503.
//
// # For proxies
//
// /v1/auth answers a proxy with 200, or with the refusal that the client gets. Both have the
// RateLimit fields. It reads X-Forwarded-Method, X-Forwarded-Host, X-Forwarded-Uri and
// X-Forwarded-For, if the peer is a trusted proxy. The proxy must set them itself. The peer on a
// unix socket is always trusted. From another peer they are not read: then the request is about
// itself. For nginx, a parameter makes refusals of status 403, with X-Headgate-Status: 429:
//
//	proxy_pass http://headgated/v1/auth?deny=403;
//
// The page docs/headgated.md has the lines for nginx, Caddy, HAProxy and Traefik.
package headgated
