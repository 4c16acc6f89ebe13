package grpcmw_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

func Example() {
	store := new(core.MemoryStore)  // or one of package redisstore, for all servers together
	user := grpcmw.Metadata("user") // which authentication has checked

	calls, err := grpcmw.New(grpcmw.Config{
		Rates: []nethttp.Rate{{Limiter: core.NewLimiter(store, "calls", core.TokenBucket(10, time.Second).Burst(20)), Key: user}},
		Skip:  grpcmw.Methods("/grpc.health.v1.Health/"),
	})
	if err != nil {
		log.Fatal(err)
	}
	streams, err := grpcmw.New(grpcmw.Config{
		Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(store, "streams", 3), Key: user}},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(calls.Unary()),
		grpc.ChainStreamInterceptor(calls.Stream(), streams.Stream()),
	)
	server.Stop()
}

// A Cost that looks at the message of a unary call.
func ExampleMessage() {
	cost := func(r *http.Request) int64 {
		m, ok := grpcmw.Message(r).(*healthpb.HealthCheckRequest)
		if !ok {
			return 1
		}
		return int64(len(m.GetService()))
	}
	fmt.Println(cost(new(http.Request)))
	// Output: 1
}
