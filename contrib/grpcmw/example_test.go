package grpcmw_test

import (
	"fmt"
	"net/http"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

func Example() {
	store := memstore.New(memstore.Config{}) // or redisstore, to share the limits among servers
	calls := core.Must(core.New(store, "calls", core.TokenBucket(core.PerSecond(10), 20)))
	streams := core.Must(core.NewSlots(store, "streams", 3))
	user := grpcmw.Metadata("user") // which authentication has checked

	all := core.Must(grpcmw.New(grpcmw.Config{
		Rules: []grpcmw.Rule{{Key: user, Limiter: calls}},
		Skip:  grpcmw.Methods("/grpc.health.v1.Health/"),
	}))
	open := core.Must(grpcmw.New(grpcmw.Config{Rules: []grpcmw.Rule{{Key: user, Slots: streams}}}))
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(all.Unary()),
		grpc.ChainStreamInterceptor(all.Stream(), open.Stream()),
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
