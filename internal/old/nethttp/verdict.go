// Package nethttp has the fields and refusals of headgated, and the guard as it was before the names changed:
// test/conformance compares package nethttp with it.
package nethttp

import (
	"net/http"
	"strconv"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/problem"
)

// retryUnavailable is the Retry-After, in seconds, of status 503.
const retryUnavailable = "5"

// ProblemType is the media type of [Verdict.Problem] (RFC 9457).
const ProblemType = problem.Type

// A Verdict is the answer to a request: that of its limiters.
type Verdict struct {
	Decision core.Decision // in the order of the rules
	Err      error         // why there is no decision; it never gets to clients

	guard    *Guard
	charges  []charged
	status   int // of the refusal
	admitted bool
	silent   bool // sets no fields
}

// VerdictOf returns the verdict about a decision that was made without a guard. If err is not nil, there is no
// decision, and the status is 503.
func VerdictOf(d core.Decision, err error) Verdict {
	v := Verdict{guard: unguarded, Err: err, status: http.StatusServiceUnavailable}
	if err == nil {
		v.Decision, v.admitted, v.status = d, d.Allowed, http.StatusTooManyRequests
	}
	return v
}

// unguarded is the guard of verdicts that are of none.
var unguarded = new(Guard)

// Status returns 0 if the request is admitted, or else the status of the refusal.
func (v Verdict) Status() int {
	if v.admitted {
		return 0
	}
	return v.status
}

// SetFields sets the fields of the response to an admitted or refused request. For a refusal it also sets
// Retry-After (RFC 9110, section 10.2.3) and Cache-Control: no-store. A refusal has no Retry-After if waiting does
// not help.
func (v Verdict) SetFields(h http.Header) {
	if !v.silent {
		Draft11(h, v)
	}
	if v.admitted {
		return
	}
	if after := v.retryAfter(); after != "" {
		h["Retry-After"] = []string{after}
	} else {
		delete(h, "Retry-After")
	}
	h["Cache-Control"] = []string{"no-store"}
}

func (v *Verdict) retryAfter() string {
	switch {
	case v.status != http.StatusTooManyRequests && v.status != http.StatusServiceUnavailable:
		return ""
	case v.Decision.Len() == 0 || v.Decision.Allowed:
		return retryUnavailable
	case v.Decision.RetryAfter == core.Never:
		return ""
	}
	return strconv.FormatInt(seconds(v.Decision.RetryAfter), 10)
}

// Problem returns the body of the refusal, a problem document (RFC 9457), whose media type is [ProblemType]. For
// status 429 it is of the type quota-exceeded of draft-ietf-httpapi-ratelimit-headers-11, and names the policies
// that refused. Otherwise it contains no more than the status. It is nil if nothing is refused.
func (v Verdict) Problem() []byte {
	if v.admitted {
		return nil
	}
	return v.document().Body
}

func (v *Verdict) document() problem.Document {
	if v.status != http.StatusTooManyRequests {
		return problem.Blank(v.status)
	}
	var refused []string
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); !a.Allowed && !v.hides(a.Limiter) {
			refused = append(refused, a.Policy)
		}
	}
	return problem.QuotaExceeded(refused...)
}
