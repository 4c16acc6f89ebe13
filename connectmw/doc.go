// Package connectmw is a rate limiter and a concurrency limiter for servers of connect-go, for its
// protocols Connect, gRPC and gRPC-Web: calls a minute, tokens a minute, streams at once, and messages a
// minute within a stream, in one process or over all servers.
//
//	guard, err := connectmw.New(connectmw.Config{Rules: []connectmw.Rule{
//		{Key: connectmw.Metadata("X-Api-Key"), Limiter: calls},
//	}})
//	path, handler := pingconnect.NewPingServiceHandler(ping, connect.WithInterceptors(guard))
//	http.ListenAndServe(address, connectmw.Requests(handler))
//
// A call is a request of package nethttp. Rules are those of nethttp.Rule, their functions get an
// *http.Request, and every key of package keyfuncs serves. [Message], [Response] and [Code] return what
// only calls have. Interceptors do not get the request of HTTP: behind [Requests] it is the true one, and
// otherwise it is made of what they get, and has no TLS. Keys that believe proxies, and [TLSSubject],
// need Requests.
//
// Refusals, streams and what is exempt are those of package grpcmw, but the error of a unary handler has no
// RateLimit fields: it belongs to the handler. The metadata of a refusal are in the
// Meta of the error: clients of gRPC find them in the trailer, those of Connect in the header of a unary
// response, whose status is 429. The details of the error are google.rpc.RetryInfo and
// google.rpc.QuotaFailure in all protocols, also for browsers.
package connectmw
