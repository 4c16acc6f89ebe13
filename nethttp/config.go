package nethttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
)

// maxRules is the number of limiters that core.AllowAll asks together.
const maxRules = 8

// Config is what a Guard is made of. Write it with the names of the fields. The
// functions in it are called by many goroutines at once, and a panic in one passes
// through the guard.
type Config struct {
	_ struct{}

	// Rules are the limits, 1 to 8 of them. They are asked together, all or
	// nothing, so their limiters have one store; and they have different names,
	// as have all their policies, for clients tell them apart by name.
	Rules []Rule

	// Skip reports that a request passes without being asked, charged, observed or
	// told about limits. Nil skips nothing.
	Skip func(*http.Request) bool

	// CountPreflights also asks for CORS preflights: requests with the method
	// OPTIONS, an Origin and an Access-Control-Request-Method. False skips them,
	// because browsers send them unasked, without credentials.
	CountPreflights bool

	// KeyErrorStatus is the status of a request for which a rule's Key gives an
	// error or an empty key: 400 or 403. 0 means 400.
	KeyErrorStatus int

	// Fields says in which fields clients are told about limits. Nil means
	// [Draft11].
	Fields Fields

	// OnDenied writes refusals instead of the guard, of every status. The header
	// has the limit's fields, Retry-After and Cache-Control: no-store already;
	// OnDenied writes the status, which should be the verdict's, and the body. If
	// it writes nothing, the guard does, as if OnDenied were nil.
	OnDenied func(http.ResponseWriter, *http.Request, Verdict)

	// Observe is told each verdict, before anything is written: for logs and
	// metrics. It is not told of requests that are skipped or cost nothing.
	Observe func(*http.Request, Verdict)

	// ObserveOnly is shadow mode, to try limits before they are enforced. Check
	// decides, charges and tells Observe the verdict as it would have been, but
	// returns one that admits and sets no fields, errors included.
	ObserveOnly bool

	// OnSettled is told each correction of a charge by [Rule].Settle: how many
	// units found no room any more and were not charged, and the error if the
	// charge could not be corrected and stays what it was, as far as is known.
	OnSettled func(r *http.Request, uncovered int64, err error)
}

// A Rule is one limit: who is charged, how much, by which limiter. Write it with
// the names of the fields.
type Rule struct {
	_ struct{}

	// Limiter decides. Required.
	Limiter *core.Limiter

	// Key says who is charged. Required: there is no default. A request for which
	// it gives an error or an empty key is refused. It is needed also where an adapter
	// gives the keys, as ginmw.LimitBy does, for uses of the guard without that.
	Key keyfuncs.Func

	// Plan chooses another limiter for a request: more for those who pay. Make
	// the limiters once, with Limiter.With, and look them up here. Nil, the
	// function or what it returns, means Limiter; so let that be the smallest plan.
	// A limiter of another name or store is an error of the program: the request is
	// refused with status 500.
	Plan func(*http.Request) *core.Limiter

	// Cost is the number of units that a request is charged. With 0 the rule does
	// not take part: its limiter and key are not asked. A negative number is an
	// error of the program: the request is refused with status 500. Nil means 1.
	Cost func(*http.Request) int64

	// Settle says, when the handler is done, how many units the request cost after
	// all: 0 or more. Fewer than were charged are given back as far as they still
	// count, more are charged as far as there is room. Nil means that the charge
	// stands. Only guards with such a rule watch the response.
	//
	// The request is the one that the handler was given. Settle runs before the
	// response is complete, so that a client may wait for it. The fields of the
	// response were set before the handler ran: they tell the state before settling.
	Settle func(*http.Request, Outcome) int64
}

// A ConfigError is one thing that is wrong with a Config. [New] joins all of them;
// errors.As finds the first.
type ConfigError struct {
	Field string // as in "Rules[0].Key"
	Err   error  // what is wrong, and what to do instead
}

// Error names the field and what is wrong with it.
func (e *ConfigError) Error() string { return "headgate: guard: " + e.Field + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// validate returns everything that is wrong.
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

// clashes returns the reasons why two limiters cannot be asked together.
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
