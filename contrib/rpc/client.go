package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/headgate/headgate/core"
)

// Pushback is the metadata of a response that says when to try again (gRFC A6): in milliseconds, or -1 for never.
const Pushback = "Grpc-Retry-Pushback-Ms"

// longestPushback is as many milliseconds as a Duration holds, with room.
const longestPushback = int64(1) << 42

// WaitOf returns how long a refusal says to wait, by its details and its pushback: the longer of both, or 0.
func WaitOf(details []any, pushback []string) (wait time.Duration) {
	for _, detail := range details {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			wait = max(wait, info.GetRetryDelay().AsDuration())
		}
	}
	for _, text := range pushback {
		millis, err := strconv.ParseInt(text, 10, 64)
		if err == nil && millis > 0 {
			wait = max(wait, time.Duration(min(millis, longestPushback))*time.Millisecond)
		}
	}
	return wait
}

// blocks is the plan of a limiter by which a key is blocked: a bucket that is blocked until it is full again, a unit
// for each millisecond. It has room for two blocks at once. A limiter and its plans are in one store, so all processes
// that share it heed a block.
//
//	a server asks for 1.5 s     AllowN 1500
//	who asks a moment later     Peek: ResetAfter is what is left of the 1.5 s
const blocks = "blocks"

// A Client makes calls wait. It is safe for concurrent use.
type Client struct {
	limiter, blocks   *core.Limiter
	maxWait, maxBlock time.Duration
	retries           int
}

// blockTries is how often Block looks again when others have blocked the key at once.
const blockTries = 8

// longestBlock is the longest MaxBlock that a bucket can count.
const longestBlock = 365 * 24 * time.Hour

// NewClient returns a Client. Its numbers are as in the ClientConfig of packages grpcmw and connectmw. Zeros are a
// minute, an hour and no repetition.
func NewClient(limiter *core.Limiter, maxWait, maxBlock time.Duration, retries int) (client *Client, err error) {
	isNegative := maxWait < 0 || maxBlock < 0 || retries < 0
	if limiter == nil || isNegative {
		return nil, errors.New("headgate: a client needs a Limiter, and its numbers must not be negative")
	}
	if maxWait == 0 {
		maxWait = time.Minute
	}
	if maxBlock == 0 {
		maxBlock = time.Hour
	}
	if maxBlock > longestBlock {
		return nil, fmt.Errorf("headgate: MaxBlock is %v, more than %v", maxBlock, longestBlock)
	}
	defer func() { // the limiter may be of a document, to which no plan can be added
		fault := recover()
		if fault != nil {
			err = fmt.Errorf("headgate: the Limiter cannot have the plan that blocks keys: %v", fault)
		}
	}()
	bucket := core.TokenBucket(1000, time.Second).Burst(2 * maxBlock.Milliseconds()).Named("server")
	return &Client{limiter, limiter.WithPlan(blocks, bucket).Plan(blocks), maxWait, maxBlock, retries}, nil
}

// Do makes a call as soon as it may be sent. The call returns how long the server wants to get no more: 0 if it does
// not say so. If that is not too long, the call is repeated. If the repetition cannot be sent after all, Do returns the
// error of the call. An error of Do itself is a [*NotSentError]: nothing was sent, or the context ended before the
// repetition.
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
		// Also before a repetition: its Wait waits for the block, and the calls of all others with it.
		c.Block(ctx, key, wait)
		end, _ := waiting.Deadline()
		// A repetition that would come too late is not waited for: the caller gets the refusal now, with what the
		// server says.
		if wait <= 0 || repeated == c.retries || time.Until(end) < wait {
			return err
		}
		refusal = err
	}
}

// Wait waits until a call may be sent: nobody has blocked the key, and the limiter admits it. Its error is a
// [*NotSentError].
func (c *Client) Wait(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, c.maxWait)
	defer cancel()
	// The block is asked for again after each pause, as it may have become longer. Only then a unit is charged: before
	// the pause, it might count for an earlier window than that of the call.
	for {
		decision, err := c.blocks.Peek(ctx, key)
		if err == nil && decision.ResetAfter > 0 {
			err = pause(ctx, decision.ResetAfter)
			if err == nil {
				continue
			}
		}
		if err == nil {
			_, err = c.limiter.Wait(ctx, key)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, core.ErrNever):
			return &NotSentError{DeadlineExceeded, errors.New("it would have to wait too long")}
		case errors.Is(err, context.Canceled):
			return &NotSentError{Canceled, err}
		default:
			return &NotSentError{Unavailable, err}
		}
	}
}

// pause waits for a time, or fails at once if the context ends before.
func pause(ctx context.Context, wait time.Duration) error {
	end, ok := ctx.Deadline()
	if ok && time.Until(end) < wait {
		return context.DeadlineExceeded
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Block blocks a key for all processes that share the limiter's store, as a server wants it, unless it is blocked for
// longer. It goes on when the context has ended, so that others learn of the refusal.
func (c *Client) Block(ctx context.Context, key string, wait time.Duration) {
	wait = min(wait, c.maxBlock)
	if wait <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	until := time.Now().Add(wait)
	for range blockTries {
		left := time.Until(until)
		decision, err := c.blocks.Peek(ctx, key)
		missing := left - decision.ResetAfter
		if err != nil || missing <= 0 {
			return
		}
		// Rounded up: a call that comes a part of a millisecond early would be refused once more.
		millis := (missing + time.Millisecond - 1).Milliseconds()
		charge, err := c.blocks.AllowN(ctx, key, millis)
		surplus := (charge.ResetAfter - wait).Milliseconds()
		if err != nil || charge.Allowed && surplus <= 0 {
			return // observers are told of an error
		}
		// Others have blocked the key since the look. They may give that back, so it is looked at again.
		_ = charge.Settle(ctx, max(millis-surplus, 0))
	}
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
