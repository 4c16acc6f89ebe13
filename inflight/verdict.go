package inflight

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/occupancy"
	"github.com/headgate/headgate/internal/problem"
	"github.com/headgate/headgate/internal/record"
)

// A Verdict is a guard's decision about a request. The zero Verdict refuses.
type Verdict struct {
	// Err is why the request was refused, if not by a limit: the error of a key function or
	// the store, core.ErrClosed, or that of the request's context if the client has hung up.
	// It is for logs and not sent to the client.
	Err error

	// Waited is how long the request has waited for its slots, with the calls of the store.
	// It is 0 without [Config].Queue.
	Waited time.Duration

	guard    *Guard
	slot     *core.Slot       // nil if there is none
	limits   []core.Occupancy // of the rules, in order, with Held -1 where it is unknown
	status   int              // of the refusal
	wait     int              // Retry-After in seconds
	admitted bool
	silent   bool // sets no fields
}

// wait returns a Retry-After in seconds. It is random, so that clients do not all come back at
// once.
func wait() int {
	const least, most = 1, 5
	return least + rand.IntN(most-least+1) //nolint:gosec // no secret
}

// Status returns 0 if the request is admitted, and otherwise the status of the refusal: one of
// those in the package documentation.
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

// Release releases the slots of an admitted request. It does nothing if there are none, and
// may be called more than once.
func (v Verdict) Release() {
	if v.slot != nil {
		v.slot.Release()
	}
}

// SetFields sets the verdict's fields in the header of the response. It appends RateLimit and
// RateLimit-Policy, and for a refusal sets Cache-Control: no-store and, with 429 and 503,
// Retry-After.
func (v Verdict) SetFields(h http.Header) {
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
// (draft-ietf-httpapi-ratelimit-headers-11) and it names the limit; otherwise it contains only
// the status.
func (v Verdict) Problem() []byte {
	if v.Status() == 0 {
		return nil
	}
	d := v.document()
	return d.Bytes()
}

func (v Verdict) document() problem.Document {
	status := v.Status()
	if o, full := v.Full(); full && status == http.StatusTooManyRequests {
		return problem.QuotaExceeded(o.Slots)
	}
	return problem.Blank(status)
}

// Refuse writes the refusal: the fields of [Verdict.SetFields], the status and the problem
// document, unless [Config].OnRefused writes it. Refuse does nothing if the request is
// admitted.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, v Verdict) {
	if v.Status() == 0 {
		return
	}
	v.SetFields(w.Header())
	if g.config.OnRefused != nil {
		rec := &record.Recorder{ResponseWriter: w}
		g.config.OnRefused(rec.Writer(), r, v)
		if rec.Responded() {
			return
		}
	}
	d := v.document()
	d.Write(w, r, make([]string, 3))
}
