package headgated_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/headgated"
)

const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// asIs is a codec that sends bytes as they are, and reads protobuf.
type asIs struct{ encoding.CodecV2 }

func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// encoded returns a request with one descriptor, whatever the bytes of its texts are.
func encoded(domain, key, value string) []byte {
	field := func(number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	}
	entry := append(field(1, []byte(key)), field(2, []byte(value))...)
	return append(field(1, []byte(domain)), field(2, field(1, entry))...)
}

// What is no request gets an error, and the server goes on. But a value of a descriptor may have any bytes, as
// header fields do: it has a count of its own.
func TestGRPCMalformed(t *testing.T) {
	s, conn := serveRLS(t, headgated.Config{Document: newPage(rules)})
	send := func(message []byte) (*pb.RateLimitResponse, error) {
		r := &pb.RateLimitResponse{}
		return r, conn.Invoke(t.Context(), method, message, r, grpc.ForceCodecV2(asIs{encoding.GetCodecV2("proto")}))
	}
	whole := encoded("d", "user", "anna")
	for name, message := range map[string][]byte{
		"no tag":             {0xff},
		"cut off":            whole[:len(whole)-1],
		"cut off, no UTF-8":  encoded("d", "user", "a\xff")[:12],
		"a length of 2^63-1": slices.Concat([]byte{0x0a}, protowire.AppendVarint(nil, 1<<63-1)),
		"an end of a group":  {0x0c},
		"a text for a list":  {0x12, 0x01, 'a'},
		"a domain, no UTF-8": encoded("\xff", "user", "anna"),
		"a key, no UTF-8":    encoded("d", "user\xff", "anna"),
		"groups in groups":   bytes.Repeat([]byte{0x0b}, 60_000),
	} {
		if _, err := send(message); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n, want := range map[int]codes.Code{10_000: codes.InvalidArgument, 40_000: codes.InvalidArgument, 1 << 19: codes.ResourceExhausted} { // descriptors, of two bytes each
		if _, err := send(slices.Concat([]byte{0x0a, 1, 'd'}, bytes.Repeat([]byte{0x12, 0x00}, n))); status.Code(err) != want {
			t.Errorf("%d descriptors: %v", n, err)
		}
	}
	if got := metric(t, s, "headgated_requests_total"); !strings.Contains(got, `{code="InvalidArgument",path="grpc"} 11`) || !strings.Contains(got, `{code="ResourceExhausted",path="grpc"} 1`) {
		t.Error(got)
	}
	if got := metric(t, s, "ratelimit_service_should_rate_limit_error"); !strings.Contains(got, `{err_type="service_error"} 12`) {
		t.Error(got)
	}
	for i, test := range []struct{ value, want string }{
		{"a\xff", "OK OK:9"}, {"a\xff", "OK OK:8"}, {"a\xfe", "OK OK:9"}, {"a", "OK OK:9"}, {"\xed\xa0\x80", "OK OK:9"}, {strings.Repeat("\xff", 60_000), "OK OK:9"},
	} {
		if r, err := send(encoded("d", "user", test.value)); err != nil || summary(r) != test.want {
			t.Errorf("%d: %v %v, not %s", i, r, err, test.want)
		}
	}
}

// A peer is a client that speaks HTTP/2 as it likes.
type peer struct {
	*http2.Framer

	t     testing.TB
	conn  net.Conn
	next  uint32 // stream
	text  bytes.Buffer
	hpack *hpack.Encoder
}

func newPeer(t testing.TB, conn net.Conn) *peer {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	p := &peer{Framer: http2.NewFramer(conn, conn), t: t, conn: conn, next: 1}
	p.hpack = hpack.NewEncoder(&p.text)
	_, err := io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	must(t, p.WriteSettings())
	return p
}

// open begins a call with a message, with more fields, and returns its stream. It fails once the connection is closed.
func (p *peer) open(message []byte, fields ...hpack.HeaderField) (stream uint32, err error) {
	p.text.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method}, {Name: ":authority", Value: "a"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, fields...) {
		must(p.t, p.hpack.WriteField(f))
	}
	stream = p.next
	p.next += 2
	block := p.text.Bytes()
	first := block[:min(len(block), 16<<10)]
	err = p.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndHeaders: len(first) == len(block)})
	for rest := block[len(first):]; err == nil && len(rest) > 0; {
		more := rest[:min(len(rest), 16<<10)]
		rest = rest[len(more):]
		err = p.WriteContinuation(stream, len(rest) == 0, more)
	}
	if err == nil && message != nil {
		err = p.WriteData(stream, true, slices.Concat([]byte{0, 0, 0, 0, byte(len(message))}, message))
	}
	return stream, err
}

// until reads frames until one is as wanted, and reports whether there was one before the connection was closed.
func (p *peer) until(is func(http2.Frame) bool) bool {
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return false
		}
		if is(f) {
			return true
		}
	}
}

// What a client does with HTTP/2 costs the server a bounded amount, and others nothing.
func TestGRPCAbuse(t *testing.T) {
	one := encoded("d", "user", "anna")
	reset := func(stream uint32, code http2.ErrCode) func(http2.Frame) bool {
		return func(f http2.Frame) bool {
			r, ok := f.(*http2.RSTStreamFrame)
			return ok && r.StreamID == stream && r.ErrCode == code
		}
	}
	for name, abuse := range map[string]func(*peer) bool{
		"bounds are told": func(p *peer) bool {
			return p.until(func(f http2.Frame) bool {
				s, ok := f.(*http2.SettingsFrame)
				if !ok || s.IsAck() {
					return false
				}
				streams, _ := s.Value(http2.SettingMaxConcurrentStreams)
				fields, _ := s.Value(http2.SettingMaxHeaderListSize)
				return streams == 1000 && fields == 64<<10
			})
		},
		"many streams": func(p *peer) bool {
			var last uint32
			for range 1001 {
				last, _ = p.open(nil)
			}
			return p.until(reset(last, http2.ErrCodeRefusedStream))
		},
		"many fields": func(p *peer) bool {
			stream, _ := p.open(one, slices.Repeat([]hpack.HeaderField{{Name: "x", Value: strings.Repeat("a", 7000), Sensitive: true}}, 10)...)
			return p.until(reset(stream, http2.ErrCodeFrameSize))
		},
		"many pings": func(p *peer) bool {
			for range 10 {
				_ = p.WritePing(false, [8]byte{})
			}
			calm := p.until(func(f http2.Frame) bool {
				g, ok := f.(*http2.GoAwayFrame)
				return ok && g.ErrCode == http2.ErrCodeEnhanceYourCalm
			})
			return calm && !p.until(func(http2.Frame) bool { return false })
		},
		"many resets": func(p *peer) bool {
			go func() { _, _ = io.Copy(io.Discard, p.conn) }()
			for range 10_000 {
				stream, err := p.open(one)
				if err != nil || p.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
					break // it was let go
				}
			}
			return true
		},
		"nothing is read": func(p *peer) bool {
			for range 900 {
				_, _ = p.open(one)
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, headgated.Config{Document: newPage(rules), GRPC: "127.0.0.1:0", Drain: time.Millisecond})
			addrs, stop := serve(t, s)
			conn, err := net.Dial("tcp", addrs.GRPC)
			must(t, err)
			if !abuse(newPeer(t, conn)) {
				t.Error("the server takes it")
			}
			other, err := grpc.NewClient(addrs.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
			must(t, err)
			defer other.Close()
			runSteps(t, pb.NewRateLimitServiceClient(other), []step{{of: ds{d("ten=b")}, want: "OK OK:9"}})
			_ = stop() // it ends, whoever is there
		})
	}
}

// A client that is there no more, or does not read, is let go.
func TestGRPCSilentClient(t *testing.T) {
	s := open(t, headgated.Config{Document: newPage(rules)})
	for name, calls := range map[string]int{"idle": 0, "busy": 900} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := bufconn.Listen(4 << 10)
				run, stop := s.GRPCDoor(l)
				go run()
				defer stop()
				conn, err := l.DialContext(t.Context())
				must(t, err)
				p := newPeer(t, conn)
				begin := time.Now()
				for range calls {
					if _, err := p.open(encoded("d", "user", "anna")); err != nil {
						break
					}
				}
				time.Sleep(2*time.Minute - time.Since(begin)) // in the time of the bubble
				if err := p.WritePing(false, [8]byte{}); !errors.Is(err, io.ErrClosedPipe) || time.Since(begin) > 2*time.Minute {
					t.Errorf("after %v: %v", time.Since(begin), err)
				}
			})
		})
	}
}

// A call that does not bring its message ends, though its client is there.
func TestGRPCSlowCall(t *testing.T) {
	s := open(t, headgated.Config{Document: newPage(rules)})
	whole := encoded("d", "user", "anna")
	for name, part := range map[string][]byte{"nothing": nil, "a part": slices.Concat([]byte{0, 0, 0, 0, byte(len(whole))}, whole[:3])} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := bufconn.Listen(4 << 10)
				run, stop := s.GRPCDoor(l)
				go run()
				defer stop()
				conn, err := l.DialContext(t.Context())
				must(t, err)
				p, begin := newPeer(t, conn), time.Now()
				stream, err := p.open(nil)
				must(t, err)
				if part != nil {
					must(t, p.WriteData(stream, false, part))
				}
				if !p.until(func(f http2.Frame) bool {
					return f.Header().StreamID == stream && f.Header().Flags.Has(http2.FlagHeadersEndStream)
				}) ||
					time.Since(begin) != 10*time.Second {
					t.Errorf("after %v", time.Since(begin))
				}
			})
		})
	}
}
