package rpctest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// rules admit each user twice a day, and user "never" not at all.
func rules(t testing.TB) []nethttp.Rule {
	t.Helper()
	store := memstore.New(memstore.Config{})
	daily := core.Must(core.New(store, "api", core.FixedWindow(core.PerDay(2)).FromFirst()))
	never := core.Must(daily.With(core.Blocked()))
	return []nethttp.Rule{{Key: keyfuncs.Header("User"), Limiter: daily, Plan: func(_ *http.Request, key string) *core.Limiter {
		if key == "never" {
			return never
		}
		return nil
	}}}
}

// startGRPC serves health checks by grpc-go, behind a guard.
func startGRPC(t testing.TB, rules []nethttp.Rule) (address string) {
	t.Helper()
	guard := core.Must(grpcmw.New(grpcmw.Config{Rules: rules}))
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
func startConnect(t testing.TB, rules []nethttp.Rule) (url string) {
	t.Helper()
	guard := core.Must(connectmw.New(connectmw.Config{Rules: rules}))
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
