package rpctest

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/nethttp"
)

const (
	slotTTL = 1500 * time.Millisecond
	limit   = 8                // streams of a user
	slow    = 30 * time.Second // more than anything here takes
)

func TestMain(m *testing.M) { proctest.Main(m, proctest.Funcs{"server": server}) }

func openSlots(address string) (*core.Slots, error) {
	s, err := redisstore.Open("redis://"+address, redisstore.Config{SlotTTL: slotTTL, Timeout: slow})
	if err != nil {
		return nil, err
	}
	return core.NewSlots(s, "streams", limit), nil
}

// An echo answers each message until its client has none, or the stream is cut.
type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) FullDuplexCall(ss testpb.TestService_FullDuplexCallServer) error {
	for {
		m, err := ss.Recv()
		if err != nil {
			return nil //nolint:nilerr // as handlers do
		}
		if m.GetResponseStatus().GetCode() != 0 {
			panic("on purpose")
		}
		if err := ss.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// server is a process that serves streams, as many of a user as there are slots. It prints its address,
// and stops in order when it gets a line.
func server(args []string) error {
	slots, err := openSlots(args[0])
	if err != nil {
		return err
	}
	guard, err := grpcmw.New(grpcmw.Config{Concurrency: []nethttp.Concurrency{{Key: grpcmw.Metadata("user"), Slots: slots}}})
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return h(srv, ss)
	}, guard.Stream()))
	testpb.RegisterTestServiceServer(s, echo{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		bufio.NewScanner(os.Stdin).Scan()
		s.GracefulStop()
	}()
	if err := s.Serve(l); err != nil {
		return err
	}
	return slots.Close(context.Background())
}

// dial returns a client of a server whose connection can be cut.
func dial(t *testing.T, address string) (client testpb.TestServiceClient, cut func()) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn), func() { conn.Close() }
}

// hold opens a stream, and waits until its handler runs.
func hold(ctx context.Context, client testpb.TestServiceClient) (testpb.TestService_FullDuplexCallClient, error) {
	s, err := client.FullDuplexCall(metadata.AppendToOutgoingContext(ctx, "user", "anna"))
	if err != nil {
		return nil, err
	}
	_ = s.Send(&testpb.StreamingOutputCallRequest{})
	_, err = s.Recv()
	return s, err
}

// After 1,000 streams that end in every way, over two processes, there are as many slots as before: when
// one process is stopped in order, and the other is killed, too.
func TestStreamsOverProcesses(t *testing.T) {
	store := redistest.Start(t)
	slots, err := openSlots(store.Addr())
	if err != nil {
		t.Fatal(err)
	}
	processes := []*proctest.Process{proctest.Start(t, "server", store.Addr()), proctest.Start(t, "server", store.Addr())}
	addresses := []string{processes[0].Line(), processes[1].Line()}
	var mu sync.Mutex
	ended := make(map[codes.Code]int)
	var group sync.WaitGroup
	for worker := range 10 {
		group.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 1))
			client, cut := dial(t, addresses[worker%2])
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), slow)
				how := r.IntN(5)
				if how == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(r.IntN(20))*time.Millisecond)
				}
				s, err := hold(ctx, client)
				if err == nil {
					switch how {
					case 1:
						cancel()
					case 2: // the transport
						cut()
						client, cut = dial(t, addresses[worker%2])
					case 3:
						_ = s.Send(&testpb.StreamingOutputCallRequest{ResponseStatus: &testpb.EchoStatus{Code: 1}})
					case 4:
						_ = s.CloseSend()
					}
					for err == nil {
						_, err = s.Recv()
					}
				}
				mu.Lock()
				ended[status.Code(err)]++
				mu.Unlock()
				cancel()
			}
		})
	}
	group.Wait()
	if ended[codes.ResourceExhausted] == 0 || ended[codes.Internal] == 0 || ended[codes.DeadlineExceeded] == 0 || ended[codes.Canceled] == 0 {
		t.Errorf("not all ways to end were met: %v", ended)
	}
	all := func(n int64) { // n slots can be had, and no more
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), slow)
		defer cancel()
		var held []*core.Slot
		for range n {
			slot, err := slots.Wait(ctx, "anna", 1)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, slot)
		}
		if slot, err := slots.Acquire(ctx, "anna"); err == nil {
			slot.Release()
			t.Errorf("more than %d slots", n)
		}
		for _, slot := range held {
			slot.Release()
		}
	}
	all(limit)

	// Streams are open on both.
	one, _ := dial(t, addresses[0])
	other, _ := dial(t, addresses[1])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, client := range []testpb.TestServiceClient{one, one, other, other, other} {
		for {
			if _, err := hold(ctx, client); err == nil {
				break
			} else if status.Code(err) != codes.ResourceExhausted { // what was released is remembered for a moment
				t.Fatal(err)
			}
		}
	}
	all(limit - 5)
	processes[1].Kill()
	all(limit - 2) // after a SlotTTL
	processes[0].Send("stop")
	cancel() // who stops in order waits for its streams
	processes[0].Wait()
	all(limit)
}
