// Package keyfuncs says who is charged. A [Func] derives a key from a request;
// requests with the same key share a limit. There is no default: every limit
// states whom it charges.
//
// # The address of the client
//
// What the right address is depends on what stands in front of the server. Take
// the function that is named after your deployment:
//
//	in front of this server                              function
//	--------------------------------------------------   ---------------------------------------
//	nothing: clients connect to it                       RemoteAddr()
//	a proxy that puts the client's address in a header   ProxyHeader("X-Real-IP", "10.0.0.0/8")
//	proxies of known networks, X-Forwarded-For           XForwardedFor("10.0.0.0/8")
//	proxies of known networks, Forwarded (RFC 7239)      Forwarded("10.0.0.0/8")
//	exactly n proxies of changing addresses,             BehindProxies(n)
//	or one that connects over a unix socket
//
// Taking the wrong one has one of two results. RemoteAddr behind a proxy charges
// everybody as one client, the proxy: you notice. Believing a header that no
// proxy of yours writes lets each client name its own address, or another's: you
// do not notice. So these functions believe nothing that a client could have
// written, and charge the nearest address that can be trusted instead, which is a
// proxy's. If all your clients share a limit, the proxy does not write what you
// told this package that it writes.
//
// To try a deployment, send a request that lies, and see that you are charged as
// yourself:
//
//	curl -H 'X-Forwarded-For: 192.0.2.1' -H 'X-Real-IP: 192.0.2.1' https://...
//
// Addresses are written in one way, however they arrived: without port, brackets
// and zone; an IPv4 address within an IPv6 one (::ffff:203.0.113.7, or by NAT64,
// RFC 6052, 64:ff9b::203.0.113.7) as the IPv4 address. A household has 2^64 IPv6
// addresses or more, so they are charged by their /64; [Prefix] adjusts it. Keys
// look like "203.0.113.7" and "2001:db8:1:2::/64".
//
// # Other things
//
// [Header], [Method], [Route] and [Context] take the key from elsewhere in the
// request, [Everyone] is one key for all. [All] charges a combination, [First]
// the first that the request has:
//
//	keyfuncs.All(keyfuncs.Route(), keyfuncs.RemoteAddr())
//	keyfuncs.First(keyfuncs.Context(userKey{}), keyfuncs.RemoteAddr())
//
// A client that can choose its key has no limit: it takes a new key for each
// request. Before you charge something, ask who writes it.
//
// # Errors
//
// A Func gives a key or an error, never an empty key. The error says why no one
// can be charged; what becomes of such a request is for the caller to say. It
// names the thing, as "header X-Api-Key", and never holds its value: addresses
// and tokens are private.
//
// Faults of a deployment, as a network that does not parse, often come from a
// configuration file: they are returned as an error, all at once. Faults of the
// program, as a nil Func, panic where the function is made, so at its start.
// No Func of this package panics on a request.
//
// All functions of this package, and the Funcs they return, may be used by
// several goroutines at once.
package keyfuncs
