// Package rpc is what packages grpcmw and connectmw share. A remote call is a request of package nethttp: its metadata
// are the header, and its procedure is the path. So rules, keys and fields of HTTP decide about calls, and this package
// translates what they answer.
//
// A call on a server (rpc.go):
//
//  1. Guard.Serve makes a request of the Call, and gives it to a guard of package nethttp.
//  2. The handler behind that guard, admitted, calls the interceptor's function. It sets what Settle asks for: the
//     response and the code (code.go).
//  3. Or the guard refuses: the verdict becomes a Refusal, which interceptors return as an error (refusal.go).
//  4. Each message that a stream receives is a request of a second guard (Visit.Receive).
//
// A call of a client waits and is repeated by a Client (client.go).
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
	"strings"
	"sync/atomic"

	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Config is what a guard of calls does. There must be a rule. Its functions are called concurrently; what a call has,
// and an HTTP request has not, they get by Message, Response and Code of packages grpcmw and connectmw.
type Config struct {
	_ struct{}

	// Rates and Concurrency are for calls, when they begin: see [nethttp.Config]. Slots are held until the call ends.
	// The status of an Outcome is what google/rpc/code.proto maps the code to, such as 200 for OK and 404 for
	// NOT_FOUND; it has no bytes.
	Rates       []nethttp.Rate
	Concurrency []nethttp.Concurrency

	// Messages are for each message that a stream receives, without Settle. Their Cost may look at the message. Over a
	// limit, the stream receives no more, and ends with the refusal, whatever its handler returns.
	Messages []nethttp.Rate

	// Skip reports whether no rule applies to a call and its messages.
	Skip func(*http.Request) bool

	// Fields, Observe and Logger are as in [nethttp.Config].
	Fields  func(http.Header, *nethttp.Verdict)
	Observe func(*http.Request, *nethttp.Verdict)
	Logger  *slog.Logger
}

// A Guard decides about calls. It is safe for concurrent use.
type Guard struct {
	skip     func(*http.Request) bool
	codeOf   func(error) Code
	calls    *limited // nil: calls have no limit
	messages *limited // nil: messages have none
}

// limited is a guard of calls or of messages.
type limited struct {
	handler http.Handler
	service map[string]bool // names of limits of the service, which no refusal shows
	slots   map[string]bool // names of slots
}

// New returns a guard. codeOf returns the code of what a handler has returned. The error has all faults of the Config,
// one line a rule.
func New(config Config, codeOf func(error) Code) (*Guard, error) {
	guard := &Guard{skip: config.Skip, codeOf: codeOf}
	rules := nethttp.Config{
		Rates: config.Rates, Concurrency: config.Concurrency,
		Fields: config.Fields, Observe: config.Observe, Logger: config.Logger,
	}
	var errs []error
	// Without any rule, the guard of calls says what is wrong.
	if len(config.Rates)+len(config.Concurrency) > 0 || len(config.Messages) == 0 {
		var err error
		guard.calls, err = newLimited(rules)
		errs = append(errs, err)
	}
	for i := range config.Messages {
		if config.Messages[i].Settle != nil {
			const fault = "headgate: Messages[%d]: a message is charged once, when it has been received: remove Settle"
			errs = append(errs, fmt.Errorf(fault, i))
		}
	}
	if len(config.Messages) > 0 {
		rules.Rates = config.Messages
		rules.Concurrency = nil
		messages, err := newLimited(rules)
		if err != nil {
			err = errors.New(strings.ReplaceAll(err.Error(), "headgate: Rates[", "headgate: Messages["))
		}
		guard.messages = messages
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return guard, nil
}

// newLimited returns the guard of calls, or that of messages. It also notes what a verdict does not say: which of the
// limits are slots, and which are of the service.
func newLimited(config nethttp.Config) (*limited, error) {
	guard, err := nethttp.New(config)
	if err != nil {
		return nil, err
	}
	limits := &limited{guard.Handler(http.HandlerFunc(admitted)), make(map[string]bool), make(map[string]bool)}
	for i := range config.Rates {
		limits.service[config.Rates[i].Limiter.Name()] = config.Rates[i].Service
	}
	for i := range config.Concurrency {
		name := config.Concurrency[i].Slots.Name()
		limits.service[name] = config.Concurrency[i].Service
		limits.slots[name] = true
	}
	return limits, nil
}

// admitted is the handler behind the guards.
func admitted(w http.ResponseWriter, r *http.Request) {
	call := Of(r)
	if call.visit != nil {
		call.visit.Context = r.Context()
		call.visit.Fields = w.Header()
		call.visit.run()
		w.WriteHeader(call.Code.httpStatus()) // for Settle, which gets the status
	}
}

// A response is what a guard answers to a call. Nothing is sent through it: interceptors return a Refusal in the way of
// their library.
type response struct {
	header  http.Header
	verdict *nethttp.Verdict // that refuses
}

func (w *response) Header() http.Header            { return w.header }
func (w *response) Write(data []byte) (int, error) { return len(data), nil }
func (w *response) WriteHeader(int)                {}

// Refused is what the guard calls with a refusal. So the guard writes no problem document, which no client of a call
// would read.
func (w *response) Refused(verdict *nethttp.Verdict, _ string) (answered bool) {
	w.verdict = verdict
	return true
}

// ask returns the refusal of a request, or nil when the handler has run.
func (l *limited) ask(r *http.Request) *Refusal {
	w := &response{header: make(http.Header)}
	l.handler.ServeHTTP(w, r)
	if w.verdict == nil {
		return nil
	}
	return l.refusal(r.Context(), w.verdict, w.header)
}

// A Call is what a server knows of a call.
type Call struct {
	Procedure  string      // such as "/package.Service/Method"
	Header     http.Header // the metadata, by canonical names
	Host       string      // the authority
	RemoteAddr string      // as in http.Request
	TLS        *tls.ConnectionState
	HTTP       *http.Request // nil, or the request of HTTP, which has more

	// PriorKnowledge says that the server reads HTTP/2 from the first byte of a connection on, unless it is an
	// http.Server, which says so itself.
	PriorKnowledge bool

	Message  any  // nil before it has been received
	Response any  // nil before it is known
	Code     Code // of a call that has ended

	visit *Visit // nil: it is about a message
}

type callKey struct{}

// Of returns the call that a request is about, or an empty one.
func Of(r *http.Request) *Call {
	if call, ok := r.Context().Value(callKey{}).(*Call); ok {
		return call
	}
	return new(Call)
}

// priorKnowledge is the server of requests that no http.Server has read. It reads HTTP/2 from the first byte on, so no
// proxy can take it for HTTP/1.1, and tunnel what follows.
var priorKnowledge = func() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{Protocols: protocols}
}()

// callContext is the context of a call's request. The call is in a type of its own, not in context.WithValue, because
// it also answers for the server.
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

// request returns the request of a call. The context of an HTTP request is replaced by that of the call, in which
// interceptors before this one may have put something.
func (c *Call) request(ctx context.Context) *http.Request {
	r := c.HTTP
	if r == nil {
		r = &http.Request{
			Method: http.MethodPost, URL: &url.URL{Path: c.Procedure}, RequestURI: c.Procedure,
			Proto: "HTTP/2.0", ProtoMajor: 2,
			Header: c.Header, Host: c.Host, RemoteAddr: c.RemoteAddr, TLS: c.TLS,
		}
	}
	return r.WithContext(&callContext{ctx, c})
}

// A Visit is a call that was admitted.
type Visit struct {
	Fields  http.Header     // for the metadata of the response; nil if there are none
	Context context.Context // of the call, in which nethttp.SetCost works

	call    *Call
	guard   *Guard
	handle  func(*Visit) (response any, err error)
	message *message // nil: messages have no limit
}

// Serve decides about a call, and calls handle if it is admitted. Otherwise it returns the refusal.
func (g *Guard) Serve(ctx context.Context, call *Call, handle func(*Visit) (response any, err error)) *Refusal {
	visit := &Visit{Context: ctx, call: call, guard: g, handle: handle}
	call.visit = visit
	r := call.request(ctx)
	skipped := g.skip != nil && g.skip(r)
	// That of messages has a call without a visit, so that the handler behind its guard calls nothing.
	if g.messages != nil && !skipped {
		visit.message = &message{limit: g.messages, call: *call}
		visit.message.call.visit = nil
	}
	if g.calls == nil || skipped {
		visit.run()
		return nil
	}
	return g.calls.ask(r)
}

// run calls the handler. If that panics, the code is Internal. It is set before the handler runs, since the guard
// settles also after a panic.
func (v *Visit) run() {
	v.call.Code = Internal
	response, err := v.handle(v)
	v.call.Response = response
	v.call.Code = v.guard.codeOf(err)
}

// A message is the request of messages.
type message struct {
	limit   *limited
	call    Call // a copy, as that of the visit changes
	request *http.Request
	refusal atomic.Pointer[Refusal]
}

// Receive decides about a message that a stream has received. Once it has refused, it goes on to. It is not called
// concurrently, as a stream receives one message after the other. But a handler may receive in a goroutine of its own,
// also after it has returned: then Refused runs meanwhile.
func (v *Visit) Receive(received any) *Refusal {
	message := v.message
	if message == nil {
		return nil
	}
	if message.request == nil { // one for all messages of the stream
		message.request = message.call.request(v.Context)
	}
	refusal := message.refusal.Load()
	if refusal == nil {
		message.call.Message = received
		refusal = message.limit.ask(message.request)
		if refusal != nil {
			message.refusal.Store(refusal)
		}
	}
	return refusal
}

// Refused returns what Receive has refused, or nil.
func (v *Visit) Refused() *Refusal {
	if v.message == nil {
		return nil
	}
	return v.message.refusal.Load()
}

// Procedure is a key: the procedure of the call.
func Procedure(r *http.Request) (string, error) { return Of(r).Procedure, nil }

// Procedures returns a function that reports whether the procedure begins with one of the prefixes.
func Procedures(prefixes []string) func(*http.Request) bool {
	prefixes = slices.Clone(prefixes)
	return func(r *http.Request) bool {
		procedure := Of(r).Procedure
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(procedure, prefix) })
	}
}

var errNoCertificate = fmt.Errorf("%w: a client certificate that the server has verified", keyfuncs.ErrAbsent)

// TLSSubject is a key: the subject of the client's certificate (RFC 4514), if the server has verified it. A certificate
// that was only sent proves nothing.
func TLSSubject(r *http.Request) (string, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return "", errNoCertificate
	}
	subject := r.TLS.VerifiedChains[0][0].Subject.String()
	if subject == "" {
		return "", errNoCertificate
	}
	return subject, nil
}
