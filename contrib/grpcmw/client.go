package grpcmw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
)

// ClientConfig configures a [Client]. Literals must name the fields.
type ClientConfig struct {
	// Limiter is the limit on calls that are sent. It is required. If processes share its store,
	// they share the limit, and the answers of the servers. With Unlimited, only the answers of the
	// servers limit. It has at most 7 policies, none of them named "server".
	Limiter *core.Limiter

	// Key returns whose limit it is that a call counts for. Nil means the connection's target. It must be
	// safe for concurrent use.
	Key func(ctx context.Context, method string, conn *grpc.ClientConn) (string, error)

	// MaxWait, MaxBlock and Retries are as in nethttp.TransportConfig. Only unary calls are
	// repeated, and only after a refusal that says when.
	MaxWait  time.Duration
	MaxBlock time.Duration
	Retries  int
}

// A Client makes calls wait for the limits of servers, as nethttp.Transport does with requests.
// Before a call is sent, it waits until the limiter admits it. A refusal with RESOURCE_EXHAUSTED or
// UNAVAILABLE may say when to come back. It does so by google.rpc.RetryInfo, by the trailer
// grpc-retry-pushback-ms, or both. The longer time applies. The limiter's store then blocks the key
// for that time, for all processes that share it.
//
// A call that would have to wait too long is not sent, and fails with DEADLINE_EXCEEDED. It fails
// with CANCELED if its context ends, and with UNAVAILABLE if the store cannot decide. A Client is
// safe for concurrent use.
type Client struct {
	client *rpc.Client
	key    func(ctx context.Context, method string, conn *grpc.ClientConn) (string, error)
}

// NewClient returns a Client, or an error that joins all faults of the configuration.
func NewClient(c ClientConfig) (*Client, error) {
	client, err := rpc.NewClient(c.Limiter, c.MaxWait, c.MaxBlock, c.Retries)
	if err != nil {
		return nil, fmt.Errorf("grpcmw: a client: %w", err)
	}
	if c.Key == nil {
		c.Key = func(_ context.Context, _ string, conn *grpc.ClientConn) (string, error) { return conn.Target(), nil }
	}
	return &Client{client, c.Key}, nil
}

// Unary returns the interceptor of unary calls. Where there are others, it is the outermost.
func (c *Client) Unary() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		key, err := c.key(ctx, method, conn)
		if err != nil {
			return keyError(err)
		}
		return sent(c.client.Do(ctx, key, func() (time.Duration, error) {
			var trailer metadata.MD
			err := invoke(ctx, method, in, out, conn, append(opts[:len(opts):len(opts)], grpc.Trailer(&trailer))...)
			return waitOf(err, trailer), err
		}))
	}
}

// Stream returns the interceptor of streams. Those that are refused are not repeated: others wait.
func (c *Client) Stream() grpc.StreamClientInterceptor {
	return func(
		ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		key, err := c.key(ctx, method, conn)
		if err != nil {
			return nil, keyError(err)
		}
		if err := c.client.Wait(ctx, key); err != nil {
			return nil, sent(err)
		}
		s, err := streamer(ctx, desc, conn, method, opts...)
		if err != nil {
			c.client.Block(ctx, key, waitOf(err, nil))
			return nil, err
		}
		return &clientStream{s, c.client, key}, nil
	}
}

// A clientStream reads how the stream ends.
type clientStream struct {
	grpc.ClientStream

	client *rpc.Client
	key    string
}

// RecvMsg implements [grpc.ClientStream].
func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.client.Block(s.Context(), s.key, waitOf(err, s.Trailer()))
	}
	return err
}

// sent returns the status of a call that was not sent, or err.
func sent(err error) error {
	var not *rpc.NotSentError
	if errors.As(err, &not) {
		return status.Error(codes.Code(not.Code), not.Error())
	}
	return err
}

func keyError(err error) error {
	return sent(&rpc.NotSentError{Code: rpc.Internal, Err: fmt.Errorf("its key: %w", err)})
}

// waitOf returns how long a server wants to get no more calls.
func waitOf(err error, trailer metadata.MD) (wait time.Duration) {
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return 0
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			wait = max(wait, info.GetRetryDelay().AsDuration())
		}
	}
	return max(wait, rpc.PushbackOf(trailer[rpc.Pushback]))
}
