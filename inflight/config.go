package inflight

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/occupancy"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
)

// maxRules is the most slots that core.AcquireAll takes together.
const maxRules = 8

// Config configures a [Guard]. Its functions are called from many goroutines at once; a panic
// in one of them propagates through the guard.
type Config struct {
	_ struct{} // composite literals must name the fields

	// Rules are the limits, 1 to 8 of them. A request takes one slot of each rule, all or
	// none, so the slots have different names and one store, except that a limit of this
	// process alone may have a memstore beside the store that all share. Put the limit that
	// is reached most often first.
	Rules []Rule

	// Queue is how many requests may wait in this process for slots of a key, 0 or more. 0
	// means that none waits. In the line of a key that several share, such as all, no user has
	// more requests than the user's own smaller limit leaves room for: the rest wait in the
	// user's line.
	Queue int

	// Wait is the longest time that a request waits. It must be set if Queue is, and should
	// be shorter than the timeouts of clients and proxies: nobody reads the response after
	// that.
	Wait time.Duration

	// Skip reports whether a request passes uncounted, unobserved and without RateLimit
	// fields. Nil skips nothing.
	Skip func(*http.Request) bool

	// KeyErrorStatus is the status of the refusal if a rule's Key returns an error or an empty
	// key: 400 or 403. 0 means 400. It is not used for [keyfuncs.ErrProgram], which has status
	// 500.
	KeyErrorStatus int

	// NoFields omits the fields RateLimit and RateLimit-Policy.
	NoFields bool

	// OnRefused writes refusals in place of the guard. RateLimit fields, Retry-After and
	// Cache-Control: no-store are already in the header; OnRefused writes the status, which
	// should be Verdict.Status, and the body. If it writes nothing, the guard responds as if
	// OnRefused were nil.
	OnRefused func(http.ResponseWriter, *http.Request, Verdict)

	// Observe is called with each verdict, before anything is written: for logs and metrics.
	Observe func(*http.Request, Verdict)

	// ObserveOnly is shadow mode, for trying limits before they are enforced. Requests take
	// slots where there are any, and none waits. Observe gets the verdicts, in which those that
	// would have waited are refused; but Check admits every request, without fields, also
	// after an error.
	ObserveOnly bool
}

// A Rule is one limit: whom it counts, and the slots it takes.
type Rule struct {
	_ struct{} // composite literals must name the fields

	// Slots are the slots of which each request takes one. Required, unless there is a Limit.
	Slots *core.Slots

	// Limit, in the place of Slots, has the slots of a document: those of the request's
	// PlanName and key. All rules of a guard that have a Limit need one [limits.Book], whose
	// document they get at the same instant.
	Limit *limits.Slots

	// PlanName returns the name of a request's plan, for Limit. If PlanName is nil or returns
	// an empty name, the document's default applies, as it does for a plan that the document
	// does not have. It is called again while a request waits, some five times a second.
	PlanName func(*http.Request) string

	// Key returns the key whose requests are counted. Required: there is no default. If it returns an
	// error or an empty key, the request is refused.
	Key keyfuncs.Func

	// Plan returns other slots for a request, such as more for paying customers. key is the
	// one whose requests are counted. Make the slots in advance with Slots.With; Plan only
	// selects. If Plan is nil or returns nil, Slots apply, so Slots should be the smallest plan.
	// Slots with another name or store are a programming error: the request gets a 500. It is
	// not for a Limit, which has plans. It is called again while a request waits, some five times
	// a second, so that a raised plan applies at once; an error then changes nothing.
	Plan func(r *http.Request, key string) *core.Slots

	// Service marks a limit of the service, such as one on all requests together. The client
	// is not at fault, so the refusal is a 503, and the response does not show the limit.
	Service bool
}

// A ConfigError is one error in a Config. [New] joins all of them; errors.As finds the first.
type ConfigError struct {
	Field string // such as "Rules[0].Key"
	Err   error  // what is wrong, and what to do about it
}

// Error returns the field and what is wrong with it.
func (e *ConfigError) Error() string {
	return "headgate: inflight: " + e.Field + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// validate returns all errors in the Config, joined.
func (c *Config) validate() error {
	var faults []error
	add := func(err error, field string, args ...any) {
		faults = append(faults, &ConfigError{Field: fmt.Sprintf(field, args...), Err: err})
	}
	if n := len(c.Rules); n == 0 || n > maxRules {
		add(fmt.Errorf("there must be 1 to %d rules, not %d", maxRules, n), "Rules")
	}
	for i := range c.Rules {
		c.validateRule(i, add)
	}
	if c.Queue < 0 {
		add(fmt.Errorf("it is %d: it must not be negative, and 0 means that none waits", c.Queue), "Queue")
	}
	if c.Wait < 0 || c.Queue > 0 != (c.Wait > 0) {
		add(fmt.Errorf("it is %v: it must be positive with a Queue, and 0 without", c.Wait), "Wait")
	}
	if s := c.KeyErrorStatus; s != 0 && s != http.StatusBadRequest && s != http.StatusForbidden {
		add(fmt.Errorf("it is %d: use 400 or 403, or 0 for 400", s), "KeyErrorStatus")
	}
	return errors.Join(faults...)
}

func (c *Config) validateRule(i int, add func(err error, field string, args ...any)) {
	rule := &c.Rules[i]
	if rule.Key == nil {
		add(errors.New("it is nil: use a function of package keyfuncs"), "Rules[%d].Key", i)
	}
	switch {
	case rule.Limit != nil && rule.Slots != nil:
		add(errors.New("there are Slots too: remove one of them"), "Rules[%d].Limit", i)
	case rule.Limit != nil && rule.Plan != nil:
		add(errors.New("the plans are those of the document: remove it, or use PlanName"), "Rules[%d].Plan", i)
	case rule.Limit == nil && rule.PlanName != nil:
		add(errors.New("it is for Limit: remove it, or use Plan"), "Rules[%d].PlanName", i)
	}
	field, slots := rule.own()
	if slots == nil {
		add(errors.New("they are nil: make them with core.NewSlots"), "Rules[%d].Slots", i)
		return
	}
	for j := range c.Rules[:i] {
		other := &c.Rules[j]
		_, beside := other.own()
		if err := occupancy.Clash(beside, slots); err != nil {
			add(fmt.Errorf("with Rules[%d]: %w", j, err), "Rules[%d].%s", i, field)
		}
		if rule.Limit != nil && other.Limit != nil && rule.Limit.Book() != other.Limit.Book() {
			add(fmt.Errorf("with Rules[%d]: the limits are of different books", j), "Rules[%d].Limit", i)
		}
	}
}

// own returns the field of the rule that is its limit, and the slots that apply unless there
// is a plan, as of now.
func (rule *Rule) own() (field string, s *core.Slots) {
	if rule.Limit != nil {
		return "Limit", rule.Limit.Book().View().DefaultSlots(rule.Limit)
	}
	return "Slots", rule.Slots
}

// name returns the name of the slots.
func (rule *Rule) name() string {
	if rule.Limit != nil {
		return rule.Limit.Name()
	}
	return rule.Slots.Name()
}
