// Package gogrpc limits calls of gRPC.
package gogrpc

import (
	"google.golang.org/grpc"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// After returns a server each of whose users may do that.
func After() *grpc.Server {
	store := memstore.New(memstore.Config{})
	guard := core.Must(grpcmw.New(grpcmw.Config{Rules: []grpcmw.Rule{{
		Key:     grpcmw.Metadata("user"), // which authentication has checked
		Limiter: core.Must(core.New(store, "calls", core.TokenBucket(core.PerSecond(10), 20))),
	}}}))
	return grpc.NewServer(
		grpc.ChainUnaryInterceptor(guard.Unary()),
		grpc.ChainStreamInterceptor(guard.Stream()),
	)
}
