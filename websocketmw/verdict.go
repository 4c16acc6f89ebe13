package websocketmw

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/occupancy"
	"github.com/headgate/headgate/internal/problem"
	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/nethttp"
)

// A Verdict is a guard's decision about a request. The zero Verdict refuses.
type Verdict struct {
	// Err is why the request was refused, if not by a limit: the error of a key
	// function or the store, core.ErrClosed after [Guard.Shutdown], or what is wrong
	// with the request. It is for logs and not sent to the client.
	Err error

	guard     *Guard
	handshake *nethttp.Verdict // of Config.Handshakes; nil if it was not checked
	socket    *Socket          // holds the slots; nil if there are none
	place     *place           // for the guard's fleet; nil if there is none, or no key
	limits    []core.Occupancy // of the rules, in order, with Held -1 where it is unknown
	share     hidden.Text      // the key of the client whose limit refused, if one did
	status    int              // of the refusal
	wait      int              // Retry-After in seconds
	admitted  bool
	silent    bool // sets no fields of the rules
}

// wait returns a Retry-After in seconds. It is random, so that waiting clients do not all
// retry at once.
func wait() int {
	const least, most = 5, 10
	return least + rand.IntN(most-least+1) //nolint:gosec // no secret
}

// refuse fills in v for an error of core.AcquireAll.
func refuse(v *Verdict, err error, claims []core.Claim) {
	var full *core.FullError
	switch {
	case errors.As(err, &full):
		v.status = http.StatusTooManyRequests
		if v.guard.config.Rules[full.Claim].Service {
			v.status = http.StatusServiceUnavailable
		} else {
			v.share = hidden.Of(claims[full.Claim].Key)
		}
		v.limits = occupancy.Refused(full, claims)
	case errors.Is(err, core.ErrQuestion):
		v.Err, v.status = err, http.StatusInternalServerError
	default:
		v.Err, v.status = err, http.StatusServiceUnavailable
	}
}

// Status returns 0 if the request is admitted, and otherwise the status of the refusal:
// one of those in the package documentation, or that of [Config].Handshakes.
func (v Verdict) Status() int {
	switch {
	case v.admitted:
		return 0
	case v.status == 0: // the zero Verdict
		return http.StatusServiceUnavailable
	default:
		return v.status
	}
}

// mayPass reports whether shadow mode makes the verdict admit: Handshakes and Shutdown are
// not in shadow.
func (v Verdict) mayPass() bool {
	return !v.guard.isDraining() && (v.handshake == nil || v.handshake.Status() == 0)
}

// Upgrades reports whether the request is an admitted upgrade, which holds slots.
func (v Verdict) Upgrades() bool { return v.socket != nil }

// Handshake returns the verdict of [Config].Handshakes, and whether there is one.
func (v Verdict) Handshake() (nethttp.Verdict, bool) {
	if v.handshake == nil {
		return nethttp.Verdict{}, false
	}
	return *v.handshake, true
}

// Full returns the occupancy of the slots that refused, and whether any did.
func (v Verdict) Full() (core.Occupancy, bool) {
	if v.Err == nil && !v.admitted {
		for _, o := range v.limits {
			if o.Held >= 0 {
				return o, true
			}
		}
	}
	return core.Occupancy{}, false
}

// Serve calls next for an admitted request. For an upgrade it first sets the verdict's
// fields, and passes a writer that wraps the hijacked connection, and a request whose
// context has the [Socket]. Other requests it passes on unchanged.
//
// If next panics, Serve closes the connection, and the panic continues.
func (v Verdict) Serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s := v.socket
	if s == nil {
		next.ServeHTTP(w, r)
		return
	}
	returned := false
	defer func() { s.handled(!returned) }()
	v.SetFields(w.Header())
	watched := &writer{Recorder: record.Recorder{ResponseWriter: w}, socket: s}
	if v.handshake != nil {
		begun, settle := v.handshake.Begin(r)
		if settle != nil {
			r = begun
			defer func() {
				settle(nethttp.Outcome{Status: watched.Final(returned), Written: watched.Written, Hijacked: watched.Hijacked})
			}()
		}
	}
	r = r.WithContext(s.serve(r.Context()))
	if s.stream {
		inner := newStream(w, r, func() { s.cancel(errEnded) })
		c := newConn(inner, s)
		defer runtime.KeepAlive(c) // the socket has only a weak pointer
		defer inner.finish()
		defer c.slow.drain()
		s.took(c)
		r.Body = streamBody{c, r.Body}
		w = &streamWriter{watched, c, inner}
	} else {
		watched.own = make(http.Header, 2)
		v.SetFields(watched.own)
		w = watched.wrapped()
	}
	next.ServeHTTP(w, r)
	returned = true
}

// Release releases the slots of a verdict that is not served. It does nothing if there
// are none, and may be called more than once.
func (v Verdict) Release() {
	if v.socket != nil {
		v.socket.end()
	}
}

// SetFields sets the verdict's fields in the header of the response. It appends RateLimit
// and RateLimit-Policy, those of [Config].Handshakes first and then those of the rules,
// and for a refusal sets Cache-Control: no-store and, with 429 and 503, Retry-After.
func (v Verdict) SetFields(h http.Header) {
	if v.handshake != nil {
		v.handshake.SetFields(h)
		if v.handshake.Status() != 0 {
			return
		}
	}
	if v.silent {
		return
	}
	if len(v.limits) > 0 && !v.guard.config.NoFields {
		_, full := v.Full()
		occupancy.SetFields(h, v.limits, func(i int) bool { return v.guard.config.Rules[i].Service }, full)
	}
	switch v.Status() {
	case 0:
		return
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if v.wait > 0 { // not the zero Verdict
			h.Set("Retry-After", strconv.Itoa(v.wait))
		}
	}
	h.Set("Cache-Control", "no-store")
}

// Problem returns the body of the refusal, a problem document (RFC 9457), or nil if the
// request is admitted. For a refusal by a limit with 429, its type is quota-exceeded
// (draft-ietf-httpapi-ratelimit-headers-11) and it names the limit; otherwise it
// contains only the status.
func (v Verdict) Problem() []byte {
	switch {
	case v.Status() == 0:
		return nil
	case v.handshake != nil && v.handshake.Status() != 0:
		return v.handshake.Problem()
	}
	d := v.document()
	return d.Bytes()
}

// document returns the body of a refusal that is not one of Config.Handshakes.
func (v Verdict) document() problem.Document {
	status := v.Status()
	if o, full := v.Full(); full && status == http.StatusTooManyRequests {
		return problem.QuotaExceeded(o.Slots)
	}
	return problem.Blank(status)
}
