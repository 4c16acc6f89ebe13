package grpcmw_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// transport is that of a call without a connection.
type transport struct{ header, trailer metadata.MD }

func (*transport) Method() string                    { return "/grpc.testing.TestService/UnaryCall" }
func (s *transport) SetHeader(md metadata.MD) error  { s.header = md; return nil }
func (*transport) SendHeader(metadata.MD) error      { return nil }
func (s *transport) SetTrailer(md metadata.MD) error { s.trailer = md; return nil }

// BenchmarkUnary is what a guard takes for a call, without the connection.
func BenchmarkUnary(b *testing.B) {
	for name, policy := range map[string]core.Policy{"Admitted": core.TokenBucket(1_000_000, time.Second), "Refused": core.Blocked()} {
		b.Run(name, func(b *testing.B) {
			guard := guardOf(b, grpcmw.Config{Rates: []nethttp.Rate{{Key: grpcmw.Metadata("user"), Limiter: limiter(b, "api", policy)}}}).Unary()
			ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("user", "anna", "content-type", "application/grpc", "user-agent", "grpc-go", ":authority", "example.com"))
			ctx = grpc.NewContextWithServerTransportStream(ctx, &transport{})
			info := &grpc.UnaryServerInfo{FullMethod: "/grpc.testing.TestService/UnaryCall"}
			handler := func(context.Context, any) (any, error) { return nil, nil }
			b.ReportAllocs()
			for b.Loop() {
				_, _ = guard(ctx, (*testpb.SimpleRequest)(nil), info, handler)
			}
		})
	}
}
