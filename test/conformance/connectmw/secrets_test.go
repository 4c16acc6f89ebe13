package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/contrib/connectmw"
	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/canary"
	"github.com/headgate/headgate/test/conformance/scenes"
)

// No key is in an error, its details and fields, the log, and verdicts.
func TestSecrets(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			scenes.TestSecrets(t, func(t *testing.T, c rpc.Config) scenes.Secretive {
				url, client := start(t, c)
				return func(ctx context.Context, stream bool, fields map[string]string) (rpc.Code, []any) {
					what := fields["do"]
					if !stream {
						response, err := call(ctx, url, client, what, []string{"X-Client", fields["X-Client"]}, opts...)
						if err != nil {
							return codeOf(err), told(err)
						}
						// Not the message: the library writes in its type when it is first used.
						return rpc.OK, []any{response.Header(), response.Trailer(), response.Msg.GetValue()}
					}
					s := connect.NewClient[text, text](client, url+bidi, opts...).CallBidiStream(ctx)
					s.RequestHeader().Set("X-Client", fields["X-Client"])
					for range 2 {
						_ = s.Send(wrapperspb.String(what)) // the error is that of Receive
					}
					_ = s.CloseRequest()
					var err error
					for range 2 {
						if _, err = s.Receive(); err != nil {
							break
						}
					}
					return codeOf(err), append(told(err), s.ResponseHeader(), s.ResponseTrailer())
				}
			})
		})
	}
}

func codeOf(err error) rpc.Code {
	if err == nil {
		return rpc.OK
	}
	return rpc.Code(connect.CodeOf(err))
}

// told returns what an error tells a client.
func told(err error) []any {
	got := []any{err}
	var e *connect.Error
	if errors.As(err, &e) {
		got = append(got, e.Meta())
		for _, d := range e.Details() {
			got = append(got, d.Type(), string(d.Bytes()))
		}
	}
	return got
}

// No key is in the error of a call that a client does not send.
func TestSecretsOfClients(t *testing.T) {
	waits := must(connectmw.NewClient(connectmw.ClientConfig{
		Limiter: limiter(t, "out", core.SlidingLog(1, time.Hour)),
		Key:     func(context.Context, connect.Spec, connect.Peer) (string, error) { return canary.Canary, nil },
	}))
	url, client := start(t, connectmw.Config{Rates: []nethttp.Rate{{Key: keyfuncs.RemoteAddr(), Limiter: limiter(t, "api", core.Unlimited())}}})
	if _, err := call(t.Context(), url, client, "", nil, connect.WithInterceptors(waits)); err != nil {
		t.Fatal(err)
	}
	_, err := call(t.Context(), url, client, "", nil, connect.WithInterceptors(waits))
	stream := connect.NewClient[text, text](client, url+bidi, connect.WithInterceptors(waits)).CallBidiStream(t.Context())
	_, failed := stream.Receive()
	if !strings.Contains(fmt.Sprint(err), "not sent") || !strings.Contains(fmt.Sprint(failed), "not sent") {
		t.Errorf("%v, %v", err, failed)
	}
	for _, v := range append(append(told(err), told(failed)...), waits) {
		if around, found := canary.In(canary.Printed(v)); found {
			t.Error(around)
		}
	}
}
