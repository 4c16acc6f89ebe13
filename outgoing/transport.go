// Package outgoing keeps an http.Client within the limits of servers that it calls.
//
//	client := &http.Client{Transport: &outgoing.Transport{
//		Limiter: core.NewLimiter(store, "github", core.SlidingWindow(5000, time.Hour)),
//		Retries: 3,
//		Reads:   []outgoing.Reader{outgoing.GitHub},
//	}}
//
// Processes that share the limiter's store share the limit, and what servers answer.
package outgoing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/keyfuncs"
)

const (
	defaultMaxWait  = time.Minute
	defaultMaxBlock = time.Hour

	// longestBlock is the longest MaxBlock. Nothing that is added to it, or to a time, overflows.
	longestBlock = 365 * 24 * time.Hour

	// withoutTime is how long a key is blocked by a 429 or 420 that does not say how long.
	withoutTime = time.Second

	// statusEnhanceYourCalm is how some services have said 429, since before there was one.
	statusEnhanceYourCalm = 420

	// What is read of a refusal that nobody gets, at most.
	drainBytes = 64 << 10
	drainTime  = time.Second

	// blockTime is how long a store may take to block a key, if it has no bound of its own.
	blockTime = 10 * time.Second

	// settleTime is how long a response may wait for the correction of its charge.
	settleTime = time.Second

	// blockGrain is by how much a block is longer than was asked for.
	blockGrain = time.Millisecond
)

// A Transport is an [http.RoundTripper] for a client of servers that have limits. Before it sends a request, it waits
// until its Limiter admits it. If a server says that it has had enough, the key is blocked in the limiter's store until
// the time that the server says. Its zero value heeds what servers answer. It must not change after its first use, and
// is safe for concurrent use.
//
// A server says so with:
//
//   - status 429 or 420, or another from 400 on with a Retry-After, in seconds or as a date (RFC 9110). A date counts
//     from the Date of the response, so clocks need not agree. Decimals are rounded up. A 429 or 420 that says nothing
//     more blocks for a second.
//   - the field RateLimit of draft-ietf-httpapi-ratelimit-headers-11, with r=0 and a t, in any response. A field that
//     is not a valid structured field is ignored as a whole (RFC 9651), and so is a field longer than 64 KiB.
//   - the fields that the Reads understand.
//
// The longest of several times applies, up to MaxBlock. Up to a tenth of it, and at most a second, is added at random,
// so that clients of other fleets do not all come back at once. If the store cannot block the key, its observers are
// told, and only a repetition of the request itself waits for that time.
//
// A request that would have to wait longer than MaxWait fails at once with [context.DeadlineExceeded]; one that is not
// sent for another reason with the error of its context, its key or the store. If a repetition cannot be sent, the
// caller gets the refusal, with as much of its body as was read: a second and 64 KiB.
type Transport struct {
	// Limiter is the limit on requests that are sent. Nil limits nothing but by what servers answer, in this process.
	// It has at most 7 policies, none of them named "server".
	Limiter *core.Limiter

	// Key is whose limit a request counts for, such as the account that it is sent for. Nil means the server: the
	// origin of the URL, such as https://example.org or http://[2001:db8::1]:8080, without a default port, in lower
	// case. A redirect to another server has another key.
	Key keyfuncs.Func

	// Base sends the requests. Nil means http.DefaultTransport.
	Base http.RoundTripper

	// Retries is how often a request is repeated, at most, that the server refused for now: with status 429, or if the
	// method is idempotent with 420, with another from 400 on and a Retry-After, or with the 403 by which [GitHub]
	// limits. An error that used the last unit is not repeated, nor is a request whose body cannot be read again, for
	// want of GetBody, or one that would come earlier than the server asks, since MaxBlock is shorter.
	Retries int

	// MaxWait is the longest time that a request waits before it is sent, repetitions included. 0 means a minute.
	MaxWait time.Duration

	// MaxBlock is the longest time for which a response can keep back the requests of its key; longer ones are cut to
	// it. 0 means an hour; it is at most 365 days.
	MaxBlock time.Duration

	// Reads understand further fields of responses, such as [GitHub].
	Reads []Reader

	// Settle says how many units of the Limiter a request has used, when its response is there, and the charge is
	// corrected to that, also beyond the limit. A negative number leaves it as it is: a unit, as without Settle. Each
	// repetition is charged and settled; without a response, nothing is corrected. It must not read the body.
	Settle func(*http.Request, *http.Response) int64

	once  sync.Once
	own   *core.Limiter // the Limiter, or one that limits nothing
	mu    sync.Mutex
	gates map[*backend.Policies]*gate // by what applies to a key: a document may give other policies to some
}

// limiter returns the Limiter, or one of this Transport.
func (t *Transport) limiter() *core.Limiter {
	t.once.Do(func() {
		t.own = t.Limiter
		if t.own == nil {
			t.own = core.NewLimiter(new(core.MemoryStore), "outgoing", core.Unlimited())
		}
	})
	return t.own
}

// gate returns the gate of a key.
func (t *Transport) gate(key string) (*gate, error) {
	limiter := t.limiter().Backend()
	policies, err := limiter.Of(key)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.gates[policies]
	if known != nil {
		return known, nil
	}
	made, err := newGate(limiter, policies)
	if err != nil {
		return nil, fmt.Errorf("the Limiter cannot have the policy that blocks keys: %w", err)
	}
	// All are forgotten at once, since what is blocked is in the store: a gate is only how it is asked.
	if len(t.gates) >= maxGates || t.gates == nil {
		t.gates = make(map[*backend.Policies]*gate)
	}
	t.gates[policies] = made
	return made, nil
}

// keepBack lets nobody of a key through for a time, at most MaxBlock, and up to a tenth of it more. It returns that
// time, and whether the store sees to it. It goes on when the caller has gone, so that others learn of the refusal.
func (t *Transport) keepBack(
	ctx context.Context, blocked *gate, key string, asked time.Duration,
) (wait time.Duration, isKept bool) {
	wait = min(asked, withDefault(t.MaxBlock, defaultMaxBlock))
	if wait <= 0 {
		return 0, true
	}
	wait += rand.N(min(wait/10, time.Second) + 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), blockTime)
	defer cancel()
	return wait, blocked.block(ctx, key, (wait + blockGrain).Microseconds())
}

func withDefault(configured, standard time.Duration) time.Duration {
	if configured == 0 {
		return standard
	}
	return configured
}

// check returns the faults of the configuration.
func (t *Transport) check() error {
	if t.MaxWait < 0 || t.MaxBlock < 0 || t.Retries < 0 {
		return backend.Invalid("MaxWait, MaxBlock and Retries of an outgoing.Transport must not be negative")
	}
	if t.MaxBlock > longestBlock {
		return backend.Invalid("MaxBlock is %v, more than %v", t.MaxBlock, longestBlock)
	}
	return nil
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	waiting, cancel := context.WithTimeout(r.Context(), withDefault(t.MaxWait, defaultMaxWait))
	defer cancel()
	key, gate, err := t.begin(r)
	if err != nil {
		return nil, notSent(r, err)
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	var refusal *http.Response // before a repetition
	for repeated := 0; ; repeated++ {
		var charge backend.Decision
		if err := gate.limiter.Wait(waiting, key, 1, &charge); err != nil {
			err = notSent(r, err)
			if refusal != nil && r.Context().Err() == nil {
				return refusal, nil
			}
			return nil, err
		}
		// Without a response nobody knows whether the server has counted the request, so the charge stays.
		response, err := base.RoundTrip(r)
		if err != nil {
			return response, err
		}
		asked, refused := t.read(response)
		wait, isKept := t.keepBack(r.Context(), gate, key, asked)
		t.settle(r, response, &charge) // a unit that comes back is of no use before the block is over
		isCut := wait < asked          // by MaxBlock
		if !refused || repeated == t.Retries || isCut {
			return response, nil
		}
		end, _ := waiting.Deadline()
		if time.Until(end) < wait { // it would not be sent in time
			return response, nil
		}
		again := again(r, response)
		if again == nil {
			return response, nil
		}
		// Nobody reads this body, unless the repetition cannot be sent: then the caller gets the refusal after all.
		refusal = response
		if response.Body != nil { // as http.Client permits
			response.Body = drain(response.Body)
		}
		if !isKept { // else the Wait of the repetition takes as long
			pause(waiting, wait)
		}
		r = again
	}
}

// begin returns the key of a request, and the limiter that applies.
func (t *Transport) begin(r *http.Request) (key string, gate *gate, err error) {
	if err := t.check(); err != nil {
		return "", nil, err
	}
	keyOf := t.Key
	if keyOf == nil {
		keyOf = origin
	}
	key, err = keyOf(r)
	if err != nil {
		return "", nil, fmt.Errorf("its key: %w", err)
	}
	if key == "" { // all servers, or all accounts, would share a limit
		return "", nil, errors.New("its Key returned an empty key without an error")
	}
	gate, err = t.gate(key)
	return key, gate, err
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
	closer := time.AfterFunc(drainTime, func() { _ = body.Close() }) // it ends a Read
	go func() {
		_, d.err = io.CopyN(&d.text, body, drainBytes)
		if d.err == nil {
			d.err = io.ErrUnexpectedEOF // there may be more
		}
		close(d.read)
		if closer.Stop() { // else it has closed the body
			_ = body.Close()
		}
	}()
	return d
}

// Read implements [io.Reader].
func (d *drained) Read(data []byte) (int, error) {
	<-d.read
	if d.text.Len() > 0 {
		return d.text.Read(data)
	}
	return 0, d.err
}

// Close implements [io.Closer].
func (*drained) Close() error { return nil }

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
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
	return fmt.Errorf("headgate: the request was not sent: %w", err)
}

// again returns the request for another try, or nil if it must not be repeated. A 429 means that the request was not
// carried out, so any method may be repeated. Of another status that is not sure.
func again(r *http.Request, response *http.Response) *http.Request {
	if response.StatusCode != http.StatusTooManyRequests && !idempotent(r.Method) {
		return nil
	}
	next := r.Clone(r.Context()) // RoundTrip must not change the request
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

// idempotent reports whether a request that is sent twice has the effect of one (RFC 9110, 9.2.2).
func idempotent(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// settle corrects the charge of a request to the units that it has used.
func (t *Transport) settle(r *http.Request, response *http.Response, charge *backend.Decision) {
	if t.Settle == nil {
		return
	}
	units := t.Settle(r, response)
	if units < 0 || units == 1 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTime)
	defer cancel()
	_, _ = charge.Settle(ctx, units) // the store's observers are told of an error
}

// read returns how long the server wants to get no more requests, 0 if it does not say so, and whether it has refused
// this one for now. A time alone is no refusal: any response may have used the last unit.
func (t *Transport) read(r *http.Response) (wait time.Duration, refused bool) {
	// The times of a response are by the server's clock, which may be wrong: its Date is wrong by as much.
	now, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	if r.StatusCode >= http.StatusBadRequest {
		wait = retryAfter(r.Header, now)
		refused = wait > 0
	}
	wait = max(wait, rateLimit(r.Header))
	for _, read := range t.Reads {
		if read == nil {
			continue
		}
		asked := read(r, now)
		wait = max(wait, asked)
		refused = refused || asked > 0 && r.StatusCode == http.StatusForbidden && isGitHub(read)
	}
	// These two say by themselves that it was too much. Without a time, a client that came back at once would only add
	// to that.
	if r.StatusCode == http.StatusTooManyRequests || r.StatusCode == statusEnhanceYourCalm {
		refused = true
		if wait <= 0 {
			wait = withoutTime
		}
	}
	return wait, refused
}

// isGitHub tells the one Reader for which a 403 may be a limit from those for which it is a permission that is missing.
func isGitHub(read Reader) bool {
	return reflect.ValueOf(read).Pointer() == reflect.ValueOf(GitHub).Pointer()
}
