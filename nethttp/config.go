package nethttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
)

// maxRules is the largest number of charges that core.AllowAll accepts.
const maxRules = 8

// Config configures a [Guard]. Literals must name the fields. The functions in it must be
// safe for concurrent use. The guard does not recover their panics.
type Config struct {
	_ struct{}

	// Rules are the limits, 1 to 8. They are applied together, all or nothing, so
	// their limiters must have the same store. The names of the limiters must differ,
	// and so must the names of all their policies, by which clients identify them.
	Rules []Rule

	// Skip reports whether to admit a request without applying any rule: nothing is
	// charged, Observe is not called, and no fields are set. Nil skips nothing.
	Skip func(*http.Request) bool

	// Deny reports whether to refuse a request with status 403 and the error
	// [ErrDenied], before any rule is applied: nothing is charged. It is called after
	// Skip, and for CORS preflights too, so it should not depend on credentials. Nil
	// denies nothing.
	//
	// [keyfuncs.In] and [keyfuncs.NotIn] return false if in doubt about the address.
	// That is right for Skip; for Deny, which should refuse then, negate them with
	// [keyfuncs.Unless].
	Deny func(*http.Request) bool

	// CountPreflights applies the rules to CORS preflights too: requests with the
	// method OPTIONS, an Origin and an Access-Control-Request-Method. If false, they
	// are skipped, because browsers send them on their own, without credentials.
	CountPreflights bool

	// KeyErrorStatus is the status of the refusal if a rule's Key returns an error
	// or an empty key: 400 or 403. 0 means 400. It is not used for
	// [keyfuncs.ErrProgram], which has status 500.
	KeyErrorStatus int

	// Fields sets the fields that describe the limits to clients. Nil means
	// [Draft11].
	Fields Fields

	// OnDenied, if not nil, writes refusals of every status instead of the guard.
	// The header already has the limit's fields, Retry-After and Cache-Control:
	// no-store. OnDenied should write the verdict's status and a body. If it writes
	// nothing, the guard writes the refusal.
	OnDenied func(http.ResponseWriter, *http.Request, Verdict)

	// Observe, if not nil, is called with each verdict before the response is
	// written, for logs and metrics. It is not called for requests that are skipped
	// or cost nothing.
	Observe func(*http.Request, Verdict)

	// ObserveOnly is shadow mode, for trying limits before they are enforced. Check
	// decides, charges, and calls Observe with the verdict as it would have been,
	// but returns one that admits and sets no fields, even after an error.
	ObserveOnly bool

	// OnSettled, if not nil, is called after each correction of a charge by
	// [Rule].Settle. uncovered is the number of units for which there was no room,
	// and which were not charged. An error means that the charge was not corrected,
	// as far as is known.
	OnSettled func(r *http.Request, uncovered int64, err error)
}

// A Rule is one limit: the limiter, the key that is charged, and the cost. Literals must
// name the fields. Its functions must be safe for concurrent use.
type Rule struct {
	_ struct{}

	// Limiter decides. It is required.
	Limiter *core.Limiter

	// Key returns the key that is charged. It is required; there is no default. If
	// it returns an error or an empty key, the request is refused. It is required
	// even if an adapter passes other keys, as ginmw.LimitBy does, because the guard
	// can also be used without that adapter.
	Key keyfuncs.Func

	// Plan chooses another limiter for a request, such as a larger one for paying
	// customers. Make the limiters once, with Limiter.With, and look them up here. If
	// Plan is nil or returns nil, Limiter is used, which should therefore be the
	// smallest plan. A limiter with another name or store is an error of the program:
	// the request is refused with status 500.
	Plan func(*http.Request) *core.Limiter

	// Cost returns the number of units that a request is charged. If it is 0, the
	// rule does not apply: Key is not called, and the limiter is not asked. A
	// negative number is an error of the program: the request is refused with status
	// 500. A nil Cost means 1.
	Cost func(*http.Request) int64

	// Settle returns the number of units that the request finally cost, 0 or more,
	// when the handler is done. If they are fewer than were charged, the rest is
	// returned as far as it still counts; if they are more, they are charged as far
	// as there is room. After a negative number, which is an error of the program,
	// the charge stands. If Settle is nil, the charge stands, and if all rules have
	// a nil Settle, the guard does not wrap the response.
	//
	// The request is the one that was passed to the handler. Settle runs before the
	// response is complete, so a client may have to wait for it. The fields of the
	// response show the state before the handler ran.
	Settle func(*http.Request, Outcome) int64
}

// A ConfigError describes one fault of a [Config]. [New] returns all faults joined;
// errors.As finds the first.
type ConfigError struct {
	Field string // such as "Rules[0].Key"
	Err   error  // the fault, and what to do instead
}

// Error returns the field and the fault.
func (e *ConfigError) Error() string { return "headgate: guard: " + e.Field + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// validate returns all faults, joined.
func (c *Config) validate() error {
	var faults []error
	fault := func(err error, format string, args ...any) {
		faults = append(faults, &ConfigError{Field: fmt.Sprintf(format, args...), Err: err})
	}
	if n := len(c.Rules); n == 0 || n > maxRules {
		fault(fmt.Errorf("a guard has 1 to %d rules, not %d", maxRules, n), "Rules")
	}
	for i, rule := range c.Rules {
		if rule.Key == nil {
			fault(errors.New("it is nil: say who is charged, with a function of package keyfuncs"), "Rules[%d].Key", i)
		}
		if rule.Limiter == nil {
			fault(errors.New("it is nil: make one with core.New"), "Rules[%d].Limiter", i)
			continue
		}
		for j, other := range c.Rules[:i] {
			if other.Limiter == nil {
				continue
			}
			for _, err := range clashes(other.Limiter, rule.Limiter) {
				fault(fmt.Errorf("with Rules[%d]: %w", j, err), "Rules[%d].Limiter", i)
			}
		}
	}
	if s := c.KeyErrorStatus; s != 0 && s != http.StatusBadRequest && s != http.StatusForbidden {
		fault(fmt.Errorf("%d is neither 400 nor 403, nor 0 for 400", s), "KeyErrorStatus")
	}
	return errors.Join(faults...)
}

// clashes returns the reasons why two limiters cannot be used together.
func clashes(a, b *core.Limiter) []error {
	var errs []error
	if a.Name() == b.Name() {
		errs = append(errs, fmt.Errorf("both limiters are named %q: they would share their state", a.Name()))
	} else if a.Store() != b.Store() {
		errs = append(errs, fmt.Errorf("the limiters %q and %q have different stores: use one, or a guard for each", a.Name(), b.Name()))
	}
	for _, p := range b.Policies() {
		same := func(q core.Policy) bool { return p.Name() == q.Name() }
		if a.Name() != b.Name() && slices.ContainsFunc(a.Policies(), same) {
			errs = append(errs, fmt.Errorf("both limiters have a policy named %q: clients could not tell them apart", p.Name()))
		}
	}
	return errs
}
