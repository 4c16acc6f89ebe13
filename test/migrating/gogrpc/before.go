package gogrpc

import (
	"context"
	"errors"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

type limiter struct{ *rate.Limiter }

func (l limiter) Limit(context.Context) error {
	if !l.Allow() {
		return errors.New("too many calls")
	}
	return nil
}

// Before returns a server whose clients together may make 10 calls a second, and 20 at once.
func Before() *grpc.Server {
	all := limiter{rate.NewLimiter(10, 20)}
	return grpc.NewServer(
		grpc.ChainUnaryInterceptor(ratelimit.UnaryServerInterceptor(all)),
		grpc.ChainStreamInterceptor(ratelimit.StreamServerInterceptor(all)),
	)
}
