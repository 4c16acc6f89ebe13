package connectmw_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/core"
)

type text = wrapperspb.StringValue

const (
	unary = "/test.Service/Unary"
	bidi  = "/test.Service/Bidi"
)

var protocols = map[string][]connect.ClientOption{
	"connect": nil, "grpc": {connect.WithGRPC()}, "grpcweb": {connect.WithGRPCWeb()},
}

// answer answers with the message, or panics if it says so.
func answer(m *text) *text {
	if m.GetValue() == "panic" {
		panic(http.ErrAbortHandler)
	}
	return m
}

// echo answers each message, and hides why it ends.
func echo(_ context.Context, s *connect.BidiStream[text, text]) error {
	for {
		m, err := s.Receive()
		if err != nil {
			return nil //nolint:nilerr // as handlers do
		}
		if err := s.Send(answer(m)); err != nil {
			return err
		}
	}
}

// start serves behind a guard, over HTTP/2 without TLS.
func start(t testing.TB, c connectmw.Config) (url string, client *http.Client) {
	t.Helper()
	guard := must(connectmw.New(c))
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary, func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		return connect.NewResponse(answer(r.Msg)), nil
	}, connect.WithInterceptors(guard)))
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
