package nethttp

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/headgate/headgate/core"
)

// retryUnavailable is the Retry-After, in seconds, of status 503.
const retryUnavailable = "5"

// A Verdict is a guard's answer to a request. The zero Verdict refuses with status 503.
type Verdict struct {
	// Decision is the answer of the limiters, in the order of the rules. It is the
	// zero Decision if no limiter was asked, and if Err is not nil.
	//
	// Do not settle or refund it if a rule has Settle, because the guard does.
	Decision core.Decision

	// Err is the reason why there is no decision: [ErrDenied], an error of a Key
	// function or of the store, or an invalid result of a Cost or Plan function. Errors of a rule's
	// functions are wrapped in one that names the rule, so test them with
	// [errors.Is]. Err is nil for a refusal by a limit. It is for logs; the guard
	// never sends it to clients.
	Err error

	guard    *Guard
	sheet    *sheet // of the limiters that were asked; nil: none
	bill     *bill  // nil: nothing to settle
	status   int    // of the refusal
	admitted bool
	silent   bool // sets no fields
}

// Status returns 0 if the request is admitted, and otherwise the status of the
// refusal: 400, 403, 429, 500 or 503, as listed in the package documentation.
func (v Verdict) Status() int { return v.code() }

func (v *Verdict) code() int {
	switch {
	case v.admitted:
		return 0
	case v.status == 0: // the zero Verdict
		return http.StatusServiceUnavailable
	default:
		return v.status
	}
}

// Policies returns the policies of the limiters that were asked, in the order of the
// answers of Decision. It is for functions of type [Fields]. It is nil if no limiter was
// asked.
func (v Verdict) Policies() []core.Policy {
	if v.sheet == nil {
		return nil
	}
	return slices.Clone(v.sheet.policies)
}

// SetFields sets the fields of the response to an admitted or refused request: those of
// [Config].Fields, and for a refusal Retry-After (RFC 9110, section 10.2.3) and
// Cache-Control: no-store. A refusal has no Retry-After if waiting does not help.
func (v Verdict) SetFields(h http.Header) {
	var values valueArena
	v.setFields(h, &values)
}

func (v *Verdict) setFields(h http.Header, values *valueArena) {
	if v.sheet != nil && !v.silent {
		if fields := v.guard.config.Fields; fields != nil {
			fields(h, *v)
		} else {
			v.draft11(h, values)
		}
	}
	if v.admitted {
		return
	}
	if after := v.retryAfter(); after != "" {
		values.set(h, "Retry-After", after)
	} else {
		delete(h, "Retry-After")
	}
	values.set(h, "Cache-Control", "no-store")
}

func (v *Verdict) retryAfter() string {
	switch v.code() {
	case http.StatusTooManyRequests:
		if v.Decision.RetryAfter != core.Never {
			return strconv.FormatInt(seconds(v.Decision.RetryAfter), 10)
		}
	case http.StatusServiceUnavailable:
		return retryUnavailable
	}
	return ""
}
