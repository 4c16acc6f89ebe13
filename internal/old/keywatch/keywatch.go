// Package keywatch tells the operator of faults of configuration that the keys of requests show,
// once for a guard. It also tells why requests are refused without a decision. No record has a key.
package keywatch

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/keyfuncs"
)

const (
	// patience is how long no request has a key before that counts as a fault.
	patience = time.Minute

	// looks is how many forwarded requests are compared with their proxy. A guard whose keys are
	// wrong shows it with its first requests; the others should not pay for it forever.
	looks = 1000

	other = "an error of the rule's Key" // a reason
)

// A Watch looks at the keys of a guard's requests. It is safe for concurrent use.
type Watch struct {
	guard   string
	logger  *slog.Logger
	rules   []rule
	address keyfuncs.Func // where a request comes from
	looked  atomic.Int32  // looks, or more: no further ones

	toldKeyless, toldProxy atomic.Bool

	observed bool
	refused  refusals
}

type rule struct {
	name    string // of the limiter or the slots
	keyless atomic.Pointer[spell]
}

// A spell is a time in which no request has had a key of a rule.
type spell struct {
	began    time.Time
	first    error // the reason for its first request
	requests atomic.Int64
}

// New returns a Watch for a guard, such as "nethttp", and the limits of its rules. The logger gets the
// faults. Nil means slog.Default, as it is when there is a fault. If the guard is observed, refusals
// are not logged: the observer gets each of them.
func New(guard string, logger *slog.Logger, names []string, observed bool) *Watch {
	w := &Watch{guard: guard, logger: logger, observed: observed, rules: make([]rule, len(names)), address: keyfuncs.RemoteAddr()}
	for i, name := range names {
		w.rules[i].name = name
	}
	return w
}

// See looks at what the Key of a rule returned for a request. An empty key is an error.
func (w *Watch) See(i int, r *http.Request, key string, err error) {
	rule := &w.rules[i]
	if err != nil {
		w.without(i, err)
		return
	}
	if rule.keyless.Load() != nil {
		rule.keyless.Store(nil)
	}
	if w.looked.Load() < looks && len(r.Header["X-Forwarded-For"]) > 0 {
		w.forwarded(i, r, key)
	}
}

// without is for a request without a key.
func (w *Watch) without(i int, err error) {
	if w.toldKeyless.Load() {
		return
	}
	rule := &w.rules[i]
	s := rule.keyless.Load()
	if s == nil {
		s = &spell{began: time.Now(), first: err}
		if !rule.keyless.CompareAndSwap(nil, s) {
			return // another request began it
		}
	}
	n := s.requests.Add(1)
	if time.Since(s.began) < patience || !w.toldKeyless.CompareAndSwap(false, true) {
		return
	}
	w.warn(i, "no request had a key for a minute or longer; Config.Observe gets the reason for each",
		slog.Int64("requests", n), slog.Time("since", s.began), slog.String("reason", reason(s.first, err)))
}

// reason returns the reason why two requests have no key. The text of an error may contain a key,
// unless requests far apart have the very same: then it was made without them.
func reason(first, last error) string {
	if first != nil && reflect.TypeOf(first).Kind() == reflect.Pointer && first == last { //nolint:errorlint // the very same
		return last.Error()
	}
	for _, kind := range []error{keyfuncs.ErrAbsent, keyfuncs.ErrProgram} {
		if errors.Is(last, kind) {
			return kind.Error()
		}
	}
	return other
}

// forwarded is for a request with X-Forwarded-For.
func (w *Watch) forwarded(i int, r *http.Request, key string) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return
	}
	if a := peer.Addr().Unmap(); !a.IsPrivate() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
		return // X-Forwarded-For is what anybody writes
	}
	w.looked.Add(1)
	address, err := w.address(r)
	if err != nil || !contains(key, address) {
		return
	}
	w.looked.Store(looks)
	if w.toldProxy.CompareAndSwap(false, true) {
		w.warn(i, "the key is the address of a proxy, so that all its clients share one limit: use keyfuncs.XForwardedFor with the networks of the proxies")
	}
}

// contains reports whether a key is the address, or made of it by keyfuncs.First or All.
func contains(key, address string) bool {
	return key == address || strings.HasSuffix(key, ":"+address) ||
		strings.Contains(key, strconv.Itoa(len(address))+":"+address+",")
}

// warn logs a fault of a rule, or of the guard if i is -1.
func (w *Watch) warn(i int, fault string, attrs ...any) {
	logger := w.logger
	if logger == nil {
		logger = slog.Default()
	}
	if i >= 0 {
		attrs = append([]any{slog.Int("rule", i), slog.String("limit", w.rules[i].name)}, attrs...)
	}
	logger.Warn("headgate: "+w.guard+": "+fault, attrs...)
}
