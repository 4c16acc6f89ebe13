package headgated

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"
)

// healthName is the service that the reference tells the health of.
const healthName = "ratelimit"

// Bounds of the gRPC door. A proxy has a connection for each of its threads.
const (
	maxStreams  = 1000    // of a connection
	maxMessage  = 1 << 20 // bytes: what has more than maxBody is read, so that its answer is that it is not valid
	minPing     = 10 * time.Second
	silence     = time.Minute // after which a client is asked whether it is there; it has 20 s to answer
	connectTime = 5 * time.Second
	workers     = 128 // goroutines that stay, with stacks as large as a decision needs: others begin anew
)

// grpcDoor returns the door of Envoy's rate limit service, and of the health of gRPC.
func (s *Server) grpcDoor(l net.Listener, secure *tls.Config) door {
	serving, end := context.WithCancel(context.Background())
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHead), grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(connectTime),
		grpc.NumStreamWorkers(workers), grpc.InTapHandle(bounded(serving)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence}),
	}
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	server, healthy := grpc.NewServer(options...), health.NewServer()
	healthy.SetServingStatus(healthName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	server.RegisterService(service(), rateLimits{s: s})
	return door{
		listener: l,
		serve:    server.Serve,
		shutdown: func(ctx context.Context) error {
			healthy.Shutdown()
			end()
			done := make(chan struct{})
			go func() {
				defer close(done)
				server.GracefulStop()
			}()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		abort: func() error {
			end()
			server.Stop()
			return nil
		},
	}
}

// bounded bounds calls, also those that get no message: they end as requests over HTTP do. One that watches the health
// ends when the server does, which waits for all calls.
func bounded(serving context.Context) tap.ServerInHandle {
	return func(ctx context.Context, call *tap.Info) (context.Context, error) {
		if call.FullMethodName != healthpb.Health_Watch_FullMethodName {
			ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
			_ = cancel
			return ctx, nil
		}
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(serving, cancel)
		context.AfterFunc(ctx, func() { stop() })
		return ctx, nil
	}
}
