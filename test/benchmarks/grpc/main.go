// Command grpc measures the cost of a guard for a unary call of grpc-go over TCP on this machine.
// Beside it stands the limiter of go-grpc-middleware with x/time/rate, which knows no keys. Run it
// in the folder above:
//
//	go run ./benchmarks/grpc
//
// Client and server are in one process, and take turns: one call at a time, or several at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/benchmarks/turns"
)

func main() {
	rounds := flag.Int("rounds", 6, "how many `rounds`; their medians and ranges are reported")
	slices := flag.Int("slices", 100, "how many `slices` each system has in a round")
	flag.Parse()
	for _, callers := range []int{1, 16} {
		if err := measure(callers, *rounds, *slices); err != nil {
			fmt.Fprintln(os.Stderr, "grpc:", err)
			os.Exit(1)
		}
	}
}

type unlimited struct{ *rate.Limiter }

func (l unlimited) Limit(context.Context) error {
	if !l.Allow() {
		return errors.New("too many")
	}
	return nil
}

func guard() (grpc.UnaryServerInterceptor, error) {
	l := core.NewLimiter(new(core.MemoryStore), "calls", core.TokenBucket(1_000_000, time.Second).Burst(100_000_000))
	g, err := grpcmw.New(grpcmw.Config{Rates: []nethttp.Rate{{Key: grpcmw.Metadata("user"), Limiter: l}}})
	if err != nil {
		return nil, err
	}
	return g.Unary(), nil
}

func measure(callers, rounds, slices int) error {
	guarded, err := guard()
	if err != nil {
		return err
	}
	subjects := make([]turns.Subject, 0, 3)
	for _, s := range []struct {
		name string
		opts []grpc.ServerOption
	}{
		{"no limit", nil},
		{"headgate", []grpc.ServerOption{grpc.UnaryInterceptor(guarded)}},
		{"go-grpc-middleware, x/time/rate", []grpc.ServerOption{grpc.UnaryInterceptor(ratelimit.UnaryServerInterceptor(unlimited{rate.NewLimiter(1e6, 1e8)}))}},
	} {
		call, stop, err := start(s.opts...)
		if err != nil {
			return err
		}
		defer stop()
		subjects = append(subjects, turns.Subject{Name: s.name, Rival: s.opts == nil, Slice: func() float64 { return slice(call, callers) }})
	}
	fmt.Println(turns.Report(fmt.Sprintf("%d calls at once", callers), subjects, turns.Measure(subjects, rounds, slices)))
	return nil
}

// start serves, and returns what calls.
func start(opts ...grpc.ServerOption) (call func(), stop func(), err error) {
	server := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	go func() { _ = server.Serve(l) }() // until Stop
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	client := healthpb.NewHealthClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "user", "anna")
	return func() {
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
				panic(err)
			}
		}, func() {
			_ = conn.Close()
			server.Stop()
		}, nil
}

// slice makes some calls, and returns how long each took, in nanoseconds.
func slice(call func(), callers int) float64 {
	const each = 20
	begun := time.Now()
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range each {
				call()
			}
		})
	}
	group.Wait()
	return float64(time.Since(begun)) / float64(each*callers)
}
