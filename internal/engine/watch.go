package engine

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/keyfuncs"
)

const (
	pause = time.Minute // between two records of one reason
	looks = 1000        // forwarded requests that are compared with their proxy
)

// A Watch tells the operator why there is no decision about requests, at most once a minute for each reason, and once
// that a key is the address of a proxy, which all clients share. No record has a key.
type Watch struct {
	guard   string
	logger  *slog.Logger
	silent  bool // the program observes each verdict
	address keyfuncs.Func
	looked  atomic.Int32

	mu      sync.Mutex
	reasons map[reason]*refusals
}

type reason struct {
	limiter string
	status  int
}

type refusals struct {
	requests int64 // since the last record
	next     time.Time
}

// NewWatch returns a Watch of a guard. A nil logger means slog.Default, as of when there is a record.
func NewWatch(guard string, logger *slog.Logger, silent bool) *Watch {
	return &Watch{guard: guard, logger: logger, silent: silent, address: keyfuncs.RemoteAddr(), reasons: make(map[reason]*refusals)}
}

func (w *Watch) warn(text string, attrs ...any) {
	logger := w.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Warn("headgate: "+w.guard+": "+text, attrs...)
}

// Undecided counts a request about which a rule, or the store, does not decide. Errors of key functions of the program
// may have the key in their text, so the record has only those of package keyfuncs.
func (w *Watch) Undecided(limiter string, status int, observeOnly bool, err error) {
	if w.silent {
		return
	}
	w.mu.Lock()
	of := w.reasons[reason{limiter, status}]
	if of == nil {
		of = new(refusals)
		w.reasons[reason{limiter, status}] = of
	}
	of.requests++
	now, n := time.Now(), int64(0)
	if !now.Before(of.next) {
		n, of.requests, of.next = of.requests, 0, now.Add(pause)
	}
	w.mu.Unlock()
	if n == 0 {
		return
	}
	text := "there is no key, or it is malformed"
	var keyless *fault.Keyless
	switch {
	case errors.As(err, &keyless): // without what functions of the program have written around it
		text = keyless.Text
	case status != http.StatusBadRequest:
		text = err.Error()
	}
	var attrs []any
	if limiter != "" { // it is not about all rules together
		attrs = append(attrs, slog.String("limit", limiter))
	}
	w.warn("there is no decision about requests", append(attrs, slog.Int("status", status),
		slog.Bool("observe_only", observeOnly), slog.Int64("requests", n), slog.String("reason", text))...)
}

// Key looks at the key of a request.
func (w *Watch) Key(limiter string, r *http.Request, key string) {
	if w.looked.Load() >= looks || len(r.Header["X-Forwarded-For"]) == 0 {
		return
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return
	}
	if a := peer.Addr().Unmap(); !a.IsPrivate() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
		return // X-Forwarded-For is what anybody writes
	}
	w.looked.Add(1)
	address, err := w.address(r)
	if err != nil || key != address && !strings.HasSuffix(key, ":"+address) {
		return
	}
	if w.looked.Swap(looks) < looks {
		w.warn("the key is the address of a proxy, so that all its clients share one limit: use keyfuncs.XForwardedFor with the networks of the proxies; or, if it is in use, a proxy forwards an element that is no address",
			slog.String("limit", limiter))
	}
}
