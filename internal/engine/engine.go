// Package engine decides about requests, for the guards of packages nethttp and websocketmw. They call its steps in
// this order, and each says whether to go on:
//
//	Keys     keys.go    who is counted, and how many units: the functions of the rules
//	Charge   charge.go  the rates, in one call of the store
//	Acquire  slots.go   the slots; without one, the charge is given back
//	Observe  observe.go the rules that only observe, each in a call of its own
//	Release  slots.go   the slots
//	Settle   charge.go  the charge
//
// What the steps learn of a request is in its [Admission]; how far it got is its [Stage]. The engine writes no
// response, and calls nothing but the functions of the rules.
//
// How a request is refused, by its Admission:
//
//	Status  Stage           why
//	400     Unasked         it has no key, or a malformed one
//	500     Unasked         a function of a rule is at fault
//	503     Unasked         the store of rates has not decided
//	429     Answered        a rate has refused; 503 if only rates of the service have
//	429     SlotsFull       slots are full; 503 if they are of the service
//	503     SlotsUndecided  the store of slots has not decided, or the client has gone
package engine

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/keyfuncs"
)

const (
	// MaxRules is the most rules of each kind that a guard has.
	MaxRules = 8

	// giveBackTimeout bounds how long a response waits for a call that corrects a charge.
	giveBackTimeout = time.Second

	// undecidedPause is the Retry-After of a request about which nobody could decide.
	undecidedPause = 5 * time.Second
)

// Rules are what a guard asks about. They do not change. MostPause is not below LeastPause.
type Rules struct {
	Rates []RateRule
	Slots []SlotsRule // one with a queue is the last

	HasService bool // one of the rates is of the service

	Watch      *Watch
	LeastPause int // in seconds, the least Retry-After for want of slots
	MostPause  int
}

// A Rule says whom a limit counts.
type Rule struct {
	Key  keyfuncs.Func
	Plan keyfuncs.Func            // nil: all have the default plan
	Skip func(*http.Request) bool // nil: it applies to all

	// Service limits protect the service itself. A refusal by them alone is no fault of the client: it has the status
	// 503, and clients do not see the limit.
	Service bool

	ObserveOnly bool // it refuses nobody
}

// A RateRule is a rule for a rate.
type RateRule struct {
	Rule

	Limiter *core.Limiter
	Cost    func(*http.Request) int64 // nil: 1; where it is 0, the rule does not apply
	Settles bool                      // the charge may be given back, by the response
}

// A SlotsRule is a rule for what is held at once.
type SlotsRule struct {
	Rule

	Slots   *core.Slots
	OneMore bool          // one above the limit is granted, to who will evict another
	Queue   int           // how many of a key may wait; 0: nobody
	MaxWait time.Duration // in the queue
}

// What no rule has, which does not change.
var (
	noRate  RateRule
	noSlots SlotsRule
)

// RateOf returns the rate whose limiter has a name, or one that is empty. There are eight at most, so it compares
// names: a map would take longer.
func (rs *Rules) RateOf(limiter string) *RateRule {
	for i := range rs.Rates {
		if rs.Rates[i].Limiter.Name() == limiter {
			return &rs.Rates[i]
		}
	}
	return &noRate
}

// SlotsOf returns the rule whose slots have a name, or one that is empty.
func (rs *Rules) SlotsOf(slots string) *SlotsRule {
	for i := range rs.Slots {
		if rs.Slots[i].Slots.Name() == slots {
			return &rs.Slots[i]
		}
	}
	return &noSlots
}

// A Stage is how far the store was asked about a request.
type Stage uint8

const (
	Unasked        Stage = iota // no rate has answered: none takes part, or there is no decision
	Answered                    // the rates have answered
	SlotsFull                   // slots have refused; the charge was given back
	SlotsUndecided              // nobody has decided about the slots; the charge was given back
)

// An Admission is what is known of a request on its way through a guard. The zero Admission has asked nothing. It
// belongs to one request, and to one goroutine at a time.
type Admission struct {
	Status     int              // of the refusal; 0 admits
	Limiter    string           // that decided: a limiter or slots
	RetryAfter time.Duration    // of the refusal; 0: none
	Err        error            // why there is no decision
	Decision   backend.Decision // of the rates, if they were asked
	Claims     []backend.Claim  // of the slots
	Slot       *backend.Slot    // of the claims; nil: none was asked for
	Observed   []Admission      // of the rules that only observe
	Rules      *Rules
	Stage      Stage
	AllDefault bool // each rate took part, under its default plan, and no document has their policies

	observeOnly bool  // its rule refuses nobody
	rateBits    uint8 // a bit for each rate that took part
	chargeCount int8
	fewCharges  [2]backend.Charge // so that most requests allocate none
	allCharges  []backend.Charge  // if there are more than a few
}

// Charges returns what the rates charge.
func (a *Admission) Charges() []backend.Charge {
	if a.allCharges != nil {
		return a.allCharges
	}
	return a.fewCharges[:a.chargeCount]
}

// add adds what a rate charges. Most guards have one or two rates: room for all of them in each admission would be
// moved with it.
func (a *Admission) add(rule int, charge backend.Charge) {
	a.rateBits |= 1 << rule
	switch {
	case int(a.chargeCount) < len(a.fewCharges):
		a.fewCharges[a.chargeCount] = charge
	case a.allCharges == nil:
		a.allCharges = append(make([]backend.Charge, 0, MaxRules), a.fewCharges[:]...)
		a.allCharges = append(a.allCharges, charge)
	default:
		a.allCharges = append(a.allCharges, charge)
	}
	a.chargeCount++
}

// EachRate calls a function with the index of each rate that took part, in the order of the charges.
//
//	rules     0 applies   1 is skipped   2 applies
//	rateBits  1           0              1
//	charges   0                          1
func (a *Admission) EachRate(yield func(charge, rule int) bool) {
	// Rates that do not apply have a bit of 0, and no charge.
	charge := 0
	for rule := 0; a.rateBits>>rule != 0; rule++ {
		if a.rateBits>>rule&1 == 0 {
			continue
		}
		if !yield(charge, rule) {
			return
		}
		charge++
	}
}

// Answers returns how many answers of limiters and slots clients may see. If there was no slot, everything was given
// back, so no rate answers.
func (a *Admission) Answers() int { return a.OfRates() + len(a.Decision.Slots()) }

// At returns one of the Answers: those of limiters come first.
func (a *Admission) At(i int) backend.PolicyAnswer {
	rates := a.OfRates()
	if i >= rates {
		return a.Decision.Slots()[i-rates]
	}
	return a.Decision.At(i)
}

// OfRates returns how many of the answers are of limiters.
func (a *Admission) OfRates() int {
	if a.Stage == Answered {
		return a.Decision.Len()
	}
	return 0
}

// Known reports whether the i-th answer has the units left. A limit of 0 has none, whoever was asked; and slots say
// what was left as of their grant.
func (a *Admission) Known(i int, answer *backend.PolicyAnswer) bool {
	return answer.Limit == 0 || i >= a.OfRates() || a.Decision.Known()
}

// Hides reports whether clients do not see an answer: it is of a limit of the service, or there is no limit.
func (a *Admission) Hides(answer *backend.PolicyAnswer) bool {
	return answer.Limit == core.NoLimit || a.Rules.RateOf(answer.Limiter).Service ||
		a.Rules.SlotsOf(answer.Limiter).Service
}

// Key returns whom the limiter or slots that decided have counted.
func (a *Admission) Key() string {
	// Slots may have the name of a limiter.
	if a.Stage != SlotsFull {
		for _, charge := range a.Charges() {
			if charge.Limiter.Name() == a.Limiter {
				return charge.Key
			}
		}
	}
	for _, claim := range a.Claims {
		if claim.Slots.Name() == a.Limiter {
			return claim.Key
		}
	}
	return ""
}

// A RuleError says of which rule an error is. Its text is made when it is used: clients cause some errors as often as
// they like.
type RuleError struct {
	Limiter string
	Err     error
}

func (e *RuleError) Error() string {
	return fault.Text(fmt.Sprintf("limit %q", e.Limiter), e.Err)
}

func (e *RuleError) Unwrap() error { return e.Err }

// fail refuses a request about which there is no decision, under a limiter or slots of that name; "" is all together.
// It always returns false, as the steps do that end with it.
func (rs *Rules) fail(admission *Admission, r *http.Request, status int, name string, err error) bool {
	if r.Context().Err() == nil { // otherwise nobody reads the answer
		rs.Watch.Undecided(name, status, admission.observeOnly, err)
	}
	if name != "" {
		err = &RuleError{name, err}
	}
	admission.Status = status
	admission.Limiter = name
	admission.Err = err
	if status == http.StatusServiceUnavailable {
		admission.RetryAfter = undecidedPause
	}
	return false
}

// giveBack calls a function that corrects a charge, with a context that outlives the request by a moment: a client that
// has gone must not keep its units. The response waits for it, and not for longer than a second: a client that comes
// back at once finds its units.
func giveBack(r *http.Request, call func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), giveBackTimeout)
	defer cancel()
	call(ctx)
}
