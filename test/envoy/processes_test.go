// Package envoy_test compares headgated with envoyproxy/ratelimit, which is called the reference here: their answers,
// the configurations that they take, and their speed. Each runs as a process.
package envoy_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m, proctest.Funcs{
		"reference": reference, "floor": serveFloor,
		"headgated": func(args []string) error { return serve(args, false, 0) },
		"each":      func(args []string) error { return serve(args, true, 0) },
		"leased":    func(args []string) error { return serve(args, false, 100*time.Millisecond) },
	})
}

// reference runs the reference. Its arguments are the address of a Redis, and a folder of configurations.
func reference(args []string) error {
	ports, err := freePorts(3) // it does not tell which it got for port 0
	if err != nil {
		return err
	}
	root, folder := filepath.Split(args[1])
	for name, value := range map[string]string{
		"GRPC_HOST": "127.0.0.1", "GRPC_PORT": ports[0], "HOST": "127.0.0.1", "PORT": ports[1], "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": ports[2],
		"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": args[0], "DISABLE_STATS": "true", "LOG_LEVEL": "ERROR",
		"RUNTIME_ROOT": root, "RUNTIME_SUBDIRECTORY": "", "RUNTIME_APPDIRECTORY": folder, "RUNTIME_WATCH_ROOT": "false",
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	fmt.Println("127.0.0.1:" + ports[0])
	r := runner.NewRunner(settings.NewSettings())
	r.Run()
	return nil
}

// freePorts returns ports that nobody listens at.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // when all are known, so that they differ
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports, nil
}

// serve runs headgated. Its arguments are those of reference, and an address to listen at.
func serve(args []string, each bool, lease time.Duration) error {
	debug.SetGCPercent(400) // as the command does
	s, err := headgated.New(headgated.Config{
		EnvoyConfig: args[1], ChargeEach: each, GRPC: args[2], Redis: "redis://" + args[0], Timeout: 10 * time.Second, Failure: redisstore.FailClosed, Lease: lease,
	})
	if err != nil {
		return err
	}
	addrs, err := s.Listen()
	if err != nil {
		return err
	}
	fmt.Println(addrs.GRPC)
	return s.Serve(context.Background())
}

// floor does what a rate limit service must do at least: it answers.
type floor struct {
	pb.UnimplementedRateLimitServiceServer
}

// ShouldRateLimit implements the service.
func (floor) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

// serveFloor runs the floor.
func serveFloor(args []string) error {
	network, address := "tcp", args[2]
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), network, address)
	if err != nil {
		return err
	}
	if network == "tcp" {
		fmt.Println(l.Addr())
	} else {
		fmt.Println(args[2])
	}
	server := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(server, floor{})
	return server.Serve(l)
}

// connect returns a connection to the service at an address, once that answers.
func connect(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, ask("no domain", 0, descriptor("a", "b")), grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return conn
}
