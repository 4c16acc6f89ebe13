package rpctest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Clients of a gateway get the fields of HTTP, admitted and refused.
func TestGateway(t *testing.T) {
	conn, err := grpc.NewClient(startGRPC(t, rates(t)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	mux := NewGateway(runtime.WithIncomingHeaderMatcher(func(key string) (string, bool) { return key, key == "User" }))
	// What the generated code of a gateway does.
	err = mux.HandlePath(http.MethodGet, "/check", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		in, out := runtime.MarshalerForRequest(mux, r)
		_ = in
		ctx, err := runtime.AnnotateContext(r.Context(), mux, r, healthpb.Health_Check_FullMethodName)
		if err != nil {
			t.Error(err)
		}
		var md runtime.ServerMetadata
		response, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&md.HeaderMD), grpc.Trailer(&md.TrailerMD))
		ctx = runtime.NewServerMetadataContext(ctx, md)
		if err != nil {
			runtime.HTTPError(ctx, mux, out, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, out, w, r, response)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		status        int
		limit, policy string
		after         string
	}{
		{200, `"api";r=1;t=`, `"api";q=2;w=86400`, ""}, {200, `"api";r=0;t=`, `"api";q=2;w=86400`, ""}, {429, `"api";r=0;t=`, `"api";q=2;w=86400`, "86400"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/check", nil)
		r.Header.Set("User", "anna")
		mux.ServeHTTP(w, r)
		h := w.Header()
		if w.Code != want.status || !strings.HasPrefix(h.Get("Ratelimit"), want.limit) || h.Get("Ratelimit-Policy") != want.policy || h.Get("Retry-After") != want.after {
			t.Errorf("%d: %d %v", i, w.Code, h)
		}
	}
}
