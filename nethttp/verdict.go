package nethttp

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/headgate/headgate/core"
)

// retryUnavailable is the Retry-After, in seconds, of a refusal because the store
// could not answer.
const retryUnavailable = "5"

// A Verdict is a guard's answer to a request. The zero Verdict refuses.
type Verdict struct {
	// Decision is the answer of the limiters. It is the zero Decision if none was
	// asked, and if Err is not nil. Its answers are in the order of the rules.
	//
	// Do not settle or refund it if a rule has Settle: the guard does.
	Decision core.Decision

	// Err is why there is no decision: the error of a key function or of the
	// store, or what is wrong with the rule. It is nil for a refusal by a limit. It
	// is for logs: clients are not told.
	Err error

	guard    *Guard
	sheet    *sheet // what was asked; nil: nothing
	bill     *bill  // what there is to settle; nil: nothing
	status   int    // of the refusal
	admitted bool
	silent   bool // sets no fields
}

// Status returns 0 if the request is admitted, and otherwise the status of the
// refusal: 400 or 403, 429, 500 or 503, as listed in the package's description.
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

// Policies returns the policies of the limiters that were asked: the i-th gave the
// i-th answer of Decision. It is for functions of type [Fields].
func (v Verdict) Policies() []core.Policy {
	if v.sheet == nil {
		return nil
	}
	return slices.Clone(v.sheet.policies)
}

// SetFields sets what the verdict means for the header of the response, be it
// admitted or refused: the fields of [Config].Fields, and for a refusal Retry-After
// and Cache-Control: no-store. A refusal has no Retry-After if no waiting helps.
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
