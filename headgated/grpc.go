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
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHead), grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(connectTime),
		grpc.NumStreamWorkers(workers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence}),
	}
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	server, healthy := grpc.NewServer(options...), &watched{Server: health.NewServer(), stop: make(chan struct{})}
	healthy.SetServingStatus(healthName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	server.RegisterService(service(), rateLimits{s: s})
	return door{
		listener: l,
		serve:    server.Serve,
		shutdown: func(ctx context.Context) error {
			healthy.Shutdown()
			close(healthy.stop)
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
			server.Stop()
			return nil
		},
	}
}

// watched is the health of gRPC. Who watches it is let go when the server stops, which waits for all calls.
type watched struct {
	*health.Server

	stop chan struct{}
}

// Watch implements the service.
func (w *watched) Watch(q *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		select {
		case <-w.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return w.Server.Watch(q, stopped{stream, ctx})
}

// stopped is a stream with another context.
type stopped struct {
	grpc.ServerStreamingServer[healthpb.HealthCheckResponse]

	ctx context.Context //nolint:containedctx // a stream has one
}

// Context implements [grpc.ServerStream].
func (s stopped) Context() context.Context { return s.ctx }
