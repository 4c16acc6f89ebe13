// Package headgated is the limits of this library as a service: for programs in any language, and for
// proxies that ask before they let a request through, among them Envoy with its rate limit service. Its command runs on its own, in a checkout:
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
// Nothing is decided here. Limits are those of packages limits and core, counted in memory or in Redis,
// and shared by all servers then.
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
// The first route that matches a request says what it is charged: up to 8 limits, all or none. A host
// is compared without its port, and GET is HEAD too. In a path, {name} stands for one part, and {name...}
// for all that follows. It is compared as servers read it: decoded, with dots resolved and repeated
// slashes as one. If no route matches, nothing is charged; so let the last one be for everything.
//
// A key is one of these, or a list of them, which is charged as one. Package keyfuncs describes each.
//
//	address        the client's address, or its /64 network
//	header:NAME    a header, such as an API key
//	cookie:NAME    a cookie, as a hash
//	bearer         the token of Authorization: Bearer, as a hash
//	basic          the user name of basic authentication
//	path:NAME      a part of the path
//	method         the method
//	everyone       one key for all
//
// units are 1 if they are not there, and 0 only checks, for what the application reports later.
// A request without what is charged is refused with 400. plan names the header with the plan of the
// request. Without one, or with a plan that there is not, the default of the limit applies: let the proxy
// set that header, or clients choose their plan.
//
// The document is read again when it changes, and applies as a whole or not at all. Replace the file by
// renaming another over it. With [Config].LimitsKey, the limits are in Redis instead, where the command
// headgate push writes them. Counts, remembered refusals and leases of limits that did not change stay.
//
// A domain has the keys of envoyproxy/ratelimit, and charge, failure and headgate, which are ours. The page
// docs/envoy.md describes them. They may also be in files of their own, in [Config].EnvoyConfig. A document
// with rls needs no limits.
//
// # For programs
//
// POST /v1/charge charges several limits, all or none. POST /v1/check answers alike, and charges nothing.
// POST /v1/report counts what has been used already, such as the tokens of an answer, whether it fits or not.
//
//	{"charges": [{"limit": "api", "key": "anna", "units": 1, "plan": "gold"}]}
//
// There are up to 64 charges. units are 1 if they are not there, and a plan is the default of the limit. 0 units
// check only. The answer to what is admitted has status 200, and to a charge that is refused 429. A check and a
// report have 200 for either.
//
//	{"allowed": true, "source": "store", "limit": 20, "remaining": 19, "reset_after_us": 3000000, "retry_after_us": 0,
//	 "answers": [{"limiter": "api", "policy": "api", "allowed": true, "limit": 20, "remaining": 19, "window_us": 60000000,
//	              "next_after_us": 3000000, "reset_after_us": 3000000, "retry_after_us": 0}]}
//
// A report has "uncovered" too, the units for which there was no room. The numbers are those of
// core.Decision, the times in microseconds, and null is never. A 429 is a problem document (RFC 9457) with
// the same members, and has Retry-After; both have the RateLimit fields. Other errors are problem documents
// too, whose detail says what is wrong: 400, 404 for a limit or plan that there is not, 413, 415, and 503 if
// there is no decision.
//
// # For proxies
//
// /v1/auth answers a proxy with 200, or with the refusal that the client gets, and with the RateLimit fields
// in either case. Of a proxy that is trusted it reads X-Forwarded-Method, X-Forwarded-Host, X-Forwarded-Uri
// and X-Forwarded-For, which the proxy must set itself. The peer on a unix socket is always trusted. What
// another peer sends is not read: then the request is about itself. /v1/auth?deny=403 refuses with 403
// and X-Headgate-Status: 429, for nginx.
//
// The page docs/headgated.md has the lines for nginx, Caddy, HAProxy and Traefik.
package headgated
