package connectmw_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/conformance/scenes"
)

// The scenes of requests are those of unary calls and of streams, as interceptors see them: over a
// connection, a client that hangs up sees no answer.
func TestScenes(t *testing.T) {
	for kind, intercept := range map[string]func(ctx context.Context, g *connectmw.Guard, sent http.Header, handler func(context.Context)) (http.Header, error){
		"unary": func(ctx context.Context, g *connectmw.Guard, sent http.Header, handler func(context.Context)) (http.Header, error) {
			r := connect.NewRequest(wrapperspb.String(""))
			maps.Copy(r.Header(), sent)
			response, err := g.WrapUnary(func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
				handler(ctx)
				return connect.NewResponse(wrapperspb.String("")), nil
			})(ctx, r)
			if err != nil {
				return nil, err
			}
			return response.Header(), nil
		},
		"stream": func(ctx context.Context, g *connectmw.Guard, sent http.Header, handler func(context.Context)) (http.Header, error) {
			conn := &handlerConn{request: sent, response: http.Header{}}
			return conn.response, g.WrapStreamingHandler(func(ctx context.Context, _ connect.StreamingHandlerConn) error {
				handler(ctx)
				return nil
			})(ctx, conn)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			scenes.TestCalls(t, func(c nethttp.Config, handler func(context.Context, string)) (scenes.Call, error) {
				guard, err := connectmw.New(connectmw.Config{Rates: c.Rates, Concurrency: c.Concurrency, Observe: c.Observe})
				return func(ctx context.Context, procedure string, header http.Header) scenes.Status {
					header, err := intercept(ctx, guard, header, func(ctx context.Context) { handler(ctx, procedure) })
					return statusOf(header, err)
				}, err
			})
		})
	}
}

// statusOf returns what a client gets.
func statusOf(header http.Header, err error) scenes.Status {
	var e *connect.Error
	if !errors.As(err, &e) {
		return scenes.Status{Header: header}
	}
	seen := scenes.Status{Code: rpc.Code(e.Code()), Text: e.Message(), Header: e.Meta()}
	for _, d := range e.Details() {
		if m, _ := d.Value(); m != nil {
			if quota, ok := m.(*errdetails.QuotaFailure); ok {
				for _, v := range quota.GetViolations() {
					seen.Violated = append(seen.Violated, v.GetSubject())
				}
			}
		}
	}
	return seen
}

// A handlerConn is a stream without messages.
type handlerConn struct {
	connect.StreamingHandlerConn

	request, response http.Header
}

func (*handlerConn) Spec() connect.Spec { return connect.Spec{StreamType: connect.StreamTypeBidi} }

func (*handlerConn) Peer() connect.Peer { return connect.Peer{} }

func (c *handlerConn) RequestHeader() http.Header { return c.request }

func (c *handlerConn) ResponseHeader() http.Header { return c.response }
