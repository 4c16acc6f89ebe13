package nethttp

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// retryUnavailable is the Retry-After, in seconds, of status 503.
const retryUnavailable = "5"

// A Verdict is a guard's answer to a request: the answer of its limiters, and then of its slots.
// The zero Verdict refuses with status 503. Copies of a verdict hold the same slots.
type Verdict struct {
	// Decision is the answer of the limiters, in the order of the rules. It is the zero Decision if
	// no limiter was asked, and if Err is not nil. See also [Verdict.Limiter]. If it admits, but
	// slots have refused, its units were given back.
	//
	// If a rule with Report has refused, it has the answers of those rules alone.
	//
	// Do not settle or refund it if a rule has Settle or slots, because the guard does.
	Decision core.Decision

	// Err is the reason why there is no decision. It is core.ErrClosed for closed slots,
	// or an error of a Key function or of the store. If the client has hung up, it is the
	// error of the request's context. It may also report an invalid result of a rule's function.
	// Errors of a rule's functions are wrapped in one that names the rule. So test them with
	// [errors.Is]. Err is nil for a refusal by a limit. It is for logs; the guard never sends it to
	// clients.
	Err error

	// Waited is how long the request has waited for slots, with the calls of the store. It is 0
	// without [Config].Wait.
	Waited time.Duration

	guard    *Guard
	sheet    *sheet // nil: not all rules took part with their own limiters
	stay     *stay  // nil: there is nothing to end
	status   int    // of the refusal
	retry    int    // Retry-After in seconds, of a refusal for want of slots
	admitted bool
	silent   bool // sets no fields
}

// Pass returns a verdict that admits a request of which nothing is limited.
func Pass() Verdict { return Verdict{admitted: true, silent: true} }

// VerdictOf returns the verdict about a decision that was made without a guard. It is for a server
// of another protocol, or without the requests of package http. Such a server then answers as a
// guard does: with [Verdict.SetFields], [Verdict.Status] and [Verdict.Problem]. If err is not nil,
// there is no decision, and the status is 503.
func VerdictOf(d core.Decision, err error) Verdict {
	v := Verdict{guard: unguarded, Err: err, status: http.StatusServiceUnavailable}
	if err == nil {
		v.Decision, v.admitted, v.status = d, d.Allowed, http.StatusTooManyRequests
	}
	return v
}

// unguarded is the guard of verdicts that are of none: fields are those of an empty configuration.
var unguarded = new(Guard)

// Status returns 0 if the request is admitted. Otherwise it must not get to the handler behind the
// guard, and [Guard.Refuse] answers it. Status then returns the status of the refusal, which is
// 400, 429, 500 or 503 as listed in the package documentation.
func (v Verdict) Status() int { return statusOf(v.admitted, v.status) }

// code is Status without a copy.
func (v *Verdict) code() int { return statusOf(v.admitted, v.status) }

func statusOf(admitted bool, status int) int {
	switch {
	case admitted:
		return 0
	case status == 0: // the zero Verdict
		return http.StatusServiceUnavailable
	default:
		return status
	}
}

// Limiter returns the name of the limiter or slots that the verdict is by, for logs and metrics.
// These are the slots that refused, or else Decision.Limiter. After an error of a rule's function,
// it is the name of the rule. It is empty if nothing was asked for another reason, or the store
// returned an error.
func (v Verdict) Limiter() string {
	var rule *ruleError
	if errors.As(v.Err, &rule) {
		return rule.name
	}
	if o, full := v.full(); full {
		return o.Slots
	}
	return v.Decision.Limiter
}

// Full returns the occupancy of the slots that refused, and whether any did.
func (v Verdict) Full() (core.Occupancy, bool) { return v.full() }

// full is Full without a copy.
func (v *Verdict) full() (core.Occupancy, bool) {
	if v.Err == nil && !v.admitted && v.stay != nil {
		for _, o := range v.stay.occupied {
			if o.Held >= 0 {
				return o, true
			}
		}
	}
	return core.Occupancy{}, false
}

// asked reports whether limiters were asked and have answered.
func (v *Verdict) asked() bool { return v.Decision.Len() > 0 }

// occupancies returns those of the slots that were asked for, in the order of the rules, with Held
// -1 where it is unknown.
func (v *Verdict) occupancies() []core.Occupancy {
	if v.stay == nil {
		return nil
	}
	return v.stay.occupied
}

// SetFields sets the fields of the response to an admitted or refused request, as [Config].Fields
// selects them. For a refusal it also sets Retry-After (RFC 9110, section 10.2.3) and
// Cache-Control: no-store. A refusal has no Retry-After if waiting does not help.
func (v Verdict) SetFields(h http.Header) {
	if v.admitted {
		v.setLimits(h, nil)
		return
	}
	var b block
	b.make(refusalFields)
	v.setRefusal(h, &b)
}

// setLimits sets the fields that describe the limits, in a block of their own if b is nil.
func (v *Verdict) setLimits(h http.Header, b *block) {
	if !v.asked() && len(v.occupancies()) == 0 || v.silent || v.guard.config.NoFields {
		return
	}
	if fields := v.guard.config.Fields; fields != nil {
		fields(h, *v)
		return
	}
	if b != nil {
		v.draft11(h, b)
		return
	}
	var own block
	own.make(2)
	v.draft11(h, &own)
}

// setRefusal sets the fields of a refusal.
func (v *Verdict) setRefusal(h http.Header, b *block) {
	v.setLimits(h, b)
	if after := v.retryAfter(b); after != "" {
		b.set(h, "Retry-After", after)
	} else {
		delete(h, "Retry-After")
	}
	b.set(h, "Cache-Control", "no-store")
}

func (v *Verdict) retryAfter(b *block) string {
	switch status := v.code(); {
	case status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable:
		return ""
	case v.retry > 0:
		return strconv.Itoa(v.retry)
	case !v.asked() || v.Decision.Allowed:
		return retryUnavailable
	case v.Decision.RetryAfter == core.Never:
		return ""
	}
	start := len(b.text)
	b.text = strconv.AppendInt(b.text, seconds(v.Decision.RetryAfter), 10)
	return b.cut(start)
}
