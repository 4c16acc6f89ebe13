package headgated

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/internal/step"
)

const (
	maxBody = 64 << 10
	maxAsks = 64 // as many as core takes in one call
)

// HTTP returns the handler of the HTTP door. It has /v1/check, /v1/charge and /v1/report for
// programs, and /v1/auth for proxies. It has /json and /healthcheck as in Envoy's rate limit
// service.
func (s *Server) HTTP() http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, h http.HandlerFunc, methods ...string) {
		mux.Handle(path, s.metrics.counted(path, only(methods, h)))
	}
	handle("/v1/check", s.program(toCheck), http.MethodPost)
	handle("/v1/charge", s.program(toCharge), http.MethodPost)
	handle("/v1/report", s.program(toReport), http.MethodPost)
	handle("/v1/auth", s.auth, http.MethodGet, http.MethodHead, http.MethodPost)
	handle("/json", s.inJSON, http.MethodPost)
	handle("/healthcheck", s.healthcheck, http.MethodGet, http.MethodHead)
	mux.Handle("/", s.metrics.counted("other", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "there is nothing here: see /v1/check, /v1/charge, /v1/report, /v1/auth and /json")
	})))
	return mux
}

// only answers requests of other methods with 405.
func only(methods []string, next http.HandlerFunc) http.Handler {
	allowed := strings.Join(methods, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(methods, r.Method) {
			next(w, r)
			return
		}
		w.Header().Set("Allow", allowed)
		fail(w, http.StatusMethodNotAllowed, "use "+allowed)
	})
}

// fail answers with a problem document that says what is wrong. The detail has no key.
func fail(w http.ResponseWriter, status int, detail string) {
	send(w, status, nethttp.ProblemType, failure(status, detail))
}

func failure(status int, detail string) []byte {
	return marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(status), status, detail})
}

// marshal returns the JSON of a value that has one.
func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func send(w http.ResponseWriter, status int, kind string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // who does not read it has gone
}

// A reply is the answer to a program. Durations are in microseconds, rounded up; nil is never.
type reply struct {
	Allowed    bool        `json:"allowed"`
	Source     string      `json:"source"`
	Limit      int64       `json:"limit"`
	Remaining  int64       `json:"remaining"`
	ResetAfter *int64      `json:"reset_after_us"`
	RetryAfter *int64      `json:"retry_after_us"`
	Answers    []oneAnswer `json:"answers"`
	Uncovered  *int64      `json:"uncovered,omitempty"` // of a report
}

// A oneAnswer is that of one policy.
type oneAnswer struct {
	Limiter    string `json:"limiter"`
	Policy     string `json:"policy"`
	Allowed    bool   `json:"allowed"`
	Limit      int64  `json:"limit"`
	Remaining  int64  `json:"remaining"`
	Window     int64  `json:"window_us"`
	NextAfter  *int64 `json:"next_after_us"`
	ResetAfter *int64 `json:"reset_after_us"`
	RetryAfter *int64 `json:"retry_after_us"`
}

func replyOf(d *backend.Decision) reply {
	t := d.Totals()
	r := reply{
		Allowed: d.Allowed, Source: d.Source().String(), Limit: t.Decider.Capacity(), Remaining: t.Remaining,
		ResetAfter: micros(backend.Span(t.ResetAfter)), RetryAfter: micros(backend.Span(t.RetryAfter)), Answers: make([]oneAnswer, d.Len()),
	}
	for i := range r.Answers {
		a := d.At(i)
		r.Answers[i] = oneAnswer{
			Limiter: a.Limiter, Policy: a.Policy, Allowed: a.Allowed, Limit: a.Limit, Remaining: a.Remaining, Window: a.Window.Microseconds(),
			NextAfter: micros(a.NextAfter), ResetAfter: micros(a.ResetAfter), RetryAfter: micros(a.RetryAfter),
		}
	}
	return r
}

// micros returns a time in microseconds, rounded up, or nil for never.
func micros(d time.Duration) *int64 {
	if d == core.Never {
		return nil
	}
	us := int64((d + time.Microsecond - 1) / time.Microsecond)
	return &us
}

// A callError is a request that cannot be answered, with the status that says so.
type callError struct {
	status int
	detail string
}

func (e *callError) Error() string { return e.detail }

// program returns the handler of a verb.
func (s *Server) program(v step.Mode) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		asks, err := readAsks(w, r, v)
		var charges []backend.Charge
		if err == nil {
			charges, err = s.current.Load().chargesOf(asks, true)
		}
		var d backend.Decision
		if err == nil {
			err = backend.Decide(r.Context(), v, charges, &d)
		}
		if err != nil {
			s.failed(w, r, err)
			return
		}
		verdict := nethttp.VerdictOf(&d, nil)
		body := replyOf(&d)
		if v == toReport {
			uncovered := d.MostUncovered()
			body.Uncovered = &uncovered
		}
		if v != toCharge || d.Allowed {
			nethttp.Draft11(w.Header(), verdict)
			send(w, http.StatusOK, "application/json", marshal(body))
			return
		}
		verdict.SetFields(w.Header())
		text := bytes.TrimSuffix(verdict.Problem(), []byte("}")) // which goes on with the members of the reply
		send(w, http.StatusTooManyRequests, nethttp.ProblemType, append(append(text, ','), marshal(body)[1:]...))
	}
}

// failed answers a request for which there is no decision.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	var call *callError
	var unknown *unknownError
	switch {
	case errors.As(err, &call):
		fail(w, call.status, call.detail)
	case errors.As(err, &unknown):
		fail(w, http.StatusNotFound, err.Error())
	case errors.Is(err, core.ErrInvalid):
		fail(w, http.StatusBadRequest, err.Error())
	default:
		if r.Context().Err() == nil {
			s.current.Load().watch.Undecided(-1, http.StatusServiceUnavailable, err)
		}
		nethttp.VerdictOf(nil, err).SetFields(w.Header())
		fail(w, http.StatusServiceUnavailable, "there is no decision: the store is away, or does not answer in time")
	}
}

// readAsks reads the body of a request. What is reported is at least one unit.
func readAsks(w http.ResponseWriter, r *http.Request, v step.Mode) ([]ask, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, &callError{http.StatusUnsupportedMediaType, "the Content-Type is not application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &callError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", maxBody)}
	case err != nil:
		return nil, &callError{http.StatusBadRequest, "the body does not arrive"}
	}
	root, err := limits.DecodeJSON(body)
	if err != nil {
		return nil, &callError{http.StatusBadRequest, err.Error()}
	}
	rd := &reader{}
	var asks []ask
	var least int64
	if v == toReport {
		least = 1
	}
	fields := rd.fields(&root, "", wordCharges)
	if fields[wordCharges] == nil && root.Kind == limits.Map {
		rd.fault(&root, "", "it has no %s", wordCharges)
	}
	rd.items(fields[wordCharges], wordCharges, func(n *limits.Node, path string) { asks = append(asks, rd.ask(n, path, least)) })
	if n := fields[wordCharges]; n != nil && n.Kind == limits.List && (len(asks) == 0 || len(asks) > maxAsks) {
		rd.fault(n, wordCharges, "there are %d charges, not 1 to %d", len(asks), maxAsks)
	}
	if len(rd.faults) > 0 {
		return nil, &callError{http.StatusBadRequest, rd.faults[0].Error()}
	}
	return asks, nil
}

const wordCharges = "charges"

// ask reads a charge of a request, of that many units at least.
func (r *reader) ask(n *limits.Node, path string, least int64) ask {
	a := ask{units: 1}
	fields := r.fields(n, path, wordLimit, wordKey, wordUnits, wordPlan)
	for word, into := range map[string]*string{wordLimit: &a.limit, wordKey: &a.key} {
		if v := fields[word]; v != nil {
			*into, _ = r.text(v, path+"."+word)
		} else if n.Kind == limits.Map {
			r.fault(n, path, "it has no %s", word)
		}
	}
	if v := fields[wordPlan]; v != nil {
		if v.Kind == limits.String {
			a.plan = v.Text
		} else if v.Kind != limits.Null {
			r.fault(v, path+"."+wordPlan, "it is %v, not a string", v.Kind)
		}
	}
	if v := fields[wordUnits]; v != nil {
		a.units = r.number(v, path+"."+wordUnits, least)
	}
	return a
}
