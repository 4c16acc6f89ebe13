package rpctest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// rates admit each user twice a day, and user "never" not at all.
func rates(testing.TB) []nethttp.Rate {
	daily := core.NewLimiter(new(core.MemoryStore), "api", core.FixedWindow(2, 24*time.Hour).FromFirst()).WithPlan("never", core.Blocked())
	user := keyfuncs.Header("User")
	return []nethttp.Rate{{Key: user, Limiter: daily, Plan: user}}
}

// startGRPC serves health checks by grpc-go, behind a guard.
func startGRPC(t testing.TB, rates []nethttp.Rate) (address string) {
	t.Helper()
	guard, err := grpcmw.New(grpcmw.Config{Rates: rates})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(guard.Unary()), grpc.StreamInterceptor(guard.Stream()))
	healthpb.RegisterHealthServer(server, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// startConnect serves the same by connect-go.
func startConnect(t testing.TB, rates []nethttp.Rate) (url string) {
	t.Helper()
	guard, err := connectmw.New(connectmw.Config{Rates: rates})
	if err != nil {
		t.Fatal(err)
	}
	serving := func(context.Context, *connect.Request[healthpb.HealthCheckRequest]) (*connect.Response[healthpb.HealthCheckResponse], error) {
		return connect.NewResponse(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}), nil
	}
	server := httptest.NewUnstartedServer(connectmw.Requests(connect.NewUnaryHandler(healthpb.Health_Check_FullMethodName, serving, connect.WithInterceptors(guard))))
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server.Config.Protocols = both
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}
