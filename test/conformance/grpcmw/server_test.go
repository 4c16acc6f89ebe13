package grpcmw_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
)

// A service answers, or panics if a call's metadata "do" say so.
type service struct {
	testpb.UnimplementedTestServiceServer
}

func do(ctx context.Context) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md["do"]) > 0 {
		panic("on purpose")
	}
}

func (*service) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	do(ctx)
	return &testpb.SimpleResponse{}, nil
}

func (*service) FullDuplexCall(ss testpb.TestService_FullDuplexCallServer) error {
	do(ss.Context())
	for {
		if _, err := ss.Recv(); err != nil {
			return nil //nolint:nilerr // as handlers do that hide why
		}
		if err := ss.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// recovered turns panics into errors, outside the guard.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Error(codes.Internal, fmt.Sprint(p))
		}
	}()
	return f()
}

// start serves behind a guard, and returns a client.
func start(t testing.TB, guard *grpcmw.Guard, opts ...grpc.DialOption) testpb.TestServiceClient {
	t.Helper()
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (out any, err error) {
			err = recovered(func() (err error) { out, err = h(ctx, in); return err })
			return out, err
		}, guard.Unary()),
		grpc.ChainStreamInterceptor(func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return recovered(func() error { return h(s, ss) })
		}, guard.Stream()),
	)
	testpb.RegisterTestServiceServer(server, &service{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

func limiter(t testing.TB, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	return core.NewLimiter(new(core.MemoryStore), name, policies...)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
