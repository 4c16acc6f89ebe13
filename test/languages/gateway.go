// Package rpctest tests packages grpcmw and connectmw with clients in other languages, grpc-gateway, and
// processes that are killed. It is a module of its own because it needs all of these.
package rpctest

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/contrib/grpcmw"
)

// NewGateway returns a gateway whose clients get RateLimit, RateLimit-Policy and Retry-After, also with
// refusals, whose metadata are in the trailer.
func NewGateway(options ...runtime.ServeMuxOption) *runtime.ServeMux {
	return runtime.NewServeMux(append(options,
		runtime.WithOutgoingHeaderMatcher(grpcmw.GatewayHeader),
		runtime.WithErrorHandler(func(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			if md, ok := runtime.ServerMetadataFromContext(ctx); ok {
				md.HeaderMD = metadata.Join(md.HeaderMD, md.TrailerMD)
				ctx = runtime.NewServerMetadataContext(ctx, md)
			}
			runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
		}),
	)...)
}
