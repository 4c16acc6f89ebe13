// Package nethttp has the fields and refusals of headgated.
package nethttp

import (
	"net/http"
	"strconv"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/problem"
)

// retryUnavailable is the Retry-After, in seconds, of status 503.
const retryUnavailable = "5"

// ProblemType is the media type of [Verdict.Problem] (RFC 9457).
const ProblemType = problem.Type

// A Verdict is the answer to a request. The zero Verdict is of no decision: 503.
type Verdict struct {
	Decision   *backend.Decision // nil: there is none
	Allowed    bool
	RetryAfter time.Duration
}

// VerdictOf returns the verdict about a decision, or if err is not nil about none.
func VerdictOf(d *backend.Decision, err error) Verdict {
	if err != nil {
		return Verdict{}
	}
	return Verdict{d, d.Allowed, d.RetryAfter()}
}

// Status returns 0 if the request is admitted, or else the status of the refusal.
func (v Verdict) Status() int {
	switch {
	case v.Decision == nil:
		return http.StatusServiceUnavailable
	case v.Allowed:
		return 0
	}
	return http.StatusTooManyRequests
}

// SetFields sets the fields of the response to an admitted or refused request. For a refusal it also sets Retry-After
// (RFC 9110, section 10.2.3), unless waiting does not help, and Cache-Control: no-store.
func (v Verdict) SetFields(h http.Header) {
	Draft11(h, v)
	if v.Allowed {
		return
	}
	delete(h, "Retry-After")
	switch {
	case v.Decision == nil:
		h.Set("Retry-After", retryUnavailable)
	case v.RetryAfter != core.Never:
		h.Set("Retry-After", strconv.FormatInt(seconds(v.RetryAfter), 10))
	}
	h.Set("Cache-Control", "no-store")
}

// Problem returns the body of the refusal, a problem document (RFC 9457), whose media type is [ProblemType]. For
// status 429 it is of the type quota-exceeded of draft-ietf-httpapi-ratelimit-headers-11, and names the policies that
// refused.
func (v Verdict) Problem() []byte {
	if v.Decision == nil {
		return problem.Blank(http.StatusServiceUnavailable).Body
	}
	var refused []string
	for i := range v.Decision.Len() {
		if a := v.Decision.At(i); !a.Allowed {
			refused = append(refused, a.Policy)
		}
	}
	return problem.QuotaExceeded(refused...).Body
}
