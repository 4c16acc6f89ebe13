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
	recordPause = time.Minute // between two records of one reason
	maxCompared = 1000        // forwarded requests whose key is compared with the address of their proxy
)

// A Watch tells the operator why there is no decision about requests, at most once a minute for each reason, and once
// that a key is the address of a proxy, which all clients share. No record has a key. It is safe for concurrent use.
// Its memory is bounded by the rules of the guard: there is a reason for each limiter and status.
type Watch struct {
	guard       string
	logger      *slog.Logger
	silent      bool // the program observes each verdict
	peerAddress keyfuncs.Func
	compared    atomic.Int32

	mu      sync.Mutex
	reasons map[reason]*unrecorded
}

type reason struct {
	limiter string
	status  int
}

// Unrecorded are the requests of one reason since its last record.
type unrecorded struct {
	requests   int64
	nextRecord time.Time
}

// NewWatch returns a Watch of a guard. A nil logger means slog.Default, as of when there is a record.
func NewWatch(guard string, logger *slog.Logger, silent bool) *Watch {
	return &Watch{
		guard: guard, logger: logger, silent: silent,
		peerAddress: keyfuncs.RemoteAddr(), reasons: make(map[reason]*unrecorded),
	}
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
	requests := w.due(reason{limiter, status})
	if requests == 0 {
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
	attrs = append(attrs, slog.Int("status", status), slog.Bool("observe_only", observeOnly),
		slog.Int64("requests", requests), slog.String("reason", text))
	w.warn("there is no decision about requests", attrs...)
}

// due counts a request, and returns how many a record is to tell of now: 0 if there was one less than a minute ago.
func (w *Watch) due(why reason) (requests int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := w.reasons[why]
	if waiting == nil {
		waiting = new(unrecorded)
		w.reasons[why] = waiting
	}
	waiting.requests++
	now := time.Now()
	if now.Before(waiting.nextRecord) {
		return 0
	}
	requests = waiting.requests
	waiting.requests = 0
	waiting.nextRecord = now.Add(recordPause)
	return requests
}

// WarnOfProxy warns if the key of a request is the address of a proxy. Most requests end at the first comparison: it
// looks at a thousand in all.
func (w *Watch) WarnOfProxy(limiter string, r *http.Request, key string) {
	if w.compared.Load() >= maxCompared || len(r.Header["X-Forwarded-For"]) == 0 {
		return
	}
	// From elsewhere, X-Forwarded-For is what anybody writes, and no sign of a proxy.
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !isNear(peer.Addr().Unmap()) {
		return
	}
	w.compared.Add(1)
	address, err := w.peerAddress(r)
	// Behind a colon the address is a key with a tag, such as ip:10.0.0.1.
	if err != nil || key != address && !strings.HasSuffix(key, ":"+address) {
		return
	}
	if w.compared.Swap(maxCompared) < maxCompared { // nobody has told of it
		w.warn("the key is the address of a proxy, so that all its clients share one limit: "+
			"use keyfuncs.XForwardedFor with the networks of the proxies; "+
			"or, if it is in use, a proxy forwards an element that is no address", slog.String("limit", limiter))
	}
}

// isNear reports whether an address is of a network in which proxies are.
func isNear(address netip.Addr) bool {
	return address.IsPrivate() || address.IsLoopback() || address.IsLinkLocalUnicast()
}
