// Package keyfuncs provides the keys that limits charge. A [Func] derives a key from a
// request; requests with the same key share a limit. There is no default: every limit
// must name its key.
//
// # The address of the client
//
// The right address depends on the proxies in front of the server. Use the function that is named
// after your deployment:
//
//	in front of this server                              function
//	--------------------------------------------------   ---------------------------------------
//	nothing: clients connect to it                       RemoteAddr()
//	a proxy that puts the client's address in a header   ProxyHeader("X-Real-IP", "10.0.0.0/8")
//	proxies of known networks, X-Forwarded-For           XForwardedFor("10.0.0.0/8")
//	proxies of known networks, Forwarded (RFC 7239)      Forwarded("10.0.0.0/8")
//	the same, over a unix socket                         XForwardedFor(keyfuncs.Unix)
//	exactly n proxies of changing addresses              BehindProxies(n)
//
// The wrong one has one of two results. RemoteAddr behind a proxy charges all clients as
// one, the proxy, which you will notice. Trusting a header that none of your proxies
// writes lets each client choose its own address, or another's, which you will not
// notice. So these functions never trust what a client could have written. If a proxy does
// not write the header that the function expects, they return an error, and the guard
// refuses the request.
//
// To test a deployment, send a request with forged headers, and check that your own
// address is charged:
//
//	curl -H 'X-Forwarded-For: 192.0.2.1' -H 'X-Real-IP: 192.0.2.1' https://...
//
// They also return an error if a proxy may pass the request on unread, as through a tunnel. Then the
// client chooses its headers. The first case is the method CONNECT over HTTP/1.1 from a proxy. After a
// status of 200, HAProxy passes on everything that the client then sends. A route without a limit may
// answer so too, so refuse the method in the proxy:
//
//	http-request deny if METH_CONNECT
//
// The second case is HTTP/2 after an upgrade by a handler, such as h2c.NewHandler of golang.org/x/net,
// Gin's UseH2C and Echo's StartH2CServer. HAProxy forwards a client's "Upgrade: h2c" by default. So does
// nginx with "proxy_set_header Connection $http_connection". Instead, let http.Server read HTTP/2
// without TLS. It ignores upgrades, so its requests are believed:
//
//	protocols := new(http.Protocols)
//	protocols.SetHTTP1(true)
//	protocols.SetUnencryptedHTTP2(true)
//	server := &http.Server{Handler: handler, Protocols: protocols}
//
// The server is found in the request's context, under http.ServerContextKey. So middleware must derive
// its contexts from the request's. Without UnencryptedHTTP2, only HTTP/2 over TLS is believed, which
// Request.TLS shows. From Go 1.27 on, it shows TLS only if the proxy names the scheme https.
// HTTP/2 without a server is refused. For FastCGI behind nginx, set
// "fastcgi_param SERVER_PROTOCOL HTTP/1.1".
//
// Never combine UnencryptedHTTP2 with such a handler: these functions cannot tell the two apart, and
// believe both. Nor can they recognize a handler that answers 101 and does not hijack the connection.
//
// The health checks of a balancer or a kubelet do not pass through a proxy, and so have no
// header and no key. Leave their route without a limit: mount it outside the guard, or name
// it in nethttp's Config.Skip:
//
//	nethttp.Config{Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" }, ...}
//
// Keys have one form for each address: without port, brackets and zone. An IPv6 address that stands
// for an IPv4 address is charged as the IPv4 address. These forms are recognized:
//
//	IPv4-mapped   ::ffff:203.0.113.7
//	NAT64         64:ff9b::203.0.113.7, RFC 6052
//	6to4          2002:cb00:7107::1, RFC 3056
//	Teredo        RFC 4380
//
// NAT64 with a prefix of your own is not recognized: all of its IPv4 clients have one key. A household
// has 2^64 IPv6 addresses or more. So IPv6 addresses are charged by their /64, which [Network] can
// change. Examples of keys are "203.0.113.7" and "2001:db8:1:2::/64".
//
// # Other things
//
// [Header], [Route], [Context] and [From] take the key from other parts of the
// request; [Everyone] is one key for all requests. [All] charges a combination, [First]
// the first key that the request has:
//
//	keyfuncs.All(keyfuncs.Route(), keyfuncs.RemoteAddr())
//	keyfuncs.First(keyfuncs.Tag("user", keyfuncs.Context(userKey{})), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
//
// A Func also tells which plan applies to a request, such as Context(planKey{}).
//
// A client that can choose its key has no limit, because it can use a new key for each
// request. Before you charge a value, consider who writes it.
//
//	function           who writes the value
//	----------------   ---------------------------------------------------------
//	SignedCookie.Key   this server: no client can make or change one
//	Context, From      your middleware, such as from a session or a verified token
//	Route              the mux
//	Header, Cookie     the client: charge them where unknown values are refused
//	Bearer             the client: charge it behind authentication
//	PathValue          the client: for use within All
//
// Cookie and Bearer charge a hash of the secret, and [Hashed] does so for other secrets, as sessions are.
// So no store or log contains a usable token.
//
// # Many clients behind one address
//
// A campus, an office or a mobile network can have one address for thousands of clients.
// To distinguish them, use something that the server gave to the client: a session, by [From], or
// if the service has none, a [SignedCookie]. But a client can omit it, or get a new one.
// Four rules, applied together, bound what clients gain by doing so:
//
//	student := cookie.OlderThan(10 * time.Minute)
//
//	nethttp.Config{Rates: []nethttp.Rate{
//		{Limiter: perStudent, Key: student, Skip: keyfuncs.Lacks(student)},
//		{Limiter: newcomers, Key: address, Skip: keyfuncs.Has(student)},
//		{Limiter: cookies, Key: address, Skip: keyfuncs.Has(cookie.Key)},
//		{Limiter: perAddress, Key: address},
//	}}
//	...
//	guard.Handler(cookie.Handler(next))
//
// Each established client has a limit. All other clients of an address share one. They have no cookie,
// a forged or expired one, or one so new that they may have requested it to escape a limit. So a client
// that rotates cookies takes units only from the newcomers of its address, which cannot be
// distinguished from it.
//
// The third limit is for clients that collect cookies until these are established. It limits new
// cookies during the time for which a cookie is valid, and so the valid cookies of an address. An
// example is core.SlidingLog(100, 24*time.Hour). The last limit, the largest, is for the
// address. Let it exceed what the clients need by
//
//	cookies × perStudent + perStudent + newcomers
//
// The price is that an address can have no more than 100 new browsers in 24 hours, and one abuser may
// be all of them. So give an established cookie to clients that are known otherwise, such as when they
// sign in. Also limit how often an account may sign in:
//
//	http.SetCookie(w, cookie.New(time.Now().Add(-10*time.Minute)))
//
// The example of [SignedCookie] shows the complete code.
//
// With the sessions of a library, treat as established only sessions that are costly to get, such
// as by signing in. A client can get any number of free sessions.
//
// If newcomers need no more than one client may use, the first two rules can be one:
//
//	{Limiter: perStudent, Key: keyfuncs.First(keyfuncs.Tag("student", student), keyfuncs.Tag("ip", address))},
//
// # Networks
//
// [In] reports whether the client's address is in given networks. Nethttp's Config.Skip exempts clients
// from limits by it.
//
// # Errors
//
// A Func returns a key or an error, never an empty key. The error says why the request
// has no key; the caller decides what to do with such a request. It names the source of
// the key, such as "header X-Api-Key", and never contains its value, because addresses
// and tokens are private.
//
// A wrong argument is a fault of the program, such as a nil Func or a network that does not parse. It panics
// where a Func is made. Networks that are data, as from a configuration file, are checked before, by
// [CheckNetworks]. The Funcs of this package do not panic.
//
// All functions of this package, and the Funcs they return, are safe for concurrent use.
package keyfuncs
