package grpcmw_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/canary"
	"github.com/headgate/headgate/test/conformance/scenes"
)

// No key is in a status, its details and metadata, the log, and verdicts.
func TestSecrets(t *testing.T) {
	scenes.TestSecrets(t, func(t *testing.T, c rpc.Config) scenes.Secretive {
		guard := must(grpcmw.New(c))
		client := start(t, guard)
		// Messages are returned as text: the library writes in their type when it first uses them.
		return func(ctx context.Context, stream bool, fields map[string]string) (rpc.Code, []any) {
			ctx = metadata.NewOutgoingContext(ctx, metadata.New(fields))
			var header, trailer metadata.MD
			got := []any{guard}
			if !stream {
				response, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
				return rpc.Code(status.Code(err)), append(got, header, trailer, response.String(), err, status.Convert(err).Proto().String(), status.Convert(err).Details())
			}
			s := must(client.FullDuplexCall(ctx))
			for range 2 {
				_ = s.Send(&testpb.StreamingOutputCallRequest{}) // the error is that of Recv
			}
			_ = s.CloseSend()
			var err error
			for range 2 {
				if _, err = s.Recv(); err != nil {
					break
				}
			}
			header, _ = s.Header()
			return rpc.Code(status.Code(err)), append(got, header, s.Trailer(), err, status.Convert(err).Proto().String(), status.Convert(err).Details())
		}
	})
}

// No key is in the error of a call that a client does not send.
func TestSecretsOfClients(t *testing.T) {
	waits := must(grpcmw.NewClient(grpcmw.ClientConfig{
		Limiter: limiter(t, "out", core.SlidingLog(1, time.Hour)),
		Key:     func(context.Context, string, *grpc.ClientConn) (string, error) { return canary.Canary, nil },
	}))
	guard := must(grpcmw.New(grpcmw.Config{Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "api", core.Unlimited())}}}))
	client := start(t, guard,
		grpc.WithUnaryInterceptor(waits.Unary()), grpc.WithStreamInterceptor(waits.Stream()))
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	_, unary := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	_, stream := client.FullDuplexCall(t.Context())
	if !strings.Contains(fmt.Sprint(unary), "not sent") || !strings.Contains(fmt.Sprint(stream), "not sent") {
		t.Errorf("%v, %v", unary, stream)
	}
	for _, v := range []any{waits, unary, stream} {
		if around, found := canary.In(canary.Printed(v)); found {
			t.Error(around)
		}
	}
}
