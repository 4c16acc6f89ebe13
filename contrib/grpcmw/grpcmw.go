package grpcmw

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// A Rule says who is limited, and how much: see [nethttp.Rule]. The Status of an Outcome is that which
// google/rpc/code.proto maps the code to, such as 200 for OK and 404 for NOT_FOUND. WhenFull must be
// Refuse.
type Rule = nethttp.Rule

// Config configures a [Guard]. Literals must name the fields. The functions in it must be safe for
// concurrent use.
type Config struct {
	// Rules are for calls, when they begin: see [nethttp.Config]. Slots are held until the call ends.
	Rules []Rule

	// Messages are for messages that a stream receives. They are rules for rates, without Settle and Report. Their
	// Cost may look at the [Message]. Over a limit, the stream receives no more, and ends with the
	// refusal, whatever its handler returns. There must be Rules or Messages.
	Messages []Rule

	// Wait is how long a call waits for slots of rules with a Queue: see [nethttp.Config].
	Wait time.Duration

	// Skip reports whether to admit a call without applying any rule: see [Methods]. Messages are not
	// limited either.
	Skip func(*http.Request) bool

	// NoFields omits the metadata ratelimit and ratelimit-policy.
	NoFields bool

	// Observe, Logger, ObserveOnly and OnSettled are as in [nethttp.Config].
	Observe     func(*http.Request, nethttp.Verdict)
	Logger      *slog.Logger
	ObserveOnly bool
	OnSettled   func(r *http.Request, uncovered int64, err error)
}

// A Guard decides which calls to admit. Make one with [New]. It is safe for concurrent use.
type Guard struct {
	guard  *rpc.Guard
	config Config
}

// New returns a guard. The error joins a [nethttp.ConfigError] for each fault of the Config.
func New(c Config) (*Guard, error) {
	g, err := rpc.New(rpc.Config(c))
	if err != nil {
		return nil, err
	}
	return &Guard{g, c}, nil
}

// Unary returns the interceptor of unary calls.
func (g *Guard) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
		call := callOf(ctx, info.FullMethod)
		call.Message = message
		v := g.guard.Enter(ctx, call)
		if f := v.Refusal; f != nil {
			_ = grpc.SetTrailer(ctx, header(f.ResponseFields()))
			return nil, statusOf(f).Err()
		}
		if len(v.Fields) > 0 {
			_ = grpc.SetHeader(ctx, header(v.Fields))
		}
		code := rpc.Internal // if the handler panics
		defer func() { v.End(response, err, code) }()
		response, err = handler(v.Context, message)
		code = codeOf(err)
		return response, err
	}
}

// Stream returns the interceptor of streams.
func (g *Guard) Stream() grpc.StreamServerInterceptor {
	return func(server any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		v := g.guard.Enter(ss.Context(), callOf(ss.Context(), info.FullMethod))
		if f := v.Refusal; f != nil {
			ss.SetTrailer(header(f.ResponseFields()))
			return statusOf(f).Err()
		}
		if len(v.Fields) > 0 {
			_ = ss.SetHeader(header(v.Fields))
		}
		code := rpc.Internal // if the handler panics
		defer func() { v.End(nil, err, code) }()
		err = handler(server, &stream{ss, v})
		if f := v.Refused(); f != nil {
			ss.SetTrailer(header(f.ResponseFields()))
			err = statusOf(f).Err()
		}
		code = codeOf(err)
		return err
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
func (s *stream) RecvMsg(m any) error {
	if f := s.visit.Refused(); f != nil {
		return statusOf(f).Err()
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if f := s.visit.Receive(m); f != nil {
		return statusOf(f).Err()
	}
	return nil
}

// callOf returns what is known of a call before its message.
func callOf(ctx context.Context, method string) *rpc.Call {
	md, _ := metadata.FromIncomingContext(ctx)
	c := &rpc.Call{Procedure: method, Header: make(http.Header, len(md)), PriorKnowledge: true}
	for name, values := range md {
		c.Header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	c.Host = first(md, ":authority")
	p, ok := peer.FromContext(ctx)
	if !ok {
		return c
	}
	if p.Addr != nil {
		c.RemoteAddr = p.Addr.String()
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		c.TLS = &info.State
	}
	return c
}

func first(md metadata.MD, name string) string {
	if values := md[name]; len(values) > 0 {
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
func header(h http.Header) metadata.MD {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md[strings.ToLower(name)] = values
	}
	return md
}

// statusOf returns the status of a refusal.
func statusOf(f *rpc.Refusal) *status.Status {
	s := status.New(codes.Code(f.Code), f.Text)
	var details []protoadapt.MessageV1
	if len(f.Violations) > 0 {
		quota := &errdetails.QuotaFailure{}
		for _, v := range f.Violations {
			quota.Violations = append(quota.Violations, &errdetails.QuotaFailure_Violation{Subject: v.Policy, Description: v.Limit})
		}
		details = append(details, quota)
	}
	if f.RetryAfter > 0 && f.RetryAfter != core.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryAfter)})
	}
	if with, err := s.WithDetails(details...); err == nil {
		return with
	}
	return s
}

// Methods returns a Skip for the full methods that begin with one of the prefixes, such as
// "/grpc.health.v1.Health/".
func Methods(prefixes ...string) func(*http.Request) bool { return rpc.Procedures(prefixes) }

// Message returns the message of a unary call, or under [Config].Messages the message that a stream
// has received. It is nil before it is known, as for the Rules of a stream.
func Message(r *http.Request) any { return rpc.Of(r).Message }

// Response returns the response of a unary call, for Settle and Report; nil if there is none.
func Response(r *http.Request) any { return rpc.Of(r).Response }

// Code returns the code of a call that has ended, for Settle and Report.
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
