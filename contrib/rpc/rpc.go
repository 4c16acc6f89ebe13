// Package rpc is what packages grpcmw and connectmw share. A remote call is a request of package
// nethttp: its metadata are the header, and its procedure is the path. So guards, rules and keys of
// HTTP decide about calls, and this package translates what they answer.
package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// Config configures a [Guard]. Packages grpcmw and connectmw have the same, and explain it.
type Config struct {
	Rules       []nethttp.Rule
	Messages    []nethttp.Rule
	Wait        time.Duration
	Skip        func(*http.Request) bool
	NoFields    bool
	Observe     func(*http.Request, nethttp.Verdict)
	Logger      *slog.Logger
	ObserveOnly bool
	OnSettled   func(r *http.Request, uncovered int64, err error)
}

// A Guard decides about calls. It is safe for concurrent use.
type Guard struct {
	skip     func(*http.Request) bool
	calls    *limited // nil: calls have no limit
	messages *limited // nil: messages have none
}

// limited is a guard of calls or of messages.
type limited struct {
	*nethttp.Guard

	hidden []string // names of limiters of the service, which no refusal shows
}

// newLimited returns a guard that decides about calls.
func newLimited(c nethttp.Config) (*limited, error) {
	g, err := nethttp.New(c)
	if err != nil {
		return nil, err
	}
	l := &limited{Guard: g}
	for i := range c.Rules {
		switch rule := &c.Rules[i]; {
		case !rule.Service:
		case rule.Limiter != nil:
			l.hidden = append(l.hidden, rule.Limiter.Name())
		case rule.Limit != nil:
			l.hidden = append(l.hidden, rule.Limit.Name())
		}
	}
	g.Plain()
	g.Mount(nethttp.Ends)
	return l, nil
}

// New returns a guard. The error joins a nethttp.ConfigError for each fault.
func New(c Config) (*Guard, error) {
	of := nethttp.Config{
		Rules: c.Rules, Wait: c.Wait, NoFields: c.NoFields,
		Observe: c.Observe, Logger: c.Logger, ObserveOnly: c.ObserveOnly, OnSettled: c.OnSettled,
	}
	g := &Guard{skip: c.Skip}
	var errs []error
	if len(c.Rules) > 0 || len(c.Messages) == 0 {
		var err error
		g.calls, err = newLimited(of)
		errs = append(errs, err)
	}
	for i := range c.Messages {
		if unfit := unfit(&c.Messages[i]); unfit != "" {
			errs = append(errs, &nethttp.ConfigError{
				Field: fmt.Sprintf("Messages[%d].%s", i, unfit),
				Err:   errors.New("a message is charged when it has been received: use Limiter or Limit, with Cost"),
			})
		}
	}
	if len(c.Messages) > 0 {
		if of.Rules = c.Messages; len(c.Rules) > 0 {
			of.Wait = 0 // it is that of calls
		}
		guard, err := newLimited(of)
		if err != nil {
			err = fmt.Errorf("headgate: guard: Messages: %w", err)
		}
		g.messages, errs = guard, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return g, nil
}

// unfit returns a field that a rule for messages cannot have.
func unfit(rule *nethttp.Rule) string {
	switch {
	case rule.Slots != nil:
		return "Slots"
	case rule.LimitSlots != nil:
		return "LimitSlots"
	case rule.Settle != nil:
		return "Settle"
	case rule.Report != nil:
		return "Report"
	}
	return ""
}

// A Call is what a server knows of a call.
type Call struct {
	Procedure  string      // such as "/package.Service/Method"
	Header     http.Header // the metadata, by canonical names
	Host       string      // the authority
	RemoteAddr string      // as in http.Request
	TLS        *tls.ConnectionState
	HTTP       *http.Request // nil, or the request of HTTP, which has more

	// PriorKnowledge says that the server reads HTTP/2 from the first byte of a connection on, unless it
	// is an http.Server, which says so itself.
	PriorKnowledge bool

	Message  any // nil before it has been received
	Response any // nil before it is known
	Err      error
	Code     Code // of Err
}

// callKey is the key of the Call in the context of its request.
type callKey struct{}

// Of returns the call that a request is about, or an empty one.
func Of(r *http.Request) *Call {
	if c, ok := r.Context().Value(callKey{}).(*Call); ok {
		return c
	}
	return new(Call)
}

// priorKnowledge is the server of requests that no http.Server has read. It reads HTTP/2 from the
// first byte on, so no proxy can take it for HTTP/1.1, and tunnel what follows.
var priorKnowledge = func() *http.Server {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{Protocols: p}
}()

// callContext is the context of a call's request.
type callContext struct {
	context.Context

	call *Call
}

// Value implements [context.Context].
func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c.call
	}
	value := c.Context.Value(key)
	if value == nil && key == http.ServerContextKey && c.call.PriorKnowledge {
		return priorKnowledge
	}
	return value
}

// request returns the request of a call.
func (c *Call) request(ctx context.Context) *http.Request {
	r := c.HTTP
	if r == nil {
		room := &struct {
			request http.Request
			url     url.URL
		}{}
		r, room.url.Path = &room.request, c.Procedure
		r.Method, r.URL, r.RequestURI = http.MethodPost, &room.url, c.Procedure
		r.Proto, r.ProtoMajor = "HTTP/2.0", 2
		r.Header, r.Host, r.RemoteAddr, r.TLS = c.Header, c.Host, c.RemoteAddr, c.TLS
	}
	return r.WithContext(&callContext{ctx, c})
}

// A Visit is a call that a guard has decided about.
type Visit struct {
	// Refusal is the answer to a call that is not admitted.
	Refusal *Refusal

	// Fields are for the metadata of the response to one that is: nil if there are none.
	Fields http.Header

	// Context is the context of the call, in which [nethttp.SetCost] works.
	Context context.Context

	call    *Call
	request *http.Request
	verdict nethttp.Verdict
	message *message // nil: messages have no limit
}

// Enter decides about a call. If it is admitted, the visit is to be ended.
func (g *Guard) Enter(ctx context.Context, c *Call) *Visit {
	v := &Visit{call: c, Context: ctx, verdict: nethttp.Pass()}
	v.request = c.request(ctx)
	if g.skip != nil && g.skip(v.request) {
		return v
	}
	if g.messages != nil {
		v.message = &message{limit: g.messages, call: *c}
	}
	if g.calls == nil {
		return v
	}
	v.verdict = g.calls.Check(v.request)
	if v.verdict.Status() != 0 {
		v.Refusal = g.calls.refusal(v.request, v.verdict)
		return v
	}
	v.Fields = make(http.Header)
	v.verdict.SetFields(v.Fields)
	if begun, watch := v.verdict.Begin(v.request); watch {
		v.Context = begun.Context()
	}
	return v
}

// End ends the visit of a call that was admitted. err is what the handler returned, of that code, and
// nil if it panicked: then the code is Internal.
func (v *Visit) End(response any, err error, code Code) {
	v.call.Response, v.call.Err, v.call.Code = response, err, code
	v.verdict.End(nethttp.Outcome{Status: code.HTTPStatus()})
}

// Receive decides about a message that a stream has received. Once it has refused, it goes on to.
// It is not called concurrently, as a stream receives one message after the other. But a handler may
// receive in a goroutine of its own, also after it has returned: then End and Refused run meanwhile.
func (v *Visit) Receive(received any) *Refusal {
	m := v.message
	if m == nil {
		return nil
	}
	if m.request == nil {
		m.request = m.call.request(v.Context)
	}
	f := m.refusal.Load()
	if f == nil {
		m.call.Message = received
		if verdict := m.limit.Check(m.request); verdict.Status() != 0 {
			f = m.limit.refusal(m.request, verdict)
			m.refusal.Store(f)
		}
	}
	return f
}

// Refused returns what Receive has refused, or nil.
func (v *Visit) Refused() *Refusal {
	if v.message == nil {
		return nil
	}
	return v.message.refusal.Load()
}

// A message is the request of messages.
type message struct {
	limit   *limited
	call    Call // a copy, as End changes that of the visit
	request *http.Request
	refusal atomic.Pointer[Refusal]
}

// A Refusal is the answer to a call, or a message, that is not admitted.
type Refusal struct {
	Code       Code
	Text       string
	RetryAfter time.Duration // 0: nothing is known; core.Never: no retry can succeed
	Violations []Violation
	Fields     http.Header // RateLimit, RateLimit-Policy and Retry-After
}

// A Violation is a limit that refused.
type Violation struct {
	Policy string // or slots
	Limit  string // such as "10 in 1m0s"
}

// Pushback returns how many milliseconds a client is to wait before it tries again, or -1 if it
// should not. It also returns whether that is known (gRFC A6).
func (f *Refusal) Pushback() (ms int64, known bool) {
	switch {
	case f.RetryAfter == core.Never:
		return -1, true
	case f.RetryAfter > 0:
		return int64((f.RetryAfter + time.Millisecond - 1) / time.Millisecond), true
	}
	return 0, false
}

// refusal translates a verdict. As in HTTP, only that of status 429 shows what refused.
func (l *limited) refusal(r *http.Request, v nethttp.Verdict) *Refusal {
	f := &Refusal{Fields: make(http.Header)}
	v.SetFields(f.Fields)
	f.Fields.Del("Cache-Control")
	f.Code, f.Text = codeOf(r.Context(), v)
	if f.Code != ResourceExhausted && f.Code != Unavailable {
		return f
	}
	f.RetryAfter = retryAfter(v, f.Fields)
	if v.Status() != http.StatusTooManyRequests {
		return f
	}
	if o, full := v.Full(); full {
		f.add(o.Slots, fmt.Sprintf("%d at once", o.Limit))
	}
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); !a.Allowed && !slices.Contains(l.hidden, a.Limiter) {
			f.add(a.Policy, limitText(a))
		}
	}
	return f
}

// add adds a violation.
func (f *Refusal) add(policy, limit string) {
	if len(f.Violations) == 0 {
		f.Text += ":"
	}
	f.Text += fmt.Sprintf(" %q", policy)
	f.Violations = append(f.Violations, Violation{policy, limit})
}

// codeOf returns the code of a refusal, and its text, without keys.
func codeOf(ctx context.Context, v nethttp.Verdict) (Code, string) {
	switch status := v.Status(); {
	case v.Err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return DeadlineExceeded, "the deadline has passed"
	case v.Err != nil && ctx.Err() != nil:
		return Canceled, "the call was canceled"
	case status == http.StatusBadRequest:
		return InvalidArgument, "the call does not say who makes it"
	case status == http.StatusInternalServerError:
		return Internal, "internal error"
	case v.Err != nil:
		return Unavailable, "the limits are not available"
	case status == http.StatusServiceUnavailable: // a limit of the service, which is not shown
		return ResourceExhausted, "the service is busy"
	default:
		return ResourceExhausted, "quota exceeded"
	}
}

// limitText says what a policy admits.
func limitText(a core.Answer) string {
	if a.Window <= 0 {
		return strconv.FormatInt(a.Limit, 10)
	}
	return fmt.Sprintf("%d in %v", a.Limit, a.Window)
}

// retryAfter returns when to come back: exactly for rates, and otherwise as Retry-After says.
func retryAfter(v nethttp.Verdict, h http.Header) time.Duration {
	if _, full := v.Full(); !full && v.Err == nil && v.Decision.Len() > 0 {
		return v.Decision.RetryAfter
	}
	d, err := time.ParseDuration(h.Get("Retry-After") + "s")
	if err != nil {
		return 0
	}
	return d
}
