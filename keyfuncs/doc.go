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
//	function               who writes the value
//	--------------------   ---------------------------------------------------------
//	Session                the session library that you ask
//	SignedCookie.Key       this server: no client can make or change one
//	Context, ContextFunc   your middleware, as of a verified token
//	Route                  the mux
//	Header, Cookie         the client: charge them where unknown values are refused
//	Bearer, BasicUser      the client: charge them behind authentication
//	PathValue              the client: for use within All
//
// Secrets are charged under a hash, by Session, Cookie and Bearer, and by [Hashed] what
// else is one: no store and no log has a token that can be used.
//
// # Many clients behind one address
//
// A campus, an office or a mobile network has one address for thousands. To tell them
// apart takes something that the client has from the server: a [Session], or where the
// service has none, a [SignedCookie]. But what a client has, it can leave out, or get
// anew. Three rules, asked together, bound what all who do so gain by it:
//
//	student := cookie.OlderThan(10 * time.Minute)
//
//	nethttp.Config{Rules: []nethttp.Rule{
//		{Limiter: perStudent, Key: student, Cost: keyfuncs.CostIf(student)},
//		{Limiter: newcomers, Key: address, Cost: keyfuncs.CostUnless(student)},
//		{Limiter: perAddress, Key: address},
//	}}
//	...
//	guard.Handler(cookie.Handler(next))
//
// Each established client has a limit. All others of an address together have one:
// those without a cookie, with a forged or expired one, and with one so young that they
// may have fetched it to escape a limit. So whoever rotates cookies takes only from the
// newcomers of the address; they are the price, for nothing tells them from the abuser.
// The third limit, the largest, is for the abuser who collects cookies over days. The
// whole is the example of [SignedCookie], and runs in examples/campus.
//
// With sessions of a library, count as established what costs something to get, such as
// a sign-in: a session that anybody can have is to be had a thousand times.
//
// If newcomers need no more than what one client has, two rules do:
//
//	{Limiter: perStudent, Key: keyfuncs.First(student, address)},
//	{Limiter: perAddress, Key: address},
//
// # Networks
//
// [In] and [NotIn] ask whether the client's address is in some networks: for those that
// are not limited, and for those that are refused.
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
