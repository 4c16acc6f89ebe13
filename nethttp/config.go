package nethttp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
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
	// charged, Observe is not called, and no fields are set. Nil skips nothing. Whatever
	// a client can write to be skipped has no limit; for paths, see the package
	// documentation on routers.
	Skip func(*http.Request) bool

	// Permit reports whether a request may come in at all. If not, it is refused with
	// status 403 and the error [ErrForbidden], before any rule is applied: nothing is
	// charged. It is called after Skip, and for CORS preflights too, so it should not
	// depend on credentials. Nil permits everything.
	//
	// [keyfuncs.In] makes it an allowlist of networks, [keyfuncs.NotIn] a blocklist. Both
	// return false, and so refuse, if in doubt about the client's address.
	Permit func(*http.Request) bool

	// Preflight, if not nil, answers CORS preflights, which are requests with the method
	// OPTIONS, an Origin and an Access-Control-Request-Method. It is called after Skip
	// and Permit, instead of the handler behind the guard. Nothing is charged and no fields
	// are set. If it writes nothing, the guard answers 204. Observe gets a verdict with
	// status 204.
	//
	// Anyone can send such a request, as often as they like, so Preflight must not do
	// more than a preflight needs.
	//
	// If Preflight is nil, preflights are charged like other requests. Usually none
	// arrive, because CORS middleware belongs outside the guard and answers them there.
	// Otherwise note that browsers send them without credentials: keys by user or cookie
	// refuse them with 400, and after a preflight that is charged, a MinInterval
	// refuses the request that follows it.
	Preflight http.Handler

	// KeyErrorStatus is the status of the refusal if a rule's Key returns an error
	// or an empty key: 400 or 403. 0 means 400. It is not used for
	// [keyfuncs.ErrProgram], which has status 500.
	KeyErrorStatus int

	// Fields sets the fields that describe the limits to clients. Nil means
	// [Draft11].
	Fields Fields

	// NoFields omits these fields. Refusals still have Retry-After. Fields must be nil.
	NoFields bool

	// OnRefused, if not nil, writes refusals of every status instead of the guard.
	// The header already has the limit's fields, Retry-After and Cache-Control:
	// no-store. OnRefused should write the verdict's status and a body. If it writes
	// nothing, the guard writes the refusal.
	OnRefused func(http.ResponseWriter, *http.Request, Verdict)

	// Observe, if not nil, is called with each verdict before the response is
	// written, for logs and metrics. It is not called for requests that are skipped
	// or cost nothing.
	Observe func(*http.Request, Verdict)

	// Logger gets a record at level WARN of a fault of configuration, once for each kind: no request
	// of a rule has had a key for a minute, or the key is the address of a proxy, behind which all
	// clients share it. No record has a key. Nil means [slog.Default];
	// slog.New(slog.DiscardHandler) turns it off.
	Logger *slog.Logger

	// ObserveOnly is shadow mode, for trying limits before they are enforced. Check
	// decides, charges, and calls Observe with the verdict as it would have been,
	// but returns one that admits and sets no fields, even after an error. Preflight is
	// not called: preflights get to the handler behind the guard.
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

	// Limiter decides. It is required, unless there is a Limit.
	Limiter *core.Limiter

	// Limit, in the place of Limiter, has the limiters of a document: that of the request's
	// PlanName and key. All rules of a guard that have a Limit need one [limits.Book], whose
	// document they get at the same instant. The names of policies in it should differ between
	// the limits of a guard: New sees only those of the default plans, as of now.
	Limit *limits.Limit

	// PlanName returns the name of a request's plan, for Limit. If PlanName is nil or returns
	// an empty name, the document's default applies, as it does for a plan that the document
	// does not have.
	PlanName func(*http.Request) string

	// Key returns the key that is charged. It is required; there is no default. If it returns
	// an error or an empty key, the request is refused.
	Key keyfuncs.Func

	// Plan chooses another limiter for a request, such as a larger one for paying
	// customers. key is what is charged, which Key returned. It has the form that package keyfuncs describes, such as "0:anna" by
	// [keyfuncs.First]. Make the limiters once, with Limiter.With, and look them up here.
	// If Plan is nil or returns nil, Limiter is used, which should therefore be the
	// smallest plan. A limiter with another name or store is an error of the program:
	// the request is refused with status 500. It is not for a Limit, which has plans.
	Plan func(r *http.Request, key string) *core.Limiter

	// Cost returns the number of units that a request is charged. If it is 0, the
	// rule does not apply: Key is not called, and the limiter is not asked. A
	// negative number is an error of the program: the request is refused with status
	// 500. A nil Cost means 1. If it depends on the path, see the package documentation
	// on routers.
	Cost func(*http.Request) int64

	// Settle returns the number of units that the request finally cost, 0 or more,
	// when the handler is done. If they are fewer than were charged, the rest is
	// returned as far as it still counts; if they are more, they are charged as far
	// as there is room. After a negative number, which is an error of the program,
	// the charge stands. If Settle is nil, the charge stands, and if all rules have
	// a nil Settle, the guard does not wrap the response.
	//
	// Warning: clients have a say in the outcome. What Settle gives back for an outcome
	// that a client can cause is free of charge, such as 5xx behind a reverse proxy: a
	// client that hangs up, or sends what the upstream rejects, gets 502 or 504 for
	// as many requests as it likes. Give back only for outcomes that are meant to be free,
	// such as a successful login, not for everything but some.
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
		field, limiter := rule.own()
		switch {
		case rule.Limit != nil && rule.Limiter != nil:
			fault(errors.New("Limiter is set too: remove one of them"), "Rules[%d].Limit", i)
		case rule.Limit != nil && rule.Plan != nil:
			fault(errors.New("the plans are those of the document: remove it, or use PlanName"), "Rules[%d].Plan", i)
		case rule.Limit == nil && rule.PlanName != nil:
			fault(errors.New("it is for Limit: remove it, or use Plan"), "Rules[%d].PlanName", i)
		}
		if limiter == nil {
			fault(errors.New("it is nil: make one with core.New"), "Rules[%d].Limiter", i)
			continue
		}
		for j, other := range c.Rules[:i] {
			_, beside := other.own()
			if beside == nil {
				continue
			}
			for _, err := range clashes(beside, limiter) {
				fault(fmt.Errorf("with Rules[%d]: %w", j, err), "Rules[%d].%s", i, field)
			}
			if rule.Limit != nil && other.Limit != nil && rule.Limit.Book() != other.Limit.Book() {
				fault(fmt.Errorf("with Rules[%d]: the limits are of different books", j), "Rules[%d].Limit", i)
			}
		}
	}
	if s := c.KeyErrorStatus; s != 0 && s != http.StatusBadRequest && s != http.StatusForbidden {
		fault(fmt.Errorf("%d is neither 400 nor 403, nor 0 for 400", s), "KeyErrorStatus")
	}
	if c.NoFields && c.Fields != nil {
		fault(errors.New("Fields is set too: remove one of them"), "NoFields")
	}
	return errors.Join(faults...)
}

// own returns the field of the rule that is its limit, and the limiter that applies unless
// there is a plan, as of now.
func (rule *Rule) own() (field string, l *core.Limiter) {
	if rule.Limit != nil {
		return "Limit", rule.Limit.Book().View().Default(rule.Limit)
	}
	return "Limiter", rule.Limiter
}

// name returns the name of the limiters.
func (rule *Rule) name() string {
	if rule.Limit != nil {
		return rule.Limit.Name()
	}
	return rule.Limiter.Name()
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
