package envoy_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var (
	rounds = flag.Int("rounds", 3, "how many rounds of the services are measured; the medians are reported")
	slice  = flag.Duration("slice", 2*time.Second, "how long each service is asked in a round")
)

// A subject is a service that is measured.
type subject struct {
	name, transport string
	process         *proctest.Process
	clients         [2]*grpc.ClientConn // as of two threads of a proxy
	found           []figures
}

// figures are what a subject does in a round. Times are of one call.
type figures struct{ perSecond, p99, service, redis float64 }

// BenchmarkService compares the service over Redis, with leases, the reference, and the floor: the services take turns.
func BenchmarkService(b *testing.B) {
	folder := filepath.Join(b.TempDir(), "config")
	if err := os.Mkdir(folder, 0o700); err != nil {
		b.Fatal(err)
	}
	text := "domain: speed\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}]\n"
	if err := os.WriteFile(filepath.Join(folder, "speed.yaml"), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	redis := redistest.Start(b)
	var subjects []*subject
	for _, name := range []string{"floor", "headgated", "each", "leased", "reference"} {
		for _, transport := range []string{"TCP", "unix"} {
			at := "127.0.0.1:0"
			if transport == "unix" {
				at = "unix:" + filepath.Join(b.TempDir(), "s")
			}
			if name == "reference" && transport == "unix" {
				continue
			}
			s := &subject{name: name, transport: transport, process: proctest.Start(b, name, redis.Addr(), folder, at)}
			address := s.process.Line()
			for i := range s.clients {
				s.clients[i] = connect(b, address)
			}
			subjects = append(subjects, s)
		}
	}
	for _, keys := range []int{1, 100_000} {
		questions := make([][]byte, keys)
		for i := range questions {
			var err error
			if questions[i], err = proto.Marshal(ask("speed", 0, descriptor("user", "user-"+strconv.Itoa(i)))); err != nil {
				b.Fatal(err)
			}
		}
		for _, callers := range []int{1, 64, 256} {
			for _, s := range subjects {
				s.found = nil
				s.measure(b, redis, callers, questions, *slice/4) // not counted
			}
			for round := range *rounds {
				for i := range subjects {
					s := subjects[(i+round)%len(subjects)]
					s.found = append(s.found, s.measure(b, redis, callers, questions, *slice))
				}
			}
			report(subjects, callers, keys)
		}
	}
}

// measure asks a service for some time.
func (s *subject) measure(b *testing.B, redis *redistest.Server, callers int, questions [][]byte, long time.Duration) figures {
	took := make([][]time.Duration, callers)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	service, server, begin := cpu(b, s.process.Pid()), redis.CPU(), time.Now()
	var group sync.WaitGroup
	for i := range took {
		group.Go(func() {
			for last := begin; last.Sub(begin) < long; {
				var r []byte
				err := s.clients[i%len(s.clients)].Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, questions[rand.IntN(len(questions))], &r, grpc.ForceCodecV2(raw{}))
				if err != nil || !bytes.HasPrefix(r, admitted) {
					b.Errorf("%s: %q %v", s.name, r, err)
					return
				}
				now := time.Now()
				took[i], last = append(took[i], now.Sub(last)), now
			}
		})
	}
	group.Wait()
	passed, service, server := time.Since(begin), cpu(b, s.process.Pid())-service, redis.CPU()-server
	all := slices.Concat(took...)
	slices.Sort(all)
	n := float64(len(all))
	micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return figures{n / passed.Seconds(), micro(all[len(all)*99/100]), micro(service) / n, micro(server) / n}
}

// raw is the codec of bytes that are encoded already, so that the callers take little of the machine.
type raw struct{}

// Marshal implements [encoding.CodecV2].
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements [encoding.CodecV2].
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name implements [encoding.CodecV2].
func (raw) Name() string { return "proto" }

// admitted is how an answer begins that admits.
var admitted = []byte{1 << 3, byte(pb.RateLimitResponse_OK)}

// cpu returns the processor time that a process has used, as Linux counts it: by hundredths of a second.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // after the name, which may hold spaces
	ticks := 0
	for _, field := range fields[11:13] {
		n, _ := strconv.Atoi(string(field))
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// report prints the medians, and those of the ratios to the floor and to the reference in the same round.
func report(subjects []*subject, callers, keys int) {
	median := func(s *subject, figure func(i int) float64) float64 {
		all := make([]float64, len(s.found))
		for i := range all {
			all[i] = figure(i)
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	var floor *subject
	reference := subjects[len(subjects)-1]
	var text strings.Builder
	fmt.Fprintf(&text, "\n| %d callers, %d keys | | decisions/s | of the floor | of the reference | p99 µs | service µs | of the floor | Redis µs |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n", callers, keys)
	for _, transport := range []string{"TCP", "unix"} {
		for _, s := range subjects {
			if s.transport != transport {
				continue
			}
			if s.name == "floor" {
				floor = s
			}
			fmt.Fprintf(&text, "| %s | %s | %.0f | %.2f | %.2f | %.0f | %.1f | %.2f | %.2f |\n", s.name, transport,
				median(s, func(i int) float64 { return s.found[i].perSecond }),
				median(s, func(i int) float64 { return s.found[i].perSecond / floor.found[i].perSecond }),
				median(s, func(i int) float64 { return s.found[i].perSecond / reference.found[i].perSecond }),
				median(s, func(i int) float64 { return s.found[i].p99 }),
				median(s, func(i int) float64 { return s.found[i].service }),
				median(s, func(i int) float64 { return s.found[i].service / floor.found[i].service }),
				median(s, func(i int) float64 { return s.found[i].redis }))
		}
	}
	fmt.Print(text.String())
}
