package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// Pushback is the metadata of a response that says when to try again (gRFC A6).
const Pushback = "grpc-retry-pushback-ms"

// longestPushback is as many milliseconds as a Duration holds, with room.
const longestPushback = int64(1) << 42

// PushbackOf returns what metadata say, or 0.
func PushbackOf(values []string) (wait time.Duration) {
	for _, text := range values {
		if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms > 0 {
			wait = max(wait, time.Duration(min(ms, longestPushback))*time.Millisecond)
		}
	}
	return wait
}

// A Client makes calls wait, as [nethttp.Transport] does with requests.
type Client struct {
	gate    *nethttp.Transport
	maxWait time.Duration
	retries int
}

// NewClient returns a Client, whose numbers are as in [nethttp.TransportConfig].
func NewClient(l *core.Limiter, maxWait, maxBlock time.Duration, retries int) (*Client, error) {
	gate, err := nethttp.NewTransport(nethttp.TransportConfig{Limiter: l, MaxWait: maxWait, MaxBlock: maxBlock, Retries: retries})
	if err != nil {
		return nil, err
	}
	if maxWait == 0 {
		maxWait = time.Minute
	}
	return &Client{gate, maxWait, retries}, nil
}

// Do makes a call as soon as it may be sent. The call returns how long the server wants to get no more:
// 0 if it does not say so. If that is not too long, the call is repeated. If the repetition cannot be
// sent after all, Do returns the error of the call. An error of Do itself is a [*NotSentError]: nothing was
// sent, or the context ended before the repetition.
func (c *Client) Do(ctx context.Context, key string, call func() (wait time.Duration, err error)) error {
	waiting, cancel := context.WithTimeout(ctx, c.maxWait)
	defer cancel()
	var refusal error // before a repetition
	for repeated := 0; ; repeated++ {
		if err := c.Wait(waiting, key); err != nil {
			if repeated > 0 && ctx.Err() == nil {
				return refusal
			}
			return err
		}
		wait, err := call()
		wait, kept := c.gate.Block(ctx, key, wait)
		if end, _ := waiting.Deadline(); wait <= 0 || repeated == c.retries || time.Until(end) < wait {
			return err
		}
		if refusal = err; !kept {
			pause(waiting, wait)
		}
	}
}

// Wait waits until a call may be sent. Its error is a [*NotSentError].
func (c *Client) Wait(ctx context.Context, key string) error {
	switch err := c.gate.Wait(ctx, key); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return &NotSentError{DeadlineExceeded, errors.New("it would have to wait too long")}
	case errors.Is(err, context.Canceled):
		return &NotSentError{Canceled, err}
	default:
		return &NotSentError{Unavailable, err}
	}
}

// Block blocks a key, as a server wants it.
func (c *Client) Block(ctx context.Context, key string, wait time.Duration) {
	c.gate.Block(ctx, key, wait)
}

// NotSentError is the error of a call that was not sent.
type NotSentError struct {
	Code Code
	Err  error
}

// Error returns the reason.
func (e *NotSentError) Error() string {
	return fmt.Sprintf("headgate: the call was not sent: %v", e.Err)
}

// Unwrap returns Err.
func (e *NotSentError) Unwrap() error { return e.Err }

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// ResponseFields returns the metadata of a refusal: its fields, and when to try again.
func (f *Refusal) ResponseFields() http.Header {
	h := f.Fields.Clone()
	if ms, ok := f.Pushback(); ok {
		h.Set(Pushback, strconv.FormatInt(ms, 10))
	}
	return h
}
