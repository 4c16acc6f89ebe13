// Package gogrpc limits calls of gRPC.
package gogrpc

import (
	"log"
	"time"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// After returns a server each of whose users may do that.
func After() *grpc.Server {
	store := new(core.MemoryStore)
	guard, err := grpcmw.New(grpcmw.Config{Rates: []nethttp.Rate{{
		Key:     grpcmw.Metadata("user"), // which authentication has checked
		Limiter: core.NewLimiter(store, "calls", core.TokenBucket(10, time.Second).Burst(20)),
	}}})
	if err != nil {
		log.Fatal(err)
	}
	return grpc.NewServer(
		grpc.ChainUnaryInterceptor(guard.Unary()),
		grpc.ChainStreamInterceptor(guard.Stream()),
	)
}
