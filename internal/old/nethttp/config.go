package nethttp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// maxRules is the largest number of charges that core.AllowAll accepts, and of claims that
// core.AcquireAll does.
const maxRules = 8

// Config configures a [Guard]. Literals must name the fields. The functions in it must be
// safe for concurrent use. The guard does not recover their panics.
type Config struct {
	_ struct{}

	// Rules are the limits: 1 to 8 for rates, and as many for slots. They are applied together, all
	// or nothing. So their limiters must have the same store, and their slots too. Slots of this
	// process alone may have a memstore instead. The names of the limiters must differ. So must the
	// names of all their policies and slots, because clients identify them by name. Put the slots
	// first that are full most often.
	Rules []Rule

	// Wait is the longest time that a request waits for slots of rules that have a Queue, and is
	// set if there are any. It should be shorter than the timeouts of clients and proxies:
	// nobody reads the response after that.
	Wait time.Duration

	// Skip reports whether to admit a request without applying any rule: nothing is
	// charged, Observe is not called, and no fields are set. Nil skips nothing. Whatever
	// a client can write to be skipped has no limit; for paths, see the package
	// documentation on routers.
	Skip func(*http.Request) bool

	// Fields sets the fields that describe the limits to clients. Nil means
	// [Draft11].
	Fields Fields

	// NoFields omits these fields. Refusals still have Retry-After. Fields must be nil.
	NoFields bool

	// OnRefused, if not nil, writes refusals of every status instead of the guard.
	// The header already has the limit's fields, Retry-After and Cache-Control:
	// no-store. OnRefused should write a status, usually the verdict's, and a body. If it
	// writes nothing, the guard writes the refusal.
	OnRefused func(http.ResponseWriter, *http.Request, Verdict)

	// Observe, if not nil, is called with each verdict before the response is
	// written, for logs and metrics. It is not called for requests that are skipped
	// or cost nothing.
	Observe func(*http.Request, Verdict)

	// Logger gets a record at level WARN of a fault of configuration, once for each kind. One kind
	// is that no request of a rule has had a key for a minute. The other is that the key is a
	// proxy's address, which all clients share. Without Observe, it also gets the reason why
	// requests are refused without a decision, with 400, 500 or 503. For each reason it gets at
	// most one record a minute. No record has a key. Nil means [slog.Default];
	// slog.New(slog.DiscardHandler) turns it off.
	Logger *slog.Logger

	// ObserveOnly is shadow mode, for trying limits before they are enforced. Check decides,
	// charges, and acquires slots where there are any. It calls Observe with the verdict as it
	// would have been if nobody could wait. But it returns a verdict that admits and sets no
	// fields, even after an error.
	ObserveOnly bool

	// OnSettled, if not nil, is called after each correction of a charge, by [Rule].Settle or
	// because slots have refused the request. It is also called after [Rule].Report has returned
	// the units to count. uncovered is the number of units for which there was no room, in the rule
	// with most. They count all the same. An error means that, as far as is known, the charge was
	// not corrected, or nothing was counted.
	OnSettled func(r *http.Request, uncovered int64, err error)
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

// validate returns all faults, joined. Only guards for sockets can evict.
func (c *Config) validate(sockets bool) error {
	var faults []error
	fault := func(err error, format string, args ...any) {
		faults = append(faults, &ConfigError{Field: fmt.Sprintf(format, args...), Err: err})
	}
	c.validateRules(fault, sockets)
	if c.NoFields && c.Fields != nil {
		fault(errors.New("Fields is set too: remove one of them"), "NoFields")
	}
	queues := slices.ContainsFunc(c.Rules, func(r Rule) bool { return r.Queue > 0 })
	if c.Wait < 0 || queues != (c.Wait > 0) {
		fault(fmt.Errorf("it is %v: it must be positive if a rule has a Queue, and otherwise 0", c.Wait), "Wait")
	}
	return errors.Join(faults...)
}

func (c *Config) validateRules(fault func(err error, format string, args ...any), sockets bool) {
	slots, evict := 0, -1
	for i := range c.Rules {
		if c.Rules[i].takesSlots() {
			slots++
		}
	}
	switch rates := len(c.Rules) - slots; {
	case len(c.Rules) == 0:
		fault(fmt.Errorf("a guard has 1 to %d rules, not 0", maxRules), "Rules")
	case rates > maxRules || slots > maxRules:
		fault(fmt.Errorf("a guard has at most %d rules for rates and as many for slots, not %d and %d", maxRules, rates, slots), "Rules")
	}
	whole := make([]bool, len(c.Rules)) // whether a rule is one limit
	for i := range c.Rules {
		rule := &c.Rules[i]
		whole[i] = rule.validate(func(err error, field string) { fault(err, "Rules[%d].%s", i, field) }, sockets)
		if rule.WhenFull == EvictOldest {
			if evict >= 0 {
				fault(fmt.Errorf("with Rules[%d]: one rule of a guard may have EvictOldest", evict), "Rules[%d].WhenFull", i)
			}
			evict = i
		}
		for j := range i {
			if !whole[i] || !whole[j] {
				continue
			}
			for _, err := range clashes(&c.Rules[j], rule) {
				fault(fmt.Errorf("with Rules[%d]: %w", j, err), "Rules[%d].%s", i, rule.field())
			}
		}
	}
}
