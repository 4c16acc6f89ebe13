package grpcmw_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/grpcmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const slow = 10 * time.Second // more than anything here takes

// Cost may look at the message, and Settle at the response, the code and what SetCost said.
func TestSettle(t *testing.T) {
	type seen struct {
		Status   int
		Code     codes.Code
		Cost     int64
		Response string
	}
	var got seen
	tokens = limiter(t, "tokens", core.FixedWindow(1000, time.Hour))
	client := start(t, "tcp", guardOf(t, grpcmw.Config{Rates: []nethttp.Rate{{
		Key: grpcmw.Metadata("user"), Limiter: tokens,
		Cost: func(r *http.Request) int64 {
			m, _ := grpcmw.Message(r).(*testpb.SimpleRequest)
			return 1 + int64(m.GetResponseSize())
		},
		Settle: func(r *http.Request, o nethttp.Outcome) int64 {
			response, _ := grpcmw.Response(r).(*testpb.SimpleResponse)
			got = seen{o.Status, grpcmw.Code(r), o.Cost, response.GetUsername()}
			return nethttp.FailuresOnly(r, o)
		},
	}}}))
	left := int64(1000)
	for what, want := range map[string]struct {
		seen
		charged int64
	}{
		"":      {seen{200, codes.OK, 5, "4"}, 0},
		"fail":  {seen{404, codes.NotFound, 5, "4"}, 5},
		"panic": {seen{500, codes.Internal, 5, ""}, 5},
		"cost":  {seen{200, codes.OK, 7, "4"}, 0},
	} {
		got = seen{}
		_, _ = client.UnaryCall(as(t.Context(), "do", what), &testpb.SimpleRequest{ResponseSize: 4})
		left -= want.charged
		d, err := tokens.Peek(t.Context(), "anna")
		if got != want.seen || err != nil || d.Remaining != left {
			t.Errorf("%q: %+v, %d left, %v; want %+v, %d", what, got, d.Remaining, err, want.seen, left)
		}
	}
}

// Without a Cost one unit gets a call in, and Settle counts the others when the call, or the stream, has ended.
func TestSettleAfterwards(t *testing.T) {
	tokens = limiter(t, "tokens", core.FixedWindow(14, 24*time.Hour))
	client := start(t, "tcp", guardOf(t, grpcmw.Config{Rates: []nethttp.Rate{{
		Key: grpcmw.Metadata("user"), Limiter: tokens, Settle: func(*http.Request, nethttp.Outcome) int64 { return 4 },
	}}}))
	left := func(want int64) {
		t.Helper()
		if d := must(tokens.Peek(t.Context(), "anna")); d.Remaining != want {
			t.Errorf("%d left, want %d", d.Remaining, want)
		}
	}
	stream := must(client.FullDuplexCall(as(t.Context())))
	if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Error(err)
	}
	left(13)
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	left(10)
	for _, c := range []struct {
		do   string
		code codes.Code
		left int64
	}{{"", codes.OK, 6}, {"fail", codes.NotFound, 2}, {"panic", codes.Internal, 0}, {"", codes.ResourceExhausted, 0}} {
		_, err := client.UnaryCall(as(t.Context(), "do", c.do), &testpb.SimpleRequest{ResponseSize: 4})
		if status.Code(err) != c.code {
			t.Errorf("%q: %v", c.do, err)
		}
		left(c.left)
	}
}

// A refusal by slots does not show a unit that was given back, and an admitted one of a rule with Settle has no t
// beside r=0.
func TestFields(t *testing.T) {
	store := new(core.MemoryStore)
	logins := core.NewLimiter(store, "logins", core.FixedWindow(1, time.Hour))
	slots := core.NewSlots(store, "streams", 1)
	user := grpcmw.Metadata("user")
	client := start(t, "tcp", guardOf(t, grpcmw.Config{
		Rates: []nethttp.Rate{{Key: user, Limiter: logins, Settle: nethttp.FailuresOnly}}, Concurrency: []nethttp.Concurrency{{Key: user, Slots: slots}},
	}))
	slot := must(slots.Acquire(t.Context(), "anna"))
	var trailer, header metadata.MD
	_, err := client.UnaryCall(as(t.Context()), &testpb.SimpleRequest{}, grpc.Trailer(&trailer))
	if !strings.HasPrefix(details(err), "streams=1 at once retry") || fmt.Sprint(trailer["ratelimit"]) != `["streams";r=0]` {
		t.Errorf("%q %v", details(err), trailer)
	}
	slot.Release()
	if _, err = client.UnaryCall(as(t.Context()), &testpb.SimpleRequest{}, grpc.Header(&header)); err != nil || fmt.Sprint(header["ratelimit"]) != `["logins";r=0, "streams";r=0]` {
		t.Errorf("%v %v", err, header)
	}
}

// certificates returns those of a server and of a client whose subject is anna.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "anna", Organization: []string{"Example"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	pool := x509.NewCertPool()
	pool.AddCert(must(x509.ParseCertificate(der)))
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return &tls.Config{Certificates: own, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13},
		&tls.Config{Certificates: own, RootCAs: pool, MinVersion: tls.VersionTLS13}
}

// Each key finds who makes a call, and believes nobody who is not trusted.
func TestKeys(t *testing.T) {
	serverTLS, clientTLS := certificates(t)
	noCertificate := clientTLS.Clone()
	noCertificate.Certificates = nil
	trusting := keyfuncs.XForwardedFor("127.0.0.0/8")
	distrusting := keyfuncs.XForwardedFor("10.0.0.0/8")
	forged := []string{"x-forwarded-for", "198.51.100.7"}
	for name, test := range map[string]struct {
		key    keyfuncs.Func
		client *tls.Config
		fields []string
		want   string // "": none
	}{
		"peer":                   {key: keyfuncs.RemoteAddr(), want: "127.0.0.1"},
		"peer, forged":           {key: keyfuncs.RemoteAddr(), fields: forged, want: "127.0.0.1"},
		"behind a proxy":         {key: keyfuncs.BehindProxies(1), fields: forged, want: "198.51.100.7"},
		"behind a proxy, TLS":    {key: keyfuncs.BehindProxies(1), client: clientTLS, fields: forged, want: "198.51.100.7"},
		"from a trusted network": {key: trusting, fields: forged, want: "198.51.100.7"},
		"from another network":   {key: distrusting, fields: forged, want: "127.0.0.1"},
		"metadata":               {key: grpcmw.Metadata("X-Own"), fields: []string{"x-own", "ben"}, want: "ben"},
		"no metadata":            {key: grpcmw.Metadata("x-own")},
		"method":                 {key: grpcmw.Method(), want: "/grpc.testing.TestService/UnaryCall"},
		"subject":                {key: grpcmw.TLSSubject(), client: clientTLS, want: "CN=anna,O=Example"},
		"no certificate":         {key: grpcmw.TLSSubject(), client: noCertificate},
		"no TLS":                 {key: grpcmw.TLSSubject()},
		"all":                    {key: keyfuncs.All(keyfuncs.RemoteAddr(), grpcmw.Metadata("x-own")), fields: []string{"x-own", "ben"}, want: "9:127.0.0.1,3:ben,"},
		"first":                  {key: keyfuncs.First(keyfuncs.Tag("tls", grpcmw.TLSSubject()), keyfuncs.Tag("ip", keyfuncs.RemoteAddr())), want: "ip:127.0.0.1"},
		"one's own, of the gRPC's peer": {key: func(r *http.Request) (string, error) {
			return strings.Join(metadata.ValueFromIncomingContext(r.Context(), "x-own"), ""), nil
		}, fields: []string{"x-own", "ben"}, want: "ben"},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			var failed error
			guard := guardOf(t, grpcmw.Config{Rates: []nethttp.Rate{{
				Limiter: limiter(t, "api", core.Unlimited()),
				Key: func(r *http.Request) (string, error) {
					got, failed = test.key(r)
					return got, failed
				},
			}}})
			opts := []grpc.ServerOption{grpc.UnaryInterceptor(guard.Unary())}
			var dial []grpc.DialOption
			if test.client != nil {
				opts = append(opts, grpc.Creds(credentials.NewTLS(serverTLS)))
				dial = append(dial, grpc.WithTransportCredentials(credentials.NewTLS(test.client)))
			}
			client := serve(t, "tcp", grpc.NewServer(opts...), dial...)
			_, err := client.UnaryCall(metadata.AppendToOutgoingContext(t.Context(), test.fields...), &testpb.SimpleRequest{})
			if test.want == "" && (!errors.Is(failed, keyfuncs.ErrAbsent) || status.Code(err) != codes.InvalidArgument) ||
				test.want != "" && err != nil || got != test.want {
				t.Errorf("%q, %v, %v, want %q", got, failed, err, test.want)
			}
		})
	}
}

// Slots are as many as streams are open, however those end.
func TestSlotsAreThoseOfOpenStreams(t *testing.T) {
	slots := core.NewSlots(new(core.MemoryStore), "streams", 3)
	guard := guardOf(t, grpcmw.Config{Concurrency: []nethttp.Concurrency{{Key: grpcmw.Metadata("user"), Slots: slots}}})
	client := start(t, "tcp", guard)
	held := func() int64 {
		n, err := slots.Count(t.Context(), "anna")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), slow)
		what := []string{"", "fail", "panic", "wait", "", "wait"}[i%6]
		if i%6 == 5 { // a deadline
			ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		}
		stream, err := client.FullDuplexCall(as(ctx, "do", what))
		if err == nil {
			switch i % 6 {
			case 0: // to its end
				_ = stream.Send(&testpb.StreamingOutputCallRequest{})
				_, _ = stream.Recv()
				_ = stream.CloseSend()
			case 3, 4: // cut
				cancel()
			}
			for err == nil {
				_, err = stream.Recv()
			}
		}
		cancel()
	}
	free := func() { // a handler may learn late that its client has gone
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), slow)
		defer cancel()
		for range 3 {
			slot, err := slots.Wait(ctx, "anna", 1)
			if err != nil {
				t.Fatal(err)
			}
			defer slot.Release()
		}
	}
	free()
	var open []context.CancelFunc
	for range 3 {
		ctx, cancel := context.WithCancel(as(t.Context()))
		open = append(open, cancel)
		stream, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&testpb.StreamingOutputCallRequest{})
		if _, err = stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	over, err := client.FullDuplexCall(as(t.Context()))
	if err == nil {
		_, err = over.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.HasPrefix(details(err), "streams=3 at once retry") || held() != 3 {
		t.Errorf("%v, %q, %d held", err, details(err), held())
	}
	for _, cancel := range open {
		cancel()
	}
	free()
}

// A stream that receives too many messages ends with the refusal, even if its handler hides that.
func TestMessages(t *testing.T) {
	messages := limiter(t, "messages", core.SlidingLog(5, time.Hour))
	size := func(r *http.Request) int64 {
		m, _ := grpcmw.Message(r).(*testpb.StreamingOutputCallRequest)
		return int64(len(m.GetResponseParameters()))
	}
	client := start(t, "tcp", guardOf(t, grpcmw.Config{Messages: []nethttp.Rate{{Key: grpcmw.Metadata("user"), Limiter: messages, Cost: size}}}))
	two := &testpb.StreamingOutputCallRequest{ResponseParameters: make([]*testpb.ResponseParameters, 2)}
	for i := range two.GetResponseParameters() {
		two.ResponseParameters[i] = &testpb.ResponseParameters{}
	}
	stream, err := client.FullDuplexCall(as(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	answered := 0
	for ; err == nil; answered++ {
		if err = stream.Send(two); err == nil {
			_, err = stream.Recv()
		}
	}
	_, err = stream.Recv()
	if answered != 3 || status.Code(err) != codes.ResourceExhausted || details(err) != "messages=5 in 1h0m0s retry 1h0m0s" || len(stream.Trailer()["ratelimit"]) != 1 {
		t.Errorf("%d: %v %q %v", answered, err, details(err), stream.Trailer())
	}
}

// What Skip names is not limited.
func TestSkip(t *testing.T) {
	closed := limiter(t, "closed", core.Blocked())
	client := start(t, "tcp", guardOf(t, grpcmw.Config{
		Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: closed}}, Messages: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: closed}},
		Skip: grpcmw.Methods("/grpc.testing.TestService/Full"),
	}))
	stream, err := client.FullDuplexCall(t.Context())
	if err == nil {
		_ = stream.Send(&testpb.StreamingOutputCallRequest{})
		_, err = stream.Recv()
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

// A tap decides before there is a call. A guard that could wait has none.
func TestTap(t *testing.T) {
	guard := guardOf(t, grpcmw.Config{Rates: []nethttp.Rate{{Key: grpcmw.Metadata("user"), Limiter: limiter(t, "api", core.SlidingLog(1, time.Hour))}}})
	client := serve(t, "tcp", grpc.NewServer(grpc.InTapHandle(guard.Tap())))
	for i := range 2 {
		_, err := client.UnaryCall(as(t.Context()), &testpb.SimpleRequest{})
		if got := status.Code(err); (i == 0) != (err == nil) || i == 1 && (got != codes.ResourceExhausted || details(err) != "api=1 in 1h0m0s retry 1h0m0s") {
			t.Errorf("%d: %v, %q", i, err, details(err))
		}
	}
	slots := core.NewSlots(new(core.MemoryStore), "slots", 1)
	for _, c := range []grpcmw.Config{
		{Concurrency: []nethttp.Concurrency{{Key: keyfuncs.RemoteAddr(), Slots: slots}}},
		{Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "api", core.Unlimited()), Settle: nethttp.FailuresOnly}}},
		{Messages: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "api", core.Unlimited())}}},
	} {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "headgate: ") {
					t.Errorf("%+v: panic %q", c.Rates, text)
				}
			}()
			guardOf(t, c).Tap()
		}()
	}
}

// Faults of the configuration are told when the guard is made.
func TestConfigFaults(t *testing.T) {
	slots := core.NewSlots(new(core.MemoryStore), "slots", 1)
	api := limiter(t, "api", core.Unlimited())
	for want, c := range map[string]grpcmw.Config{
		"there is no rule":                      {},
		"Rates[0]: the Key is nil":              {Rates: []nethttp.Rate{{Limiter: api}}},
		"Concurrency[0]: the Key is nil":        {Concurrency: []nethttp.Concurrency{{Slots: slots}}},
		"Messages[0]: a message is":             {Messages: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: api, Settle: nethttp.FailuresOnly}}},
		"headgate: Messages[0]: the Key is nil": {Messages: []nethttp.Rate{{Limiter: api}}},
	} {
		if _, err := grpcmw.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Clients with a retry policy come back when the trailer says so, and not if it says never.
func TestRetryPolicy(t *testing.T) {
	policy := grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
		"initialBackoff": "0.001s", "maxBackoff": "0.002s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`)
	for name, test := range map[string]struct {
		policy core.Policy
		asked  int
		fails  bool
	}{
		"soon":  {core.FixedWindow(1, 200*time.Millisecond).FromFirst(), 3, false}, // the second call is refused once
		"never": {core.Blocked(), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			asked := 0
			client := start(t, "tcp", guardOf(t, grpcmw.Config{
				Rates:   []nethttp.Rate{{Key: grpcmw.Metadata("user"), Limiter: limiter(t, "api", test.policy)}},
				Observe: func(*http.Request, *nethttp.Verdict) { mu.Lock(); asked++; mu.Unlock() },
			}), policy)
			_, err := client.UnaryCall(as(t.Context()), &testpb.SimpleRequest{})
			if !test.fails && err == nil {
				_, err = client.UnaryCall(as(t.Context()), &testpb.SimpleRequest{})
			}
			if mu.Lock(); asked != test.asked || (err != nil) != test.fails {
				t.Errorf("asked %d times, %v", asked, err)
			}
			mu.Unlock()
		})
	}
}

// A Client waits as it is told, and so does another process that shares its store.
func TestClient(t *testing.T) {
	window := 300 * time.Millisecond
	store := new(core.MemoryStore)
	client := func() *grpcmw.Client {
		return must(grpcmw.NewClient(grpcmw.ClientConfig{Limiter: core.NewLimiter(store, "out", core.Unlimited()), MaxWait: slow, Retries: 1}))
	}
	refused := 0
	var mu sync.Mutex
	guard := guardOf(t, grpcmw.Config{
		Rates: []nethttp.Rate{{Key: grpcmw.Metadata("user"), Limiter: limiter(t, "api", core.FixedWindow(1, window).FromFirst())}},
		Observe: func(_ *http.Request, v *nethttp.Verdict) {
			mu.Lock()
			defer mu.Unlock()
			if v.Status != 0 {
				refused++
			}
		},
	})
	one := client()
	conn := start(t, "tcp", guard, grpc.WithUnaryInterceptor(one.Unary()), grpc.WithStreamInterceptor(one.Stream()))
	for range 2 { // the second is refused, waits, and is repeated
		if _, err := conn.UnaryCall(as(t.Context()), &testpb.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := conn.FullDuplexCall(as(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	// Now the key is blocked for all.
	mu.Lock()
	if refused != 2 {
		t.Errorf("refused %d times", refused)
	}
	mu.Unlock()
	short, cancel := context.WithTimeout(as(t.Context()), time.Millisecond)
	defer cancel()
	if _, err := conn.UnaryCall(short, &testpb.SimpleRequest{}); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "not sent") {
		t.Errorf("%v", err)
	}
	if _, err := conn.UnaryCall(as(t.Context()), &testpb.SimpleRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := grpcmw.NewClient(grpcmw.ClientConfig{}); err == nil {
		t.Error("a client without a limiter")
	}
}

// The matcher gives the limits' metadata the names that clients of HTTP know.
func TestGatewayHeader(t *testing.T) {
	got := make(map[string]string)
	for _, name := range []string{"ratelimit", "RateLimit-Policy", "retry-after", "other"} {
		got[name], _ = grpcmw.GatewayHeader(name)
	}
	want := map[string]string{"ratelimit": "Ratelimit", "RateLimit-Policy": "Ratelimit-Policy", "retry-after": "Retry-After", "other": "Grpc-Metadata-other"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", slices.Sorted(maps.Values(got)))
	}
}
