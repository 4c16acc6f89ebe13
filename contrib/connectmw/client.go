package connectmw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
)

// ClientConfig configures a [Client]. Its fields must be named.
type ClientConfig struct {
	_ struct{}

	// Limiter is the limit on calls that are sent. It is required. Processes that share its store share the limit, and
	// what servers have answered. With Unlimited, only that counts.
	Limiter *core.Limiter

	// Key returns whose limit it is that a call counts for. Nil means the host of the server. It is called
	// concurrently.
	Key func(ctx context.Context, spec connect.Spec, peer connect.Peer) (string, error)

	// MaxWait is how long a call waits at most before it is sent, with its repetitions. 0 means a minute.
	MaxWait time.Duration

	// MaxBlock is for how long a server can keep calls from being sent. 0 means an hour; it is at most 365 days.
	MaxBlock time.Duration

	// Retries is how often a call is repeated which was refused. Only unary calls are, and only if the refusal says
	// when.
	Retries int
}

// A Client is a [connect.Interceptor] that makes calls wait for the limits of servers, as grpcmw.Client
// does, in all protocols of connect. It does nothing in handlers. It is safe for concurrent use.
type Client struct {
	client *rpc.Client
	key    func(ctx context.Context, spec connect.Spec, peer connect.Peer) (string, error)
}

var _ connect.Interceptor = (*Client)(nil)

// NewClient returns a Client. It is an error if there is no Limiter or it is of a document, or if a number is negative.
func NewClient(config ClientConfig) (*Client, error) {
	client, err := rpc.NewClient(config.Limiter, config.MaxWait, config.MaxBlock, config.Retries)
	if err != nil {
		return nil, fmt.Errorf("connectmw: a client: %w", err)
	}
	if config.Key == nil {
		config.Key = func(_ context.Context, _ connect.Spec, peer connect.Peer) (string, error) {
			return peer.Addr, nil
		}
	}
	return &Client{client, config.Key}, nil
}

// WrapUnary implements [connect.Interceptor].
func (c *Client) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (response connect.AnyResponse, err error) {
		if !r.Spec().IsClient {
			return next(ctx, r)
		}
		key, err := c.key(ctx, r.Spec(), r.Peer())
		if err != nil {
			return nil, keyError(err)
		}
		err = c.client.Do(ctx, key, func() (time.Duration, error) {
			var failed error
			response, failed = next(ctx, r)
			return waitOf(failed), failed
		})
		return response, sent(err)
	}
}

// WrapStreamingClient implements [connect.Interceptor]. A stream whose call is not sent fails at its
// first use, and its ends do nothing.
func (c *Client) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec) // which sends nothing yet
		stream := &clientStream{StreamingClientConn: conn, ctx: ctx, client: c.client}
		key, err := c.key(ctx, spec, conn.Peer())
		if err != nil {
			stream.failed = keyError(err)
		} else {
			stream.key = key
			stream.failed = sent(c.client.Wait(ctx, key))
		}
		return stream
	}
}

// WrapStreamingHandler implements [connect.Interceptor]. It returns next.
func (*Client) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// A clientStream reads how the stream ends.
type clientStream struct {
	connect.StreamingClientConn

	ctx    context.Context
	client *rpc.Client
	key    string
	failed error // the call is not sent
}

// Send implements [connect.StreamingClientConn].
func (s *clientStream) Send(message any) error {
	if s.failed != nil {
		return s.failed
	}
	return s.StreamingClientConn.Send(message)
}

// Receive implements [connect.StreamingClientConn].
func (s *clientStream) Receive(message any) error {
	if s.failed != nil {
		return s.failed
	}
	err := s.StreamingClientConn.Receive(message)
	if err != nil && !errors.Is(err, io.EOF) {
		s.client.Block(s.ctx, s.key, waitOf(err))
	}
	return err
}

// CloseRequest implements [connect.StreamingClientConn]. The connection's own would send the call.
func (s *clientStream) CloseRequest() error {
	if s.failed != nil {
		return nil //nolint:nilerr // there is nothing to close
	}
	return s.StreamingClientConn.CloseRequest()
}

// CloseResponse implements [connect.StreamingClientConn]. The connection's own would wait for a
// response.
func (s *clientStream) CloseResponse() error {
	if s.failed != nil {
		return nil //nolint:nilerr // there is nothing to close
	}
	return s.StreamingClientConn.CloseResponse()
}

// ResponseHeader implements [connect.StreamingClientConn].
func (s *clientStream) ResponseHeader() http.Header {
	if s.failed != nil {
		return make(http.Header)
	}
	return s.StreamingClientConn.ResponseHeader()
}

// ResponseTrailer implements [connect.StreamingClientConn].
func (s *clientStream) ResponseTrailer() http.Header {
	if s.failed != nil {
		return make(http.Header)
	}
	return s.StreamingClientConn.ResponseTrailer()
}

// sent returns the error of a call that was not sent, or err.
func sent(err error) error {
	var notSent *rpc.NotSentError
	if errors.As(err, &notSent) {
		return connect.NewError(connect.Code(notSent.Code), notSent)
	}
	return err
}

func keyError(err error) error {
	return sent(&rpc.NotSentError{Code: rpc.Internal, Err: fmt.Errorf("its key: %w", err)})
}

// waitOf returns how long a server wants to get no more calls.
func waitOf(err error) time.Duration {
	var refusal *connect.Error
	if !errors.As(err, &refusal) {
		return 0
	}
	if refusal.Code() != connect.CodeResourceExhausted && refusal.Code() != connect.CodeUnavailable {
		return 0
	}
	var details []any
	for _, detail := range refusal.Details() {
		value, err := detail.Value()
		if err == nil { // else it is of a type that this program does not have
			details = append(details, value)
		}
	}
	return rpc.WaitOf(details, refusal.Meta().Values(rpc.Pushback))
}
