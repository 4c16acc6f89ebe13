package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

type text = wrapperspb.StringValue

const (
	unary = "/test.Service/Unary"
	bidi  = "/test.Service/Bidi"
)

// errNothing is one error for all calls, as handlers may have it.
var errNothing = connect.NewError(connect.CodeNotFound, errors.New("nothing"))

// do does what the message says, and answers with it.
func do(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
	switch r.Msg.GetValue() {
	case "panic":
		panic(http.ErrAbortHandler)
	case "fail":
		return nil, errNothing
	}
	return connect.NewResponse(r.Msg), nil
}

// echo answers each message, and hides why it ends.
func echo(_ context.Context, s *connect.BidiStream[text, text]) error {
	for {
		m, err := s.Receive()
		if err != nil {
			return nil //nolint:nilerr // as handlers do
		}
		if m.GetValue() == "panic" {
			panic(http.ErrAbortHandler)
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}

var protocols = map[string][]connect.ClientOption{
	"connect": nil, "grpc": {connect.WithGRPC()}, "grpcweb": {connect.WithGRPCWeb()},
}

// start serves behind a guard, over HTTP/2 without TLS, or with TLS if that is not nil.
func start(t testing.TB, c connectmw.Config) (url string, client *http.Client) {
	t.Helper()
	guard := must(connectmw.New(c))
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary, do, connect.WithInterceptors(guard)))
	mux.Handle(bidi, connect.NewBidiStreamHandler(bidi, echo, connect.WithInterceptors(guard)))
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server := httptest.NewUnstartedServer(connectmw.Requests(mux))
	server.Config.Protocols = both
	server.Start()
	t.Cleanup(server.Close)
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	return server.URL, &http.Client{Transport: &http.Transport{Protocols: h2}}
}

func call(ctx context.Context, url string, client *http.Client, what string, fields []string, opts ...connect.ClientOption) (*connect.Response[text], error) {
	r := connect.NewRequest(wrapperspb.String(what))
	for i := 1; i < len(fields); i += 2 {
		r.Header().Set(fields[i-1], fields[i])
	}
	return connect.NewClient[text, text](client, url+unary, opts...).CallUnary(ctx, r)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func limiter(t testing.TB, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	return core.NewLimiter(new(core.MemoryStore), name, policies...)
}

// details returns what an error says to the client, in short.
func details(err error) (s string) {
	var e *connect.Error
	if !errors.As(err, &e) {
		return fmt.Sprint(err)
	}
	s = fmt.Sprintf("%v %s", e.Code(), e.Message())
	for _, d := range e.Details() {
		switch m, _ := d.Value(); m := m.(type) {
		case *errdetails.QuotaFailure:
			for _, v := range m.GetViolations() {
				s += " " + v.GetSubject() + "=" + v.GetDescription()
			}
		case *errdetails.RetryInfo:
			s += " retry " + m.GetRetryDelay().AsDuration().Round(time.Hour).String()
		}
	}
	return s
}

// Refusals say the same in each protocol, for calls and streams.
func TestRefusals(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			url, client := start(t, connectmw.Config{Rates: []nethttp.Rate{
				{Key: connectmw.Metadata("X-User"), Limiter: limiter(t, "api", core.FixedWindow(2, 24*time.Hour).FromFirst())},
			}})
			anna := []string{"X-User", "anna"}
			for range 2 {
				response, err := call(t.Context(), url, client, "hello", anna, opts...)
				if err != nil || !strings.HasPrefix(response.Header().Get("Ratelimit"), `"api";r=`) {
					t.Fatal(response, err)
				}
			}
			const want = `resource_exhausted quota exceeded: "api" api=2 in 24h0m0s retry 24h0m0s`
			check := func(err error) {
				t.Helper()
				var e *connect.Error
				if details(err) != want || !errors.As(err, &e) {
					t.Fatalf("%s\nwant %s", details(err), want)
				}
				for name, want := range map[string]string{
					"Ratelimit": `"api";r=0;t=86400`, "Ratelimit-Policy": `"api";q=2;w=86400`, "Retry-After": "86400", "Grpc-Retry-Pushback-Ms": "863",
				} {
					if got := e.Meta().Get(name); !strings.HasPrefix(got, want) && (name[0] != 'G' || !strings.HasPrefix(got, "864")) {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				if strings.Contains(fmt.Sprint(err, e.Meta()), "anna") {
					t.Errorf("the key is in %v, %v", err, e.Meta())
				}
			}
			_, err := call(t.Context(), url, client, "hello", anna, opts...)
			check(err)
			stream := connect.NewClient[text, text](client, url+bidi, opts...).CallBidiStream(t.Context())
			stream.RequestHeader().Set("X-User", "anna")
			_ = stream.Send(wrapperspb.String("hello"))
			_, err = stream.Receive()
			check(err)
			if _, err = call(t.Context(), url, client, "hello", nil, opts...); details(err) != "invalid_argument the call does not say who makes it" {
				t.Error(details(err))
			}
		})
	}
}

// Clients without connect see status 429, and when to come back.
func TestPlainHTTP(t *testing.T) {
	url, _ := start(t, connectmw.Config{Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "closed", core.FixedWindow(1, 24*time.Hour).FromFirst())}}})
	for _, want := range []int{200, 429} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+unary, strings.NewReader(`"hello"`))
		r.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if after := response.Header.Get("Retry-After"); response.StatusCode != want || want == 429 && after != "86400" {
			t.Errorf("%d, Retry-After %q; want %d", response.StatusCode, after, want)
		}
	}
}

// Each key finds who makes a call, and believes nobody who is not trusted.
func TestKeys(t *testing.T) {
	forged := []string{"X-Forwarded-For", "198.51.100.7"}
	for name, test := range map[string]struct {
		key    keyfuncs.Func
		fields []string
		want   string
	}{
		"peer":                 {keyfuncs.RemoteAddr(), forged, "127.0.0.1"},
		"behind a proxy":       {keyfuncs.BehindProxies(1), forged, "198.51.100.7"},
		"from another network": {keyfuncs.XForwardedFor("10.0.0.0/8"), forged, "127.0.0.1"},
		"metadata":             {connectmw.Metadata("X-Own"), []string{"X-Own", "ben"}, "ben"},
		"method":               {connectmw.Method(), nil, unary},
		"no certificate":       {connectmw.TLSSubject(), nil, ""},
		"all":                  {keyfuncs.All(keyfuncs.RemoteAddr(), connectmw.Metadata("X-Own")), []string{"X-Own", "ben"}, "9:127.0.0.1,3:ben,"},
		"first":                {keyfuncs.First(keyfuncs.Tag("tls", connectmw.TLSSubject()), keyfuncs.Tag("ip", keyfuncs.RemoteAddr())), nil, "ip:127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			var failed error
			url, client := start(t, connectmw.Config{Rates: []nethttp.Rate{{
				Limiter: limiter(t, "api", core.Unlimited()),
				Key: func(r *http.Request) (string, error) {
					got, failed = test.key(r)
					return got, failed
				},
			}}})
			_, err := call(t.Context(), url, client, "hello", test.fields)
			if got != test.want || (test.want == "") != (err != nil) || test.want == "" && !errors.Is(failed, keyfuncs.ErrAbsent) {
				t.Errorf("%q, %v, %v, want %q", got, failed, err, test.want)
			}
		})
	}
}

// Without Requests, a guard knows nothing of the connection, so it believes no proxy.
func TestWithoutRequests(t *testing.T) {
	guard := must(connectmw.New(connectmw.Config{Rates: []nethttp.Rate{
		{Key: keyfuncs.BehindProxies(1), Limiter: limiter(t, "api", core.Unlimited())},
	}}))
	server := httptest.NewServer(connect.NewUnaryHandler(unary, do, connect.WithInterceptors(guard)))
	defer server.Close()
	_, err := call(t.Context(), server.URL, server.Client(), "hello", []string{"X-Forwarded-For", "198.51.100.7"})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Error(err)
	}
}

// Cost may look at the message, and Settle at the response and the code.
func TestSettle(t *testing.T) {
	tokens := limiter(t, "tokens", core.FixedWindow(1000, time.Hour))
	var mu sync.Mutex
	var got string
	url, client := start(t, connectmw.Config{Rates: []nethttp.Rate{{
		Key: connectmw.Metadata("X-User"), Limiter: tokens,
		Cost: func(r *http.Request) int64 {
			m, _ := connectmw.Message(r).(*text)
			return int64(len(m.GetValue()))
		},
		Settle: func(r *http.Request, o nethttp.Outcome) int64 {
			m, _ := connectmw.Response(r).(*text)
			mu.Lock()
			defer mu.Unlock()
			got = fmt.Sprintf("%d %d %d %s", o.Status, connectmw.Code(r), o.Cost, m.GetValue())
			return nethttp.FailuresOnly(r, o)
		},
	}}})
	left := int64(1000)
	for what, want := range map[string]string{"hello": "200 0 5 hello", "fail": "404 5 4 ", "panic": "500 13 5 "} {
		_, err := call(t.Context(), url, client, what, []string{"X-User", "anna"})
		if err != nil {
			left -= int64(len(what))
		}
		d, failed := tokens.Peek(t.Context(), "anna")
		if mu.Lock(); got != want || failed != nil || d.Remaining != left {
			t.Errorf("%q: %q, %d left; want %q, %d", what, got, d.Remaining, want, left)
		}
		mu.Unlock()
	}
}

// A refusal by slots does not show a unit that was given back, and an admitted one of a rule with Settle has no t
// beside r=0.
func TestFields(t *testing.T) {
	store := new(core.MemoryStore)
	slots, user := core.NewSlots(store, "slots", 1), connectmw.Metadata("X-User")
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			url, client := start(t, connectmw.Config{
				Rates:       []nethttp.Rate{{Key: user, Limiter: core.NewLimiter(store, "logins", core.FixedWindow(1, time.Hour)), Settle: nethttp.FailuresOnly}},
				Concurrency: []nethttp.Concurrency{{Key: user, Slots: slots}},
			})
			slot := must(slots.Acquire(t.Context(), name))
			_, err := call(t.Context(), url, client, "hello", []string{"X-User", name}, opts...)
			var e *connect.Error
			if !errors.As(err, &e) || e.Meta().Get("Ratelimit") != `"slots";r=0` {
				t.Errorf("%v %v", err, e)
			}
			slot.Release()
			response, err := call(t.Context(), url, client, "hello", []string{"X-User", name}, opts...)
			if err != nil || response.Header().Get("Ratelimit") != `"logins";r=0, "slots";r=0` {
				t.Errorf("%v %v", err, response)
			}
		})
	}
}

// Slots are held as long as streams are open, and messages are charged one by one.
func TestStreams(t *testing.T) {
	slots := core.NewSlots(new(core.MemoryStore), "streams", 1)
	user := connectmw.Metadata("X-User")
	url, client := start(t, connectmw.Config{
		Concurrency: []nethttp.Concurrency{{Key: user, Slots: slots}},
		Messages:    []nethttp.Rate{{Key: user, Limiter: limiter(t, "messages", core.SlidingLog(3, time.Hour))}},
	})
	open := func(user string) *connect.BidiStreamForClient[text, text] {
		s := connect.NewClient[text, text](client, url+bidi, connect.WithGRPC()).CallBidiStream(t.Context())
		s.RequestHeader().Set("X-User", user)
		return s
	}
	ask := func(s *connect.BidiStreamForClient[text, text], what string) error {
		_ = s.Send(wrapperspb.String(what))
		_, err := s.Receive()
		return err
	}
	first := open("anna")
	for i := range 4 {
		err := ask(first, "hello")
		if i < 3 && err != nil || i == 3 && details(err) != `resource_exhausted quota exceeded: "messages" messages=3 in 1h0m0s retry 1h0m0s` {
			t.Errorf("%d: %s", i, details(err))
		}
		if i == 0 {
			if err := ask(open("anna"), "hello"); !strings.HasPrefix(details(err), `resource_exhausted quota exceeded: "streams" streams=1 at once`) {
				t.Error(details(err))
			}
		}
	}
	for _, end := range []func(*connect.BidiStreamForClient[text, text]){
		func(s *connect.BidiStreamForClient[text, text]) { _ = s.CloseRequest() },
		func(s *connect.BidiStreamForClient[text, text]) { _ = s.CloseResponse() },
		func(s *connect.BidiStreamForClient[text, text]) { _ = ask(s, "panic") },
	} {
		s := open("ben")
		if err := ask(s, "hello"); err != nil && !strings.Contains(err.Error(), "messages") {
			t.Fatal(err)
		}
		end(s)
		waiting, err := slots.Wait(t.Context(), "ben", 1) // until it is free
		if err != nil {
			t.Fatal(err)
		}
		waiting.Release()
	}
}

// A Client waits as it is told, in each protocol.
func TestClient(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			refused := 0
			var mu sync.Mutex
			url, client := start(t, connectmw.Config{
				Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "api", core.FixedWindow(1, 300*time.Millisecond).FromFirst())}},
				Observe: func(_ *http.Request, v *nethttp.Verdict) {
					mu.Lock()
					defer mu.Unlock()
					if v.Status != 0 {
						refused++
					}
				},
			})
			waits := must(connectmw.NewClient(connectmw.ClientConfig{Limiter: limiter(t, "out", core.Unlimited()), Retries: 1}))
			opts := append(opts[:len(opts):len(opts)], connect.WithInterceptors(waits))
			for range 2 {
				if _, err := call(t.Context(), url, client, "hello", nil, opts...); err != nil {
					t.Fatal(err)
				}
			}
			streams := func(ctx context.Context) error {
				s := connect.NewClient[text, text](client, url+bidi, opts...).CallBidiStream(ctx)
				defer s.CloseRequest()
				_ = s.Send(wrapperspb.String("hello"))
				_, err := s.Receive()
				return err
			}
			if err := streams(t.Context()); connect.CodeOf(err) != connect.CodeResourceExhausted {
				t.Error(err)
			}
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if err := streams(short); connect.CodeOf(err) != connect.CodeDeadlineExceeded || !strings.Contains(err.Error(), "not sent") {
				t.Error(err)
			}
			if mu.Lock(); refused != 2 {
				t.Errorf("refused %d times", refused)
			}
			mu.Unlock()
		})
	}
	if _, err := connectmw.NewClient(connectmw.ClientConfig{}); err == nil {
		t.Error("a client without a limiter")
	}
}

// A handler's error is its own: calls that share it add nothing to it.
func TestErrorsOfHandlers(t *testing.T) {
	url, client := start(t, connectmw.Config{Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "api", core.SlidingLog(100, time.Hour))}}})
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if _, err := call(t.Context(), url, client, "fail", nil); connect.CodeOf(err) != connect.CodeNotFound {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if len(errNothing.Meta()) > 0 {
		t.Errorf("%v", errNothing.Meta())
	}
}

// A stream that is not sent does not reach the server, whatever is done with it, and nothing blocks.
func TestStreamsThatAreNotSent(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			var arrived atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				arrived.Add(1)
				w.WriteHeader(http.StatusNotFound)
			}))
			defer server.Close()
			waits := must(connectmw.NewClient(connectmw.ClientConfig{Limiter: limiter(t, "out", core.SlidingLog(1, time.Hour))}))
			client := connect.NewClient[text, text](server.Client(), server.URL+bidi, append(opts[:len(opts):len(opts)], connect.WithInterceptors(waits))...)
			notSent := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "not sent") {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err := client.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("hello"))) // the only call
			if connect.CodeOf(err) != connect.CodeUnimplemented {
				t.Error(err)
			}
			_, err = client.CallServerStream(t.Context(), connect.NewRequest(wrapperspb.String("hello")))
			notSent("a stream of the server", err)

			up := client.CallClientStream(t.Context())
			notSent("a stream of the client", up.Send(wrapperspb.String("hello")))
			_, err = up.CloseAndReceive()
			notSent("its answer", err)

			both := client.CallBidiStream(t.Context())
			_, err = both.Receive()
			notSent("both", err)
			if err := errors.Join(both.CloseRequest(), both.CloseResponse()); err != nil {
				t.Error(err)
			}
			if n := len(both.ResponseHeader()) + len(both.ResponseTrailer()); n != 0 {
				t.Errorf("%d fields of no response", n)
			}
			if n := arrived.Load(); n != 1 {
				t.Errorf("%d arrived", n)
			}
		})
	}
}
