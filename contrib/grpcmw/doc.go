// Package grpcmw is a rate limiter and a concurrency limiter for gRPC servers. It limits calls a
// minute, tokens a minute, streams at once, and messages a minute within a stream. A limit holds in
// one process or over all servers.
//
//	guard, err := grpcmw.New(grpcmw.Config{Rates: []nethttp.Rate{
//		{Limiter: calls, Key: grpcmw.Metadata("x-api-key")},
//	}})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(guard.Unary()),
//		grpc.ChainStreamInterceptor(guard.Stream()),
//	)
//
// A call is a request of package nethttp: its metadata are the header, its full method is the path, and both have the
// same context. So rules are those of [nethttp.Config], their functions get an *http.Request, every key of package
// keyfuncs serves, and [nethttp.SetCost] works in handlers. [Message], [Response] and [Code] return values that only
// calls have.
//
// # Refusals
//
//	RESOURCE_EXHAUSTED  over a limit
//	UNAVAILABLE         there is no decision: the store is away, and configured to fail closed
//	INVALID_ARGUMENT    a Key returned no key
//	INTERNAL            a fault of the program, such as a negative Cost
//
// Those over a limit tell the client when to come back:
//
//   - google.rpc.RetryInfo, in the details of the status. There is none if no retry can succeed.
//   - google.rpc.QuotaFailure, with the names of the policies and slots that refused. Keys are nowhere.
//   - ratelimit, ratelimit-policy and retry-after, as of HTTP, in the trailer.
//   - grpc-retry-pushback-ms in the trailer, which clients with a retry policy obey (gRFC A6): milliseconds,
//     or -1 if no retry can succeed.
//
// Calls that are admitted have ratelimit and ratelimit-policy in the header.
//
// # Streams
//
// The rates of a stream are charged when it begins. Its slots are held until its handler returns, so handlers should
// return when their context ends. The rates under Messages are charged for each message that a stream receives.
//
// # Health checks and reflection
//
// They are calls like all others. Skip exempts them:
//
//	Skip: grpcmw.Methods("/grpc.health.v1.Health/", "/grpc.reflection."),
package grpcmw
