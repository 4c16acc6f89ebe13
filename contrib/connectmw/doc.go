// Package connectmw is a rate limiter and a concurrency limiter for servers of connect-go. It serves
// the protocols Connect, gRPC and gRPC-Web. It limits calls a minute, tokens a minute, streams at once,
// and messages a minute within a stream, in one process or over all servers.
//
//	guard, err := connectmw.New(connectmw.Config{Rates: []nethttp.Rate{
//		{Limiter: calls, Key: connectmw.Metadata("X-Api-Key")},
//	}})
//	path, handler := pingconnect.NewPingServiceHandler(ping, connect.WithInterceptors(guard))
//	http.ListenAndServe(address, connectmw.Requests(handler))
//
// A call is a request of package nethttp. Rules are those of nethttp.Config, their functions get an *http.Request,
// every key of package keyfuncs serves, and nethttp.SetCost works in handlers. [Message], [Response] and [Code] return
// values that only calls have.
//
// Interceptors do not get the HTTP request. Behind [Requests], functions get the true request. Otherwise
// they get one made of the values that interceptors see, without TLS. Keys that believe proxies, and
// [TLSSubject], need Requests.
//
// Refusals, streams and exemptions are as in package grpcmw. One difference: the error of a unary
// handler has no RateLimit fields, because the error belongs to the handler.
//
// The metadata of a refusal are in the Meta of the error. Clients of gRPC find them in the trailer.
// Clients of Connect find them in the header of a unary response, whose status is 429. The details of
// the error are google.rpc.RetryInfo and google.rpc.QuotaFailure in all protocols, also for browsers.
package connectmw
