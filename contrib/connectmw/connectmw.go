package connectmw

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/protoadapt"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/keyfuncs"
)

// Config is what a [Guard] does.
type Config = rpc.Config

// A Guard is a [connect.Interceptor] that decides which calls handlers get. It does nothing in clients. Make one with
// [New]. It is safe for concurrent use.
type Guard struct{ guard *rpc.Guard }

var _ connect.Interceptor = (*Guard)(nil)

// New returns a guard. The error has all faults of the Config, one line a rule.
func New(config Config) (*Guard, error) {
	guard, err := rpc.New(config, codeOf)
	if err != nil {
		return nil, err
	}
	return &Guard{guard}, nil
}

// WrapUnary implements [connect.Interceptor].
func (g *Guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (response connect.AnyResponse, err error) {
		if r.Spec().IsClient {
			return next(ctx, r)
		}
		call := callOf(ctx, r.Spec(), r.Peer(), r.Header())
		call.Message = r.Any()
		refusal := g.guard.Serve(ctx, call, func(visit *rpc.Visit) (any, error) {
			response, err = next(visit.Context, r)
			if err != nil {
				return nil, err // which may be that of other calls, too, so it gets no fields
			}
			add(response.Header(), visit.Fields)
			return response.Any(), nil
		})
		if refusal != nil {
			return nil, errorOf(refusal)
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
		call := callOf(ctx, conn.Spec(), conn.Peer(), conn.RequestHeader())
		refusal := g.guard.Serve(ctx, call, func(visit *rpc.Visit) (any, error) {
			add(conn.ResponseHeader(), visit.Fields)
			err = next(visit.Context, &stream{conn, visit})
			refused := visit.Refused()
			if refused != nil { // whatever the handler has made of the error
				err = errorOf(refused)
			}
			return nil, err
		})
		if refusal != nil {
			return errorOf(refusal)
		}
		return err
	}
}

// A stream charges what it receives.
type stream struct {
	connect.StreamingHandlerConn

	visit *rpc.Visit
}

// Receive implements [connect.StreamingHandlerConn].
func (s *stream) Receive(message any) error {
	refusal := s.visit.Refused()
	if refusal != nil {
		return errorOf(refusal)
	}
	if err := s.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	refusal = s.visit.Receive(message)
	if refusal != nil {
		return errorOf(refusal)
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
func callOf(ctx context.Context, spec connect.Spec, peer connect.Peer, header http.Header) *rpc.Call {
	call := &rpc.Call{Procedure: spec.Procedure, Header: header, RemoteAddr: peer.Addr}
	call.HTTP, _ = ctx.Value(requestKey{}).(*http.Request)
	return call
}

// codeOf returns the code of what a handler returned.
func codeOf(err error) rpc.Code {
	if err == nil {
		return rpc.OK
	}
	return rpc.Code(connect.CodeOf(err))
}

// add adds fields.
func add(header, fields http.Header) {
	for name, values := range fields {
		header[name] = append(header[name], values...)
	}
}

// errorOf returns the error of a refusal.
func errorOf(refusal *rpc.Refusal) *connect.Error {
	err := connect.NewError(connect.Code(refusal.Code), errors.New(refusal.Text))
	add(err.Meta(), refusal.Fields)
	for _, message := range refusal.Details() {
		detail, failed := connect.NewErrorDetail(protoadapt.MessageV2Of(message))
		if failed == nil {
			err.AddDetail(detail)
		}
	}
	return err
}

// Procedures returns a Skip for the procedures that begin with one of the prefixes, such as
// "/grpc.health.v1.Health/".
func Procedures(prefixes ...string) func(*http.Request) bool { return rpc.Procedures(prefixes) }

// Metadata returns a key that is the first value of a field of the call's header. See [keyfuncs.Header]. Clients choose
// it, unless something before the guard has checked it.
func Metadata(name string) keyfuncs.Func { return keyfuncs.Header(name) }

// Method returns a key that is the procedure, such as "/package.Service/Method".
func Method() keyfuncs.Func { return rpc.Procedure }

// TLSSubject returns a key that is the subject of the client's certificate (RFC 4514), if the server has verified that.
// A call without one is [keyfuncs.ErrAbsent]. It needs [Requests].
func TLSSubject() keyfuncs.Func { return rpc.TLSSubject }

// Message returns the message of a unary call, or under [Config].Messages the message that a stream
// has received. It is nil before it is known, as for the Rates of a stream.
func Message(r *http.Request) any { return rpc.Of(r).Message }

// Response returns the response of a unary call, for Settle; nil if there is none.
func Response(r *http.Request) any { return rpc.Of(r).Response }

// Code returns the code of a call that has ended, for Settle; 0 if it had no error.
func Code(r *http.Request) connect.Code { return connect.Code(rpc.Of(r).Code) }
