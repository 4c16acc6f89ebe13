package grpcmw_test

import (
	"context"
	"maps"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/conformance/scenes"
)

// The scenes of requests are those of unary calls and of streams, as interceptors see them: over a
// connection, a client that hangs up sees no answer, and a panic ends the process.
func TestScenes(t *testing.T) {
	for kind, intercept := range map[string]func(ctx context.Context, g *grpcmw.Guard, method string, handler func(context.Context, string)) (*wire, error){
		"unary": func(ctx context.Context, g *grpcmw.Guard, method string, handler func(context.Context, string)) (*wire, error) {
			w := &wire{method: method, sent: metadata.MD{}}
			_, err := g.Unary()(grpc.NewContextWithServerTransportStream(ctx, w), nil, &grpc.UnaryServerInfo{FullMethod: method},
				func(ctx context.Context, _ any) (any, error) {
					handler(ctx, method)
					return "done", nil
				})
			return w, err
		},
		"stream": func(ctx context.Context, g *grpcmw.Guard, method string, handler func(context.Context, string)) (*wire, error) {
			w := &wire{method: method, sent: metadata.MD{}}
			err := g.Stream()(nil, &serverStream{wire: w, ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method},
				func(_ any, ss grpc.ServerStream) error {
					handler(ss.Context(), method)
					return nil
				})
			return w, err
		},
	} {
		t.Run(kind, func(t *testing.T) {
			scenes.TestCalls(t, func(c nethttp.Config, handler func(context.Context, string)) (scenes.Call, error) {
				guard, err := grpcmw.New(grpcmw.Config{Rates: c.Rates, Concurrency: c.Concurrency, Observe: c.Observe})
				return func(ctx context.Context, procedure string, header http.Header) scenes.Status {
					md := metadata.MD{}
					for name, values := range header {
						md[strings.ToLower(name)] = values
					}
					w, err := intercept(metadata.NewIncomingContext(ctx, md), guard, procedure, handler)
					return statusOf(w.sent, err)
				}, err
			})
		})
	}
}

// statusOf returns what a client gets.
func statusOf(sent metadata.MD, err error) scenes.Status {
	s := status.Convert(err)
	seen := scenes.Status{Code: rpc.Code(s.Code()), Text: s.Message(), Header: http.Header{}}
	for name, values := range sent {
		seen.Header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	for _, d := range s.Details() {
		if quota, ok := d.(*errdetails.QuotaFailure); ok {
			for _, v := range quota.GetViolations() {
				seen.Violated = append(seen.Violated, v.GetSubject())
			}
		}
	}
	return seen
}

// A wire notes the metadata of a response.
type wire struct {
	method string
	sent   metadata.MD
}

func (w *wire) Method() string { return w.method }

func (w *wire) SetHeader(md metadata.MD) error {
	maps.Copy(w.sent, md)
	return nil
}

func (w *wire) SendHeader(md metadata.MD) error { return w.SetHeader(md) }

func (w *wire) SetTrailer(md metadata.MD) error { return w.SetHeader(md) }

// A serverStream is a stream whose metadata a wire notes.
type serverStream struct {
	grpc.ServerStream

	wire *wire
	ctx  context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) SetHeader(md metadata.MD) error { return s.wire.SetHeader(md) }

func (s *serverStream) SetTrailer(md metadata.MD) { _ = s.wire.SetTrailer(md) }
