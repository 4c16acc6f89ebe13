package nethttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
)

// A Verdict is what a guard has decided about a request. Its fields are for reading. One that refuses is an error, so
// that frameworks can carry it. No print of a Verdict has the key, whatever the verb.
type Verdict struct {
	// Status is the status of the refusal: 400, 429, 500 or 503, as the package's documentation says. 0 admits.
	Status int

	// Limiter is the name of the limiter or the slots that decided: the strictest if the request is admitted, or ""
	// if the store has not decided.
	Limiter string

	// Policy is the name of the limiter's policy that decided, or "" if slots or nobody did.
	Policy string

	// RetryAfter is how long the client should wait. 0 means that it is not known, or that waiting cannot help.
	RetryAfter time.Duration

	// Decision is that of the rates, and the zero Decision without them. Its Answers are those of all rates and slots.
	// Its Allowed and Policy are of the rates only, also if slots have refused, and its units were given back.
	Decision core.Decision

	// ObserveOnly reports that the rule that decided only observes: the request was not refused by it.
	ObserveOnly bool

	// Err is why there is no decision, or nil. It has no key, unless your own Key function puts one into its error.
	Err error

	from **engine.Admission // of which package fmt prints an address, whatever the verb
}

// verdict returns the verdict of an admission, of which it makes a copy.
func verdict(admission *engine.Admission, observeOnly bool) *Verdict {
	all := &struct {
		Verdict
		admission   engine.Admission
		admissionAt *engine.Admission
	}{admission: *admission}
	all.admissionAt = &all.admission
	all.fill(&all.admissionAt, observeOnly)
	return &all.Verdict
}

// fill makes a verdict of an admission.
func (v *Verdict) fill(from **engine.Admission, observeOnly bool) {
	admission := *from
	*v = Verdict{
		Status: admission.Status, Limiter: admission.Limiter, ObserveOnly: observeOnly, Err: admission.Err, from: from,
	}
	v.Decision.Backend(&admission.Decision) // which sets the decision
	if admission.Stage != engine.SlotsFull && admission.Err == nil {
		v.Policy = v.Decision.Policy
	}
	if admission.RetryAfter != core.Never {
		v.RetryAfter = admission.RetryAfter
	}
}

// admission returns what the verdict was made of. A Verdict that no guard has made is of nothing.
func (v *Verdict) admission() *engine.Admission {
	if v.from == nil {
		return new(engine.Admission)
	}
	return *v.from
}

// Key returns who was counted by the limiter or the slots that decided, or "" if nobody was. Keys may be personal
// data, or secrets.
func (v *Verdict) Key() string { return v.admission().Key() }

// Error describes the verdict, without the key.
func (v *Verdict) Error() string {
	if v.Status == 0 {
		return "headgate: admitted"
	}
	if v.Err != nil {
		return v.Err.Error()
	}
	text := fmt.Sprintf("headgate: %q refuses", v.Limiter)
	if v.Policy != "" && v.Policy != v.Limiter { // the only policy of a limiter has its name
		text += fmt.Sprintf(" by its policy %q", v.Policy)
	}
	text += fmt.Sprintf(" with status %d", v.Status)
	if v.RetryAfter != 0 {
		text += fmt.Sprintf(": retry in %v", v.RetryAfter)
	}
	return text
}

// Unwrap returns Err, for [errors.Is].
func (v *Verdict) Unwrap() error { return v.Err }

// VerdictFrom returns the verdict about a handler's request, of the innermost guard with [Config].KeepVerdict. It
// reports false if there is none.
func VerdictFrom(ctx context.Context) (*Verdict, bool) {
	for passage := passageOf(ctx); passage != nil; passage = passageOf(passage.context.Context) {
		if passage.verdict != nil {
			return passage.verdict, true
		}
	}
	return nil, false
}

// An Outcome is how a request was handled, for [Rate].Settle.
type Outcome struct {
	Status int   // of the response; 500 if the handler has panicked and written none
	Bytes  int64 // of the body, as the handler wrote them
	Cost   int64 // units, as SetCost said, or else as charged
}

// FailuresOnly is for [Rate].Settle: responses with a status from 400 on are charged, and others given back. So a
// limit on logins counts wrong passwords. Attempts at the same time each need a unit until they are handled.
func FailuresOnly(_ *http.Request, outcome Outcome) int64 {
	if outcome.Status < http.StatusBadRequest {
		return 0
	}
	return outcome.Cost
}

// BytesWritten is for [Rate].Settle: the units are the bytes of the body. Without a Cost, 1 unit is charged to get in.
func BytesWritten(_ *http.Request, outcome Outcome) int64 { return outcome.Bytes }

// SetCost says how many units the request of a handler has used, under the rule with this Limiter: that of the rule,
// not what its Plan made of it. It is to be called with the context of the handler's request, before the handler
// returns; the last call counts. It returns [core.ErrInvalid] for negative units, and [core.ErrSettled] if no rule of
// the limiter with Cost or Settle has charged the request, or if the request has been handled. It is safe for
// concurrent use.
func SetCost(ctx context.Context, limiter *core.Limiter, units int64) error {
	if units < 0 {
		return fmt.Errorf("%w: a cost of %d units", core.ErrInvalid, units)
	}
	for passage := passageOf(ctx); passage != nil; passage = passageOf(passage.context.Context) {
		if passage.setCost(limiter, units) {
			return nil
		}
	}
	return core.ErrSettled
}
