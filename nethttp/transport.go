package nethttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
)

const (
	defaultMaxWait  = time.Minute
	defaultMaxBlock = time.Hour

	// longestBlock is the longest MaxBlock. Nothing that is added to it, or to a time, overflows.
	longestBlock = 365 * 24 * time.Hour

	// withoutTime is how long a key is blocked by a 429 that does not say how long.
	withoutTime = time.Second

	// What is read of a refusal that nobody gets, at most.
	drainBytes = 64 << 10
	drainTime  = time.Second

	// blockPolicy is the policy that a Transport adds to those of its limiter.
	blockPolicy = "server"

	// blockTime is how long a store may take to block a key, if it has no bound of its own.
	blockTime = 10 * time.Second

	// blockGrain is by how much a block is longer than was asked for, and the time in which
	// its end is reached: in it, any number of requests below blockTogether may go.
	blockGrain    = time.Millisecond
	blockTogether = int64(blockGrain / time.Microsecond)
)

// TransportConfig configures a [Transport]. Literals must name the fields. The functions in
// it must be safe for concurrent use.
type TransportConfig struct {
	_ struct{}

	// Limiter is the limit on requests that are sent. It is required. If processes share its store,
	// they share the limit, and the answers of the servers. With Unlimited, only the answers of the
	// servers limit. It has at most 7 policies, none of them named "server".
	Limiter *core.Limiter

	// Key returns whose limit a request counts for, such as the account that it is sent for. Nil
	// means the server: the origin of the URL, such as https://example.org or
	// http://[2001:db8::1]:8080. The origin has no default port, ASCII letters in lower case, IP
	// addresses in one form, and no dot at the end. A name that is not ASCII has another key than
	// its form in ASCII. A redirect to another server has another key. Hash secrets, as
	// keyfuncs.Hashed does.
	Key func(*http.Request) (string, error)

	// Base sends the requests. Nil means http.DefaultTransport.
	Base http.RoundTripper

	// MaxWait is the longest time that a request waits before it is sent, repetitions
	// included. 0 means a minute. The context of the request may be shorter.
	MaxWait time.Duration

	// MaxBlock is the longest time for which a response can keep back all requests of its key.
	// Longer times are cut to it. 0 means an hour. It is at most 365 days.
	MaxBlock time.Duration

	// Retries is how often a request is repeated, at most, that the server refused for now. Such a
	// refusal has status 429, or 503 with a Retry-After if the method is idempotent. A request
	// whose body cannot be read again, for want of GetBody, is not repeated. Nor is a request that
	// would have to wait too long. Then the caller gets the refusal. 0 means never.
	Retries int

	// Reads understand further fields of responses, besides Retry-After and RateLimit, such as
	// [GitHub]. See [Reader].
	Reads []Reader
}

// A Transport is an [http.RoundTripper] for a client of servers that have limits. Before it sends a
// request, it waits until its limiter admits it. If a server says that it has had enough, the key
// is blocked in the limiter's store until the time that the server says. So all processes that
// share the store learn of one refusal.
//
// A server says so with:
//
//   - status 429, or 503 with a Retry-After, in seconds or as a date (RFC 9110). A date counts from
//     the Date of the response, so clocks need not agree. A 429 that says nothing more blocks for a
//     second.
//   - the field RateLimit of draft-ietf-httpapi-ratelimit-headers-11, with r=0 and a t, in any
//     response. A field that is not a valid structured field is ignored as a whole (RFC 9651), and
//     so is a field longer than 64 KiB.
//   - the fields that the Reads of the configuration understand.
//
// The longest of several times applies, up to MaxBlock. Up to a tenth of it, and at most a second,
// is added at random. So clients of other fleets do not all come back at once. If the store cannot
// block the key, its [core.Observer] is told, and only a repetition of the request itself waits for
// that time.
//
// Before a request is repeated, the body of the refusal is read for at most a second and 64 KiB,
// and closed. So its connection can be used again. The repetition waits meanwhile. If it cannot be
// sent after all, the caller gets the refusal, with as much of its body as was read.
//
// Requests that wait are served as [core.Limiter.Wait] says. A request that is not sent fails with
// the error of its context or of the store. If its context ends before it is repeated, it fails too.
// If it would have to wait for too long, the error wraps [context.DeadlineExceeded]. A Transport is
// safe for concurrent use.
type Transport struct {
	config TransportConfig
	gate   *core.Limiter // the limiter, and whether the key is blocked
}

// NewTransport returns a Transport, or an error that joins all faults of the configuration.
func NewTransport(c TransportConfig) (*Transport, error) {
	var faults []error
	add := func(format string, values ...any) { faults = append(faults, fmt.Errorf("nethttp: "+format, values...)) }
	if c.MaxWait < 0 || c.MaxBlock < 0 || c.Retries < 0 {
		add("MaxWait, MaxBlock and Retries must not be negative: 0 means the default")
	}
	if c.MaxBlock > longestBlock {
		add("MaxBlock is %v, more than %v", c.MaxBlock, longestBlock)
	}
	for i, read := range c.Reads {
		if read == nil {
			add("Reads[%d] is nil", i)
		}
	}
	if c.MaxWait == 0 {
		c.MaxWait = defaultMaxWait
	}
	if c.MaxBlock == 0 {
		c.MaxBlock = defaultMaxBlock
	}
	if c.Key == nil {
		c.Key = origin
	}
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	t := &Transport{config: c}
	if c.Limiter == nil {
		add("a Transport needs a Limiter: core.Unlimited limits nothing but by what servers say")
	} else {
		var err error
		if t.gate, err = gate(c.Limiter); err != nil {
			add("the Limiter cannot have the policy that blocks keys: %w", err)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return t, nil
}

// gate returns the limiter with one policy more: a bucket that is never nearly empty, unless
// the key is blocked.
func gate(l *core.Limiter) (*core.Limiter, error) {
	policies := []core.Policy{blocked(blockTogether)}
	if own := l.Policies(); own[0].Limit() != core.NoLimit { // Unlimited must be alone
		policies = append(own, policies...)
	}
	return l.With(policies...)
}

// blocked is a bucket with one unit for each microsecond. To block a key for a time is to
// charge as much of a bucket of this size as is left: so of several times the longest applies.
func blocked(units int64) core.Policy {
	return core.TokenBucket(core.Rate{Events: 1, Per: time.Microsecond}, units).Named(blockPolicy)
}

// block lets nobody through for a time, and reports whether the store sees to that. If not, its
// Observer is told. It goes on when the caller has gone, so that others learn of the refusal.
func (t *Transport) block(ctx context.Context, key string, d time.Duration) (kept bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), blockTime)
	defer cancel()
	units := (d + blockGrain).Microseconds()
	l, err := t.gate.With(blocked(units))
	if err != nil {
		if o := t.gate.Store().Observer(); o != nil && o.Decided != nil {
			o.Decided(ctx, core.DecisionEvent{Limiter: t.gate.Name(), Units: units, Err: err})
		}
		return false
	}
	decision, _, err := l.AllowAtMost(ctx, key, units)
	return err == nil && decision.Source != core.SourceOpen
}

// Reset forgets a key's sent requests and the answers of the servers about it, in all processes.
func (t *Transport) Reset(ctx context.Context, key string) error { return t.gate.Reset(ctx, key) }

// Wait waits until the limiter admits a request of the key, and nobody has blocked the key. It
// waits at most MaxWait, and only as long as the context lasts. With Block it makes a Transport of
// use to clients of other protocols. The errors are the same as for a request that is not sent.
func (t *Transport) Wait(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, t.config.MaxWait)
	defer cancel()
	_, err := t.gate.Wait(ctx, key)
	return err
}

// Block blocks a key for all processes, as a server wants it. The time is d, at most MaxBlock, and
// up to a tenth of it more, as the Transport does. Block returns that time, and whether the store
// has blocked the key. It goes on when the context has ended, so that others learn of the refusal.
func (t *Transport) Block(ctx context.Context, key string, d time.Duration) (wait time.Duration, kept bool) {
	wait = min(d, t.config.MaxBlock)
	if wait <= 0 {
		return 0, true
	}
	wait += rand.N(min(wait/10, time.Second) + 1)
	return wait, t.block(ctx, key, wait)
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	waiting, cancel := context.WithTimeout(r.Context(), t.config.MaxWait)
	defer cancel()
	key, err := t.config.Key(r)
	if err != nil {
		return nil, notSent(r, fmt.Errorf("its key: %w", err))
	}
	var refusal *http.Response // before a repetition
	for repeated := 0; ; repeated++ {
		if err := t.Wait(waiting, key); err != nil {
			err = notSent(r, err)
			if refusal != nil && r.Context().Err() == nil {
				return refusal, nil
			}
			return nil, err
		}
		response, err := t.config.Base.RoundTrip(r)
		if err != nil {
			return response, err
		}
		wait, kept := t.Block(r.Context(), key, t.read(response))
		if wait <= 0 {
			return response, nil
		}
		if end, _ := waiting.Deadline(); repeated == t.config.Retries || time.Until(end) < wait {
			return response, nil
		}
		again := again(r, response)
		if again == nil {
			return response, nil
		}
		if refusal = response; response.Body != nil { // as http.Client permits
			response.Body = drain(response.Body)
		}
		if !kept {
			pause(waiting, wait)
		}
		r = again
	}
}

// A drained is a body that was read ahead.
type drained struct {
	text bytes.Buffer
	err  error         // what follows the text
	read chan struct{} // closed when that is known
}

// drain reads a body, so that its connection can be used again, and closes it: all in the background,
// and not for long, since it may be silent, and Close may block.
func drain(body io.ReadCloser) *drained {
	d := &drained{read: make(chan struct{})}
	late := time.AfterFunc(drainTime, func() { _ = body.Close() }) // it ends a Read
	go func() {
		if _, d.err = io.CopyN(&d.text, body, drainBytes); d.err == nil {
			d.err = io.ErrUnexpectedEOF // there may be more
		}
		close(d.read)
		if late.Stop() {
			_ = body.Close()
		}
	}()
	return d
}

// Read implements [io.Reader].
func (d *drained) Read(p []byte) (int, error) {
	<-d.read
	if d.text.Len() > 0 {
		return d.text.Read(p)
	}
	return 0, d.err
}

// Close implements [io.Closer].
func (*drained) Close() error { return nil }

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// notSent closes the body, as RoundTrip has to, and returns the error.
func notSent(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return fmt.Errorf("nethttp: the request was not sent: %w", err)
}

// again returns the request for another try, or nil if it must not be repeated.
func again(r *http.Request, response *http.Response) *http.Request {
	switch response.StatusCode {
	case http.StatusTooManyRequests:
	case http.StatusServiceUnavailable:
		if !idempotent(r.Method) {
			return nil
		}
	default:
		return nil
	}
	next := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return next
	}
	if r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	next.Body = body
	return next
}

func idempotent(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// read returns how long the server wants to get no more requests; 0 if it does not say so.
func (t *Transport) read(r *http.Response) time.Duration {
	now, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	refused := r.StatusCode == http.StatusTooManyRequests
	wait := rateLimit(r.Header)
	if refused || r.StatusCode == http.StatusServiceUnavailable {
		wait = max(wait, retryAfter(r.Header, now))
	}
	for _, read := range t.config.Reads {
		wait = max(wait, read(r, now))
	}
	if wait <= 0 && refused {
		return withoutTime
	}
	return wait
}
