package grpcmw

import (
	"context"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Config is what a [Guard] does.
type Config = rpc.Config

// A Guard decides which calls to admit. Make one with [New]. It is safe for concurrent use.
type Guard struct {
	guard  *rpc.Guard
	config Config
}

// New returns a guard. The error has all faults of the Config, one line a rule.
func New(config Config) (*Guard, error) {
	guard, err := rpc.New(config, codeOf)
	if err != nil {
		return nil, err
	}
	return &Guard{guard, config}, nil
}

// Unary returns the interceptor of unary calls.
func (g *Guard) Unary() grpc.UnaryServerInterceptor {
	return func(
		ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (response any, err error) {
		call := callOf(ctx, info.FullMethod)
		call.Message = message
		refusal := g.guard.Serve(ctx, call, func(visit *rpc.Visit) (any, error) {
			if len(visit.Fields) > 0 {
				_ = grpc.SetHeader(ctx, header(visit.Fields))
			}
			response, err = handler(visit.Context, message)
			return response, err
		})
		if refusal != nil {
			_ = grpc.SetTrailer(ctx, header(refusal.Fields))
			return nil, statusOf(refusal)
		}
		return response, err
	}
}

// Stream returns the interceptor of streams.
func (g *Guard) Stream() grpc.StreamServerInterceptor {
	return func(
		server any, inner grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
	) (err error) {
		call := callOf(inner.Context(), info.FullMethod)
		refusal := g.guard.Serve(inner.Context(), call, func(visit *rpc.Visit) (any, error) {
			if len(visit.Fields) > 0 {
				_ = inner.SetHeader(header(visit.Fields))
			}
			err = handler(server, &stream{inner, visit})
			refused := visit.Refused()
			if refused != nil { // whatever the handler has made of the error
				inner.SetTrailer(header(refused.Fields))
				err = statusOf(refused)
			}
			return nil, err
		})
		if refusal != nil {
			inner.SetTrailer(header(refusal.Fields))
			return statusOf(refusal)
		}
		return err
	}
}

// Tap returns a handle that decides about calls before they take memory and a goroutine:
//
//	grpc.NewServer(grpc.InTapHandle(guard.Tap()))
//
// It is called in the loop that reads a connection, which waits for it. So its limiters should be over a
// [core.MemoryStore], and there are only Rates without Settle: Tap panics otherwise. It knows no message, and the
// metadata of responses are not set: a refusal has the details of its status.
//
// Do not use the guard of a Tap for interceptors too: calls would be charged twice.
func (g *Guard) Tap() tap.ServerInHandle {
	settles := slices.ContainsFunc(g.config.Rates, func(rule nethttp.Rate) bool { return rule.Settle != nil })
	if settles || len(g.config.Concurrency)+len(g.config.Messages) > 0 {
		panic("headgate: grpcmw: a Tap has only Rates, without Settle")
	}
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		call := callOf(metadata.NewIncomingContext(ctx, info.Header), info.FullMethodName)
		refusal := g.guard.Serve(ctx, call, func(*rpc.Visit) (any, error) { return nil, nil })
		if refusal != nil {
			return nil, statusOf(refusal)
		}
		return ctx, nil
	}
}

// A stream charges what it receives.
type stream struct {
	grpc.ServerStream

	visit *rpc.Visit
}

// Context implements [grpc.ServerStream].
func (s *stream) Context() context.Context { return s.visit.Context }

// RecvMsg implements [grpc.ServerStream].
func (s *stream) RecvMsg(message any) error {
	refusal := s.visit.Refused()
	if refusal != nil {
		return statusOf(refusal)
	}
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	refusal = s.visit.Receive(message)
	if refusal != nil {
		return statusOf(refusal)
	}
	return nil
}

// callOf returns what is known of a call before its message.
func callOf(ctx context.Context, method string) *rpc.Call {
	fields, _ := metadata.FromIncomingContext(ctx)
	call := &rpc.Call{Procedure: method, Header: make(http.Header, len(fields)), PriorKnowledge: true}
	for name, values := range fields {
		call.Header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	call.Host = first(fields, ":authority")
	client, ok := peer.FromContext(ctx)
	if !ok {
		return call
	}
	if client.Addr != nil {
		call.RemoteAddr = client.Addr.String()
	}
	if info, ok := client.AuthInfo.(credentials.TLSInfo); ok {
		call.TLS = &info.State
	}
	return call
}

func first(fields metadata.MD, name string) string {
	values := fields[name]
	if len(values) > 0 {
		return values[0]
	}
	return ""
}

// codeOf returns the code of what a handler returned.
func codeOf(err error) rpc.Code {
	if err == io.EOF { //nolint:errorlint // as grpc-go compares it
		return rpc.Unknown
	}
	return rpc.Code(status.Code(err))
}

// header returns fields as metadata. Those of a refusal are all in the trailer: a response that has
// begun with a header is not retried by the client (gRFC A6).
func header(fields http.Header) metadata.MD {
	md := make(metadata.MD, len(fields))
	for name, values := range fields {
		md[strings.ToLower(name)] = values
	}
	return md
}

// statusOf returns the error of a refusal.
func statusOf(refusal *rpc.Refusal) error {
	answer := status.New(codes.Code(refusal.Code), refusal.Text)
	detailed, err := answer.WithDetails(refusal.Details()...)
	if err == nil {
		answer = detailed
	}
	return answer.Err()
}

// Methods returns a Skip for the full methods that begin with one of the prefixes, such as
// "/grpc.health.v1.Health/".
func Methods(prefixes ...string) func(*http.Request) bool { return rpc.Procedures(prefixes) }

// Metadata returns a key that is the first metadata value of that name. See [keyfuncs.Header]. Clients choose it,
// unless something before the guard has checked it.
func Metadata(name string) keyfuncs.Func { return keyfuncs.Header(name) }

// Method returns a key that is the full method, such as "/package.Service/Method".
func Method() keyfuncs.Func { return rpc.Procedure }

// TLSSubject returns a key that is the subject of the client's certificate (RFC 4514), if the server has verified that.
// A call without one is [keyfuncs.ErrAbsent].
func TLSSubject() keyfuncs.Func { return rpc.TLSSubject }

// Message returns the message of a unary call, or under [Config].Messages the message that a stream
// has received. It is nil before it is known, as for the Rates of a stream.
func Message(r *http.Request) any { return rpc.Of(r).Message }

// Response returns the response of a unary call, for Settle; nil if there is none.
func Response(r *http.Request) any { return rpc.Of(r).Response }

// Code returns the code of a call that has ended, for Settle.
func Code(r *http.Request) codes.Code { return codes.Code(rpc.Of(r).Code) }

// GatewayHeader is for grpc-gateway, so that clients of HTTP get RateLimit, RateLimit-Policy and
// Retry-After as such: runtime.WithOutgoingHeaderMatcher(grpcmw.GatewayHeader). Other metadata get the
// prefix that grpc-gateway gives them. The metadata of refusals are in the trailer, from which an error
// handler takes them: see docs/grpc.md.
func GatewayHeader(key string) (name string, ok bool) {
	switch strings.ToLower(key) {
	case "ratelimit", "ratelimit-policy", "retry-after":
		return textproto.CanonicalMIMEHeaderKey(key), true
	}
	return "Grpc-Metadata-" + key, true
}
