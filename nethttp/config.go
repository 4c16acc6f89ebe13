package nethttp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/keyfuncs"
)

// Config is what a [Guard] does. There must be a rule, and the fields must be named. Its functions are called
// concurrently. What they get of a request must not be kept.
type Config struct {
	_ struct{}

	// Rates are charged first, all or none, in one call of the store. So all their limiters have one store. There are
	// at most 8.
	Rates []Rate

	// Concurrency limits how many requests are handled at once, by at most 8 rules. A request over a rate takes no
	// slot and waits in no line. One rule at most has a Queue: the slots of the others are taken before, at once or
	// not at all, and held while the request waits. Two guards whose lines are taken in turn may wait for each other,
	// until MaxWait.
	Concurrency []Concurrency

	// Skip reports whether no rule applies to a request. It gets no fields then. Nil means that the rules apply to all.
	Skip func(*http.Request) bool

	// Fields sets the fields by which clients learn of their limits, on responses and refusals, if a limit was asked.
	// Nil means [RateLimitFields]; [XRateLimitFields] and [NoFields] are others.
	Fields func(http.Header, *Verdict)

	// OnRefused answers a refused request. The header has its fields and Retry-After already. If it writes nothing,
	// the guard answers with a problem document. Behind a framework, that learns of the refusal all the same.
	OnRefused func(http.ResponseWriter, *http.Request, *Verdict)

	// Observe gets each verdict before the response is written, and then each refusal by a rule that only observes,
	// which has ObserveOnly. It gets none of a request to which no rule applies. If it is set, requests without a
	// decision are not logged.
	Observe func(*http.Request, *Verdict)

	// Logger gets faults of configuration: at most once a minute for each reason why requests have no decision, and
	// once that a key is the address of a proxy. Nil means [slog.Default]. No record has a key.
	Logger *slog.Logger

	// KeepVerdict makes [VerdictFrom] work in handlers. It takes two allocations a request.
	KeepVerdict bool
}

// Rate is a rule about how many units a key may use in a time. Limiter and Key are required.
type Rate struct {
	_ struct{}

	// Limiter counts the units. Each rule has one of another name.
	Limiter *core.Limiter

	// Key says whom the rule counts. Without a key, the request is refused with 400.
	Key keyfuncs.Func

	// Plan says which plan of the Limiter applies. If it is nil, absent or unknown to the limiter, that is the default;
	// a malformed one is refused with 400.
	Plan keyfuncs.Func

	// Cost is how many units are charged before the request is handled: 0 or more. Nil means 1. 0 means that the rule
	// does not apply to the request.
	Cost func(*http.Request) int64

	// Settle says how many units the request has used, when it has been handled, and the charge is corrected to that,
	// also beyond the limit. A negative number leaves it as it is. Nil means as [SetCost] says, or else as charged.
	// It is not called for a connection that was hijacked. A response to an admitted request of a rule with Settle
	// does not say when there is a unit again, if the last one may come back.
	//
	// Warning: a client that can cause an outcome which costs nothing pays nothing.
	Settle func(*http.Request, Outcome) int64

	// Skip reports whether the rule does not apply to a request.
	Skip func(*http.Request) bool

	// Service makes it a limit of the service. Over it, and over no other limit, a request is refused with 503, and
	// clients do not see it in the fields.
	Service bool

	// ObserveOnly makes the rule count, and refuse nobody. It is asked when the other rules have admitted the
	// request, in a call of its own.
	ObserveOnly bool
}

// Concurrency is a rule about how many requests of a key are handled at once. Slots and Key are required; Key, Plan,
// Skip, Service and ObserveOnly are as in [Rate].
type Concurrency struct {
	_ struct{}

	// Slots counts the requests that are handled. No other slots, limiter or policy of the guard have its name.
	Slots                *core.Slots
	Key, Plan            keyfuncs.Func
	Skip                 func(*http.Request) bool
	Service, ObserveOnly bool

	// Queue is how many requests of a key wait in this process for a slot, in their order. 0 means that none does. It
	// is in one rule of a guard at most, and not beside ObserveOnly.
	Queue int

	// MaxWait is how long a request waits at most. 0 means 10 seconds.
	MaxWait time.Duration
}

const defaultWait = 10 * time.Second

// A Guard is rules in front of handlers. Make one with [New], [Limit] or [MaxInFlight]. It is safe for concurrent
// use, and one guard can be in front of several handlers.
type Guard struct {
	config         Config
	rules          engine.Rules
	prepared       *prepared
	needsNoPassage bool // nothing is to be done when a request has been admitted
	hasObserveOnly bool // a rule only observes
	settles        bool // a rule has Settle
	costs          bool // a rule has Cost or Settle, so SetCost works
}

// Limit returns a guard with one rate: as many units as the policies admit, for each key. Guards of the same store
// and name count together. It panics if an argument is wrong, as [core.NewLimiter] does.
func Limit(store core.Store, name string, key keyfuncs.Func, policies ...core.Policy) *Guard {
	return must(New(Config{Rates: []Rate{{Limiter: core.NewLimiter(store, name, policies...), Key: key}}}))
}

// MaxInFlight returns a guard that lets n requests of each key be handled at once, and refuses others. Guards of the
// same store and name count together. It panics if an argument is wrong, as [core.NewSlots] does.
func MaxInFlight(store core.Store, name string, key keyfuncs.Func, n int64) *Guard {
	return must(New(Config{Concurrency: []Concurrency{{Slots: core.NewSlots(store, name, n), Key: key}}}))
}

func must(guard *Guard, err error) *Guard {
	if err != nil {
		panic(err)
	}
	return guard
}

// New returns a guard. The error has all faults of the Config, one line a rule. New asks no store, and later changes
// of the Config have no effect.
func New(config Config) (*Guard, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	guard := &Guard{config: config}
	watch := engine.NewWatch("nethttp", config.Logger, config.Observe != nil)
	guard.rules = engine.Rules{Watch: watch, LeastPause: 1, MostPause: 5}
	// What the engine asks of the rules: of each Rate a RateRule, and of each Concurrency a SlotsRule.
	for _, r := range config.Rates {
		guard.settles = guard.settles || r.Settle != nil
		guard.costs = guard.costs || r.Settle != nil || r.Cost != nil
		guard.hasObserveOnly = guard.hasObserveOnly || r.ObserveOnly
		guard.rules.HasService = guard.rules.HasService || r.Service
		guard.rules.Rates = append(guard.rules.Rates, engine.RateRule{
			Rule: engine.Rule{
				Key: r.Key, Plan: r.Plan, Skip: r.Skip, Service: r.Service, ObserveOnly: r.ObserveOnly,
			},
			Limiter: r.Limiter, Cost: r.Cost, Settles: r.Settle != nil,
		})
	}
	for _, rule := range config.Concurrency {
		guard.hasObserveOnly = guard.hasObserveOnly || rule.ObserveOnly
		wait := rule.MaxWait
		if wait == 0 {
			wait = defaultWait
		}
		guard.rules.Slots = append(guard.rules.Slots, engine.SlotsRule{
			Rule: engine.Rule{
				Key: rule.Key, Plan: rule.Plan, Skip: rule.Skip, Service: rule.Service, ObserveOnly: rule.ObserveOnly,
			},
			Slots: rule.Slots, Queue: rule.Queue, MaxWait: wait,
		})
	}
	slices.SortStableFunc(guard.rules.Slots, func(a, b engine.SlotsRule) int { return cmp.Compare(a.Queue, b.Queue) })
	guard.needsNoPassage = !guard.costs && !guard.hasObserveOnly && len(config.Concurrency) == 0 && !config.KeepVerdict
	guard.prepared = prepare(&guard.rules)
	return guard, nil
}

// validate returns all that is wrong, a line for each rule.
func (c *Config) validate() error {
	whole := engine.Faults{Where: "guard"}
	whole.Add(len(c.Rates)+len(c.Concurrency) == 0, "there is no rule")
	tooMany := len(c.Rates) > engine.MaxRules || len(c.Concurrency) > engine.MaxRules
	whole.Add(tooMany, "there are more than %d rules", engine.MaxRules)
	lines := []error{whole.Err()}
	// Clients tell policies and slots apart by their names. Those of rules that only observe they do not see.
	shown := make(map[string]bool)
	for i := range c.Rates {
		lines = append(lines, c.validateRate(i, shown))
	}
	queues := 0
	for i := range c.Concurrency {
		if c.Concurrency[i].Queue > 0 {
			queues++
		}
		lines = append(lines, c.validateConcurrency(i, shown, queues))
	}
	return errors.Join(lines...)
}

// validateRate returns what is wrong with a rate, and adds the names that clients see.
func (c *Config) validateRate(i int, shown map[string]bool) error {
	rate := &c.Rates[i]
	faults := engine.Faults{Where: fmt.Sprintf("Rates[%d]", i)}
	faults.Add(rate.Limiter == nil, "the Limiter is nil: make one with core.NewLimiter")
	faults.Add(rate.Key == nil, "the Key is nil: say who is counted, with a function of package keyfuncs")
	if rate.Limiter == nil {
		return faults.Err()
	}
	name := rate.Limiter.Name()
	limiter := rate.Limiter.Backend()
	first := c.Rates[0].Limiter
	otherStore := first != nil && !limiter.SameStore(first.Backend())
	faults.Add(otherStore, "the limiter %q has another store than that of Rates[0]", name)
	for _, policy := range limiter.Policies() {
		faults.Add(shown[policy.Policy] && !rate.ObserveOnly,
			"another rule has a policy named %q, too: clients could not tell them apart", policy.Policy)
		shown[policy.Policy] = shown[policy.Policy] || !rate.ObserveOnly
	}
	for _, other := range c.Rates[:i] {
		sameName := other.Limiter != nil && other.Limiter.Name() == name
		faults.Add(sameName, "another rule has a limiter named %q, too", name)
	}
	return faults.Err()
}

// validateConcurrency returns what is wrong with a rule of slots, and adds their name. queues is how many rules up to
// this one have a Queue.
func (c *Config) validateConcurrency(i int, shown map[string]bool, queues int) error {
	rule := &c.Concurrency[i]
	faults := engine.Faults{Where: fmt.Sprintf("Concurrency[%d]", i)}
	faults.Add(rule.Slots == nil, "the Slots are nil: make them with core.NewSlots")
	faults.Add(rule.Key == nil, "the Key is nil: say whose requests are counted, with a function of package keyfuncs")
	if rule.Slots != nil {
		name := rule.Slots.Name()
		faults.Add(shown[name],
			"another rule has slots or a policy named %q, too: clients could not tell them apart", name)
		faults.Add(!shown[name] && c.hasLimiter(name),
			"another rule has a limiter named %q, too: a Verdict could not tell them apart", name)
		shown[name] = true
	}
	faults.Add(rule.Queue < 0 || rule.MaxWait < 0, "Queue and MaxWait must not be negative")
	faults.Add(rule.Queue > 0 && rule.ObserveOnly, "nobody waits for a rule that only observes: remove the Queue")
	faults.Add(rule.Queue > 0 && queues > 1, "another rule has a Queue, too: a request waits in one line at most")
	return faults.Err()
}

func (c *Config) hasLimiter(name string) bool {
	return slices.ContainsFunc(c.Rates, func(rate Rate) bool {
		return rate.Limiter != nil && rate.Limiter.Name() == name
	})
}
