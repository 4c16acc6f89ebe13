package rpctest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
)

// A told is what a client has read of a refusal.
type told struct {
	Code     string `json:"code"`
	Retry    int64  `json:"retry"` // seconds of RetryInfo; -1: there is none
	Policy   string `json:"policy"`
	Pushback string `json:"pushback"`
	After    string `json:"after"`
}

// need returns what make installs for the clients in other languages, in .bin/rpc of the repository.
func need(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../.bin/rpc", path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("HEADGATE_REQUIRE") == "1" {
			t.Fatalf("%v: make .bin/rpc/done installs it", err)
		}
		t.Skipf("%v: make .bin/rpc/done installs it", err)
	}
	return path
}

// Clients of other languages read when to come back, from grpc-go and from connect-go.
func TestLanguages(t *testing.T) {
	python, node := need(t, "python/bin/python"), need(t, "node_modules/@grpc/grpc-js")
	descriptors, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(healthpb.File_grpc_health_v1_health_proto)}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "health.binpb")
	if err := os.WriteFile(file, descriptors, 0o600); err != nil {
		t.Fatal(err)
	}
	nodes := filepath.Dir(filepath.Dir(filepath.Dir(node)))
	for name, command := range map[string]func(grpcAddress, connectURL string) []string{
		"python grpcio, grpc-go": func(a, _ string) []string { return []string{python, "testdata/client.py", a} },
		"python grpcio, connect-go": func(_, u string) []string {
			return []string{python, "testdata/client.py", strings.TrimPrefix(u, "http://")}
		},
		"node grpc-js, grpc-go": func(a, _ string) []string { return []string{"node", "testdata/grpc.mjs", nodes, a} },
		"node grpc-js, connect-go": func(_, u string) []string {
			return []string{"node", "testdata/grpc.mjs", nodes, strings.TrimPrefix(u, "http://")}
		},
		"node connect, connect-go":  func(_, u string) []string { return []string{"node", "testdata/connect.mjs", nodes, u, "connect", file} },
		"node gRPC-Web, connect-go": func(_, u string) []string { return []string{"node", "testdata/connect.mjs", nodes, u, "web", file} },
		"node connect's gRPC, grpcgo": func(a, _ string) []string {
			return []string{"node", "testdata/connect.mjs", nodes, "http://" + a, "grpc", file}
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := command(startGRPC(t, rates(t)), startConnect(t, rates(t)))
			c := exec.CommandContext(t.Context(), args[0], args[1:]...)
			var faults bytes.Buffer
			c.Stderr = &faults
			out, err := c.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, faults.String())
			}
			var got []told
			if err := json.Unmarshal(out, &got); err != nil || len(got) != 2 {
				t.Fatalf("%v: %s", err, out)
			}
			if g := got[0]; g.Code != "8" || g.Retry < 86_000 || g.Retry > 86_400 || g.Policy != "api" || len(g.Pushback) != 8 || g.After != "86400" {
				t.Errorf("a day: %+v", g)
			}
			if want := (told{"8", -1, "api", "-1", ""}); got[1] != want {
				t.Errorf("for ever: %+v, want %+v", got[1], want)
			}
		})
	}
}
