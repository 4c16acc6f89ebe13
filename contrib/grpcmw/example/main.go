// Command example serves gRPC with limits, and calls itself: a client is refused, waits as it is told,
// and succeeds. Run it in the folder grpcmw:
//
//	go run ./example
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// newServer returns a server whose users may make 2 calls a second, and have 3 streams open.
func newServer() (*grpc.Server, error) {
	store := new(core.MemoryStore)
	user := grpcmw.Metadata("user") // which authentication has checked
	calls, err := grpcmw.New(grpcmw.Config{Rates: []nethttp.Rate{
		{Limiter: core.NewLimiter(store, "calls", core.SlidingLog(2, time.Second)), Key: user},
	}})
	if err != nil {
		return nil, err
	}
	streams, err := grpcmw.New(grpcmw.Config{Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(store, "streams", 3), Key: user}}})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(calls.Unary()),
		grpc.ChainStreamInterceptor(calls.Stream(), streams.Stream()),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	return server, nil
}

func run(ctx context.Context, out io.Writer) error {
	server, err := newServer()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()
	return call(ctx, listener.Addr().String(), out)
}

// call makes calls by two clients: one that is refused, and one that waits as it is told.
func call(ctx context.Context, target string, out io.Writer) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "user", "anna")
	impatient, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer impatient.Close() //nolint:errcheck // nothing follows
	limits, err := grpcmw.NewClient(grpcmw.ClientConfig{
		Limiter: core.NewLimiter(new(core.MemoryStore), "out", core.Unlimited()), // but for what servers say
		Retries: 3,
	})
	if err != nil {
		return err
	}
	patient, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(limits.Unary()), grpc.WithStreamInterceptor(limits.Stream()))
	if err != nil {
		return err
	}
	defer patient.Close() //nolint:errcheck // nothing follows
	for range 3 {
		_, err := healthpb.NewHealthClient(impatient).Check(ctx, &healthpb.HealthCheckRequest{})
		_, _ = fmt.Fprintf(out, "impatient: %v\n", status.Convert(err).Message())
	}
	begun := time.Now()
	for range 3 {
		if _, err := healthpb.NewHealthClient(patient).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "patient: admitted after %.1f s\n", time.Since(begun).Seconds())
	}
	return nil
}
