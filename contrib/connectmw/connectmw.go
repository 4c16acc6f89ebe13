package connectmw

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// A Rule says who is limited, and how much: see [nethttp.Rule]. The Status of an Outcome is that which
// google/rpc/code.proto maps the code to, such as 200 for no error and 404 for not_found. WhenFull must
// be Refuse.
type Rule = nethttp.Rule

// Config configures a [Guard]. Literals must name the fields. The functions in it must be safe for
// concurrent use. The fields are as in grpcmw.Config.
type Config struct {
	// Rules are for calls, when they begin. Slots are held until the call ends.
	Rules []Rule

	// Messages are for messages that a stream receives: rules for rates, without Settle and Report. Over a limit,
	// the stream ends with the refusal, whatever its handler returns.
	Messages []Rule

	// Wait is how long a call waits for slots of rules with a Queue.
	Wait time.Duration

	// Skip reports whether to admit a call without applying any rule: see [Procedures].
	Skip func(*http.Request) bool

	// NoFields omits the fields RateLimit and RateLimit-Policy.
	NoFields bool

	// Observe, Logger, ObserveOnly and OnSettled are as in [nethttp.Config].
	Observe     func(*http.Request, nethttp.Verdict)
	Logger      *slog.Logger
	ObserveOnly bool
	OnSettled   func(r *http.Request, uncovered int64, err error)
}

// A Guard is a [connect.Interceptor] that decides which calls handlers get. It does nothing in clients.
// Make one with [New]. It is safe for concurrent use.
type Guard struct{ guard *rpc.Guard }

var _ connect.Interceptor = (*Guard)(nil)

// New returns a guard. The error joins a [nethttp.ConfigError] for each fault of the Config.
func New(c Config) (*Guard, error) {
	g, err := rpc.New(rpc.Config(c))
	if err != nil {
		return nil, err
	}
	return &Guard{g}, nil
}

// WrapUnary implements [connect.Interceptor].
func (g *Guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (response connect.AnyResponse, err error) {
		if r.Spec().IsClient {
			return next(ctx, r)
		}
		call := callOf(ctx, r.Spec(), r.Peer(), r.Header())
		call.Message = r.Any()
		v := g.guard.Enter(ctx, call)
		if v.Refusal != nil {
			return nil, errorOf(v.Refusal)
		}
		code := rpc.Internal // if the handler panics
		defer func() {
			var message any
			if err == nil && response != nil {
				message = response.Any()
			}
			v.End(message, err, code)
		}()
		response, err = next(v.Context, r)
		if code = codeOf(err); err == nil { // an error may be that of other calls too
			add(response.Header(), v.Fields)
		}
		return response, err
	}
}

// WrapStreamingClient implements [connect.Interceptor]. It returns next.
func (*Guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor].
func (g *Guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		v := g.guard.Enter(ctx, callOf(ctx, conn.Spec(), conn.Peer(), conn.RequestHeader()))
		if v.Refusal != nil {
			return errorOf(v.Refusal)
		}
		add(conn.ResponseHeader(), v.Fields)
		code := rpc.Internal // if the handler panics
		defer func() { v.End(nil, err, code) }()
		err = next(v.Context, &stream{conn, v})
		if f := v.Refused(); f != nil {
			err = errorOf(f)
		}
		code = codeOf(err)
		return err
	}
}

// A stream charges what it receives.
type stream struct {
	connect.StreamingHandlerConn

	visit *rpc.Visit
}

// Receive implements [connect.StreamingHandlerConn].
func (s *stream) Receive(m any) error {
	if f := s.visit.Refused(); f != nil {
		return errorOf(f)
	}
	if err := s.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	if f := s.visit.Receive(m); f != nil {
		return errorOf(f)
	}
	return nil
}

// requestKey is the key of the request of HTTP in its context.
type requestKey struct{}

// Requests returns a handler that lets guards find the request of HTTP. It belongs around the handlers
// of connect.
func Requests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, r)))
	})
}

// callOf returns what is known of a call before its message.
func callOf(ctx context.Context, spec connect.Spec, peer connect.Peer, h http.Header) *rpc.Call {
	c := &rpc.Call{Procedure: spec.Procedure, Header: h, RemoteAddr: peer.Addr}
	c.HTTP, _ = ctx.Value(requestKey{}).(*http.Request)
	return c
}

// codeOf returns the code of what a handler returned.
func codeOf(err error) rpc.Code {
	if err == nil {
		return rpc.OK
	}
	return rpc.Code(connect.CodeOf(err))
}

// add adds fields.
func add(h, fields http.Header) {
	for name, values := range fields {
		h[name] = append(h[name], values...)
	}
}

// errorOf returns the error of a refusal.
func errorOf(f *rpc.Refusal) *connect.Error {
	err := connect.NewError(connect.Code(f.Code), errors.New(f.Text))
	add(err.Meta(), f.ResponseFields())
	var details []proto.Message
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
	for _, m := range details {
		if detail, failed := connect.NewErrorDetail(m); failed == nil {
			err.AddDetail(detail)
		}
	}
	return err
}

// Procedures returns a Skip for the procedures that begin with one of the prefixes, such as
// "/grpc.health.v1.Health/".
func Procedures(prefixes ...string) func(*http.Request) bool { return rpc.Procedures(prefixes) }

// Message returns the message of a unary call, or under [Config].Messages the message that a stream
// has received. It is nil before it is known, as for the Rules of a stream.
func Message(r *http.Request) any { return rpc.Of(r).Message }

// Response returns the response of a unary call, for Settle and Report; nil if there is none.
func Response(r *http.Request) any { return rpc.Of(r).Response }

// Code returns the code of a call that has ended, for Settle and Report; 0 if it had no error.
func Code(r *http.Request) connect.Code { return connect.Code(rpc.Of(r).Code) }
