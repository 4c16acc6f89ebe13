package grpcmw_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// tokens is the limiter whose cost calls set.
var tokens *core.Limiter

// A service does what a call's metadata "do" says.
type service struct {
	testpb.UnimplementedTestServiceServer
}

func do(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	switch what := strings.Join(md["do"], ""); what {
	case "panic":
		panic("on purpose")
	case "fail":
		return status.Error(codes.NotFound, "nothing")
	case "cost":
		return nethttp.SetCost(ctx, tokens, 7)
	case "wait":
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

func (*service) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: fmt.Sprint(r.GetResponseSize())}, do(ctx)
}

func (*service) FullDuplexCall(ss testpb.TestService_FullDuplexCallServer) error {
	if err := do(ss.Context()); err != nil {
		return err
	}
	for {
		if _, err := ss.Recv(); err != nil {
			return nil //nolint:nilerr // as handlers do that hide why
		}
		if err := ss.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// recovered turns panics into errors, outside the guard.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Error(codes.Internal, fmt.Sprint(p))
		}
	}()
	return f()
}

// start serves behind a guard, and returns a client. The network is "tcp" or "unix".
func start(t testing.TB, network string, guard *grpcmw.Guard, opts ...grpc.DialOption) testpb.TestServiceClient {
	t.Helper()
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (out any, err error) {
			err = recovered(func() (err error) { out, err = h(ctx, in); return err })
			return out, err
		}, guard.Unary()),
		grpc.ChainStreamInterceptor(func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return recovered(func() error { return h(s, ss) })
		}, guard.Stream()),
	)
	return serve(t, network, server, opts...)
}

func serve(t testing.TB, network string, server *grpc.Server, opts ...grpc.DialOption) testpb.TestServiceClient {
	t.Helper()
	address, target := "127.0.0.1:0", ""
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
		target = "unix:" + address
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if target == "" {
		target = l.Addr().String()
	}
	testpb.RegisterTestServiceServer(server, &service{})
	go server.Serve(l)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

func as(ctx context.Context, fields ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, append(fields, "user", "anna")...)
}

func limiter(t testing.TB, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	return core.NewLimiter(new(core.MemoryStore), name, policies...)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func guardOf(t testing.TB, c grpcmw.Config) *grpcmw.Guard {
	t.Helper()
	return must(grpcmw.New(c))
}

// details returns what a refusal says to the client, in short.
func details(err error) (s string) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				s += v.GetSubject() + "=" + v.GetDescription() + " "
			}
		case *errdetails.RetryInfo:
			s += "retry " + d.GetRetryDelay().AsDuration().Round(time.Hour).String()
		}
	}
	return strings.TrimSpace(s)
}

// Refusals tell why and when, over each kind of call and network; admitted calls have the fields.
func TestRefusals(t *testing.T) {
	user := grpcmw.Metadata("user")
	for _, test := range []struct {
		name     string
		config   grpcmw.Config
		calls    int // that are admitted before
		code     codes.Code
		text     string
		details  string
		fields   map[string]string
		trailers map[string]string
	}{
		{
			"a rate", grpcmw.Config{Rates: []nethttp.Rate{{Key: user, Limiter: limiter(t, "api", core.FixedWindow(2, 24*time.Hour).FromFirst())}}}, 2,
			codes.ResourceExhausted, `quota exceeded: "api"`, "api=2 in 24h0m0s retry 24h0m0s",
			map[string]string{"ratelimit": `"api";r=0;t=86400`, "ratelimit-policy": `"api";q=2;w=86400`, "retry-after": "86400"},
			map[string]string{"grpc-retry-pushback-ms": "864"},
		},
		{
			"for ever", grpcmw.Config{Rates: []nethttp.Rate{{Key: user, Limiter: limiter(t, "closed", core.Blocked())}}}, 0,
			codes.ResourceExhausted, `quota exceeded: "closed"`, "closed=0",
			map[string]string{"ratelimit": `"closed";r=0`, "retry-after": ""},
			map[string]string{"grpc-retry-pushback-ms": "-1"},
		},
		{
			"the service", grpcmw.Config{Rates: []nethttp.Rate{{Key: keyfuncs.Everyone(), Limiter: limiter(t, "all", core.FixedWindow(1, 24*time.Hour).FromFirst()), Service: true}}}, 1,
			codes.ResourceExhausted, "the service is busy", "retry 24h0m0s",
			map[string]string{"ratelimit": "", "retry-after": "86400"}, nil,
		},
		{
			"no key", grpcmw.Config{Rates: []nethttp.Rate{{Key: grpcmw.Metadata("none"), Limiter: limiter(t, "api", core.Unlimited())}}}, 0,
			codes.InvalidArgument, "the call does not say who makes it", "", nil, map[string]string{"grpc-retry-pushback-ms": ""},
		},
		{
			"no store", grpcmw.Config{Rates: []nethttp.Rate{{Key: user, Limiter: away(t)}}}, 0,
			codes.Unavailable, "the limits are not available", "retry 0s", map[string]string{"retry-after": "5"}, map[string]string{"grpc-retry-pushback-ms": "5000"},
		},
		{
			"a fault", grpcmw.Config{Rates: []nethttp.Rate{{Key: user, Limiter: limiter(t, "api", core.Unlimited()), Cost: func(*http.Request) int64 { return -1 }}}}, 0,
			codes.Internal, "internal error", "", nil, nil,
		},
	} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(test.name+"/"+network, func(t *testing.T) {
				client := start(t, network, guardOf(t, test.config))
				key := network // so that both have units
				ctx := metadata.AppendToOutgoingContext(t.Context(), "user", key)
				for i := range test.calls {
					var header metadata.MD
					_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&header))
					if test.name == "the service" && network == "unix" {
						break // the first network has used its only unit
					}
					if err != nil || (i == 0 && test.fields["ratelimit"] != "" && len(header["ratelimit"]) != 1) {
						t.Fatalf("call %d: %v, %v", i, header, err)
					}
				}
				var trailer metadata.MD
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Trailer(&trailer))
				check := func(err error, trailer metadata.MD) {
					t.Helper()
					if s := status.Convert(err); s.Code() != test.code || s.Message() != test.text || details(err) != test.details {
						t.Errorf("%v %q %q, want %v %q %q", s.Code(), s.Message(), details(err), test.code, test.text, test.details)
					}
					for name, want := range test.fields {
						if got := strings.Join(trailer[name], "|"); got != want {
							t.Errorf("%s: %q, want %q", name, got, want)
						}
					}
					for name, want := range test.trailers {
						if got := strings.Join(trailer[name], "|"); got != want && (len(want) < 3 || want == "5000" || !strings.HasPrefix(got, want[:2])) {
							t.Errorf("%s: %q, want %q", name, got, want)
						}
					}
					if strings.Contains(fmt.Sprint(err, trailer), key) {
						t.Errorf("the key is in %v, %v", err, trailer)
					}
				}
				check(err, trailer)
				stream, err := client.FullDuplexCall(ctx)
				if err != nil {
					t.Fatal(err)
				}
				_, err = stream.Recv()
				check(err, stream.Trailer())
			})
		}
	}
}

// away returns a limiter whose Redis cannot be reached.
func away(t testing.TB) *core.Limiter {
	t.Helper()
	store := must(redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailClosed})) // a closed port
	t.Cleanup(func() { store.Client().Close() })
	return core.NewLimiter(store, "api", core.SlidingLog(1, time.Hour))
}
