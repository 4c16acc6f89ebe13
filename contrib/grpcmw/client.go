package grpcmw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
)

// ClientConfig configures a [Client]. Its fields must be named.
type ClientConfig struct {
	_ struct{}

	// Limiter is the limit on calls that are sent. It is required. Processes that share its store share the limit, and
	// what servers have answered. With Unlimited, only that counts.
	Limiter *core.Limiter

	// Key returns whose limit it is that a call counts for. Nil means the connection's target. It is called
	// concurrently.
	Key func(ctx context.Context, method string, conn *grpc.ClientConn) (string, error)

	// MaxWait is how long a call waits at most before it is sent, with its repetitions. 0 means a minute.
	MaxWait time.Duration

	// MaxBlock is for how long a server can keep calls from being sent. 0 means an hour; it is at most 365 days.
	MaxBlock time.Duration

	// Retries is how often a call is repeated which was refused. Only unary calls are, and only if the refusal says
	// when.
	Retries int
}

// A Client makes calls wait for the limits of servers, as package outgoing does with requests. Before a call is sent,
// it waits until the limiter admits it. A refusal with RESOURCE_EXHAUSTED or UNAVAILABLE may say when to come back, by
// google.rpc.RetryInfo, by the trailer grpc-retry-pushback-ms, or both; the longer time applies. Then no process that
// shares the limiter's store sends a call of that key for so long.
//
// A call that would have to wait too long is not sent, and fails with DEADLINE_EXCEEDED. It fails
// with CANCELED if its context ends, and with UNAVAILABLE if the store cannot decide. A Client is
// safe for concurrent use.
type Client struct {
	client *rpc.Client
	key    func(ctx context.Context, method string, conn *grpc.ClientConn) (string, error)
}

// NewClient returns a Client. It is an error if there is no Limiter or it is of a document, or if a number is negative.
func NewClient(config ClientConfig) (*Client, error) {
	client, err := rpc.NewClient(config.Limiter, config.MaxWait, config.MaxBlock, config.Retries)
	if err != nil {
		return nil, fmt.Errorf("grpcmw: a client: %w", err)
	}
	if config.Key == nil {
		config.Key = func(_ context.Context, _ string, conn *grpc.ClientConn) (string, error) {
			return conn.Target(), nil
		}
	}
	return &Client{client, config.Key}, nil
}

// Unary returns the interceptor of unary calls. Where there are others, it is the outermost.
func (c *Client) Unary() grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, in, out any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		key, err := c.key(ctx, method, conn)
		if err != nil {
			return keyError(err)
		}
		return sent(c.client.Do(ctx, key, func() (time.Duration, error) {
			var trailer metadata.MD
			withTrailer := append(opts[:len(opts):len(opts)], grpc.Trailer(&trailer)) // a copy, as Do may repeat this
			err := invoke(ctx, method, in, out, conn, withTrailer...)
			return waitOf(err, trailer), err
		}))
	}
}

// Stream returns the interceptor of streams. Those that are refused are not repeated: others wait.
func (c *Client) Stream() grpc.StreamClientInterceptor {
	return func(
		ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		streamer grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		key, err := c.key(ctx, method, conn)
		if err != nil {
			return nil, keyError(err)
		}
		if err := c.client.Wait(ctx, key); err != nil {
			return nil, sent(err)
		}
		stream, err := streamer(ctx, desc, conn, method, opts...)
		if err != nil {
			c.client.Block(ctx, key, waitOf(err, nil))
			return nil, err
		}
		return &clientStream{stream, c.client, key}, nil
	}
}

// A clientStream reads how the stream ends.
type clientStream struct {
	grpc.ClientStream

	client *rpc.Client
	key    string
}

// RecvMsg implements [grpc.ClientStream].
func (s *clientStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err != nil && !errors.Is(err, io.EOF) {
		s.client.Block(s.Context(), s.key, waitOf(err, s.Trailer()))
	}
	return err
}

// sent returns the status of a call that was not sent, or err.
func sent(err error) error {
	var notSent *rpc.NotSentError
	if errors.As(err, &notSent) {
		return status.Error(codes.Code(notSent.Code), notSent.Error())
	}
	return err
}

func keyError(err error) error {
	return sent(&rpc.NotSentError{Code: rpc.Internal, Err: fmt.Errorf("its key: %w", err)})
}

// waitOf returns how long a server wants to get no more calls.
func waitOf(err error, trailer metadata.MD) time.Duration {
	refusal := status.Convert(err)
	if refusal.Code() != codes.ResourceExhausted && refusal.Code() != codes.Unavailable {
		return 0
	}
	return rpc.WaitOf(refusal.Details(), trailer[strings.ToLower(rpc.Pushback)])
}
