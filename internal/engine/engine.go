// Package engine decides about requests, for the guards of packages nethttp and websocketmw. They call its
// steps in this order, and each says whether to go on:
//
//	Keys     who is counted, and how many units: the functions of the rules
//	Charge   the rates, in one call of the store
//	Acquire  the slots, or give the charge back
//	Observe  the rules that only observe, each in a call of its own
//	Release  the slots
//	Settle   the charge
//
// What the steps learn of a request is in its Admission. The engine writes no response, and calls nothing but
// the functions of the rules.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/keyfuncs"
)

// MaxRules is the most rules of each kind that a guard has.
const MaxRules = 8

// settleTimeout bounds how long a response waits for a call that corrects a charge.
const settleTimeout = time.Second

// Rules are what a guard asks about. They do not change.
type Rules struct {
	Rates []RateRule
	Slots []SlotsRule // one with a queue is the last

	Service bool // there is a rate of the service

	Watch      *Watch
	LeastPause int // in seconds, the least Retry-After for want of slots
	MostPause  int
}

// A Rule says whom a limit counts.
type Rule struct {
	Key, Plan            keyfuncs.Func
	Skip                 func(*http.Request) bool
	Service, ObserveOnly bool
}

// A RateRule is a rule for a rate.
type RateRule struct {
	Rule

	Limiter *core.Limiter
	Cost    func(*http.Request) int64
	Settles bool // the charge may be given back, by the response
}

// A SlotsRule is a rule for what is held at once.
type SlotsRule struct {
	Rule

	Slots   *core.Slots
	OneMore bool // one above the limit is granted, to who will evict another
	Queue   int
	MaxWait time.Duration
}

// An Admission is what is known of a request on its way through a guard. The zero Admission has asked nothing.
type Admission struct {
	Status     int              // of the refusal; 0 admits
	Limiter    string           // that decided: a limiter or slots
	RetryAfter time.Duration    // of the refusal; 0: none
	Err        error            // why there is no decision
	Decision   backend.Decision // of the rates, if they were asked
	Claims     []backend.Claim  // of the slots
	Observed   []Admission      // of the rules that only observe
	Rules      *Rules
	Asked      bool // the rates were asked, and have answered
	Full       bool // slots have refused
	Returned   bool // the charge was given back, for want of slots
	Plain      bool // each rate took part, under its default plan

	observes bool  // its rule refuses nobody
	rates    uint8 // a bit for each rate that took part
	count    int8  // of these
	few      [2]backend.Charge
	more     []backend.Charge // if there are more than a few
	held     [2]*backend.Slot // of the claims, and of the one with a queue
}

// Charges returns what the rates charge.
func (a *Admission) Charges() []backend.Charge {
	if a.more != nil {
		return a.more
	}
	return a.few[:a.count]
}

func (a *Admission) add(rule int, c backend.Charge) {
	a.rates |= 1 << rule
	switch {
	case int(a.count) < len(a.few):
		a.few[a.count] = c
	case a.more == nil:
		a.more = append(append(make([]backend.Charge, 0, MaxRules), a.few[:]...), c)
	default:
		a.more = append(a.more, c)
	}
	a.count++
}

// Took calls f with the index of each rate that took part, in the order of the charges.
func (a *Admission) Took(yield func(charge, rule int) bool) {
	for rule, charge := 0, 0; a.rates>>rule != 0; rule++ {
		if a.rates>>rule&1 != 0 {
			if !yield(charge, rule) {
				return
			}
			charge++
		}
	}
}

// Answers returns how many answers of limiters and slots clients may see, and At returns one. If slots have refused,
// everything else was given back, so only they answer.
func (a *Admission) Answers() int { return a.OfRates() + len(a.Decision.Slots()) }

// At is described with Answers.
func (a *Admission) At(i int) backend.PolicyAnswer {
	if n := a.OfRates(); i >= n {
		return a.Decision.Slots()[i-n]
	}
	return a.Decision.At(i)
}

// OfRates returns how many of the answers are of limiters.
func (a *Admission) OfRates() int {
	if a.Asked && !a.Returned {
		return a.Decision.Len()
	}
	return 0
}

// Known reports whether the i-th answer has the units left.
func (a *Admission) Known(i int, d *backend.PolicyAnswer) bool {
	return d.Limit == 0 || i >= a.OfRates() || a.Decision.Known()
}

// Hides reports whether clients do not see an answer: it is of a limit of the service, or there is no limit.
func (a *Admission) Hides(d *backend.PolicyAnswer) bool {
	return d.Limit == core.NoLimit || a.Rules.RateOf(d.Limiter).Service || a.Rules.SlotsOf(d.Limiter).Service
}

// Key returns whom the limiter or slots that decided have counted.
func (a *Admission) Key() string {
	for _, c := range a.Charges() {
		if c.Limiter.Name() == a.Limiter && !a.Full {
			return c.Key
		}
	}
	for _, c := range a.Claims {
		if c.Slots.Name() == a.Limiter {
			return c.Key
		}
	}
	return ""
}

// A RuleError says of which rule an error is. Its text is made when it is used: clients cause some errors as
// often as they like.
type RuleError struct {
	Limiter string
	Err     error
}

func (e *RuleError) Error() string {
	return fault.Text(fmt.Sprintf("limit %q", e.Limiter), e.Err)
}

func (e *RuleError) Unwrap() error { return e.Err }

// fail refuses a request about which there is no decision.
func (rs *Rules) fail(a *Admission, r *http.Request, status int, limiter string, err error) bool {
	if r.Context().Err() == nil { // otherwise nobody reads the answer
		rs.Watch.Undecided(limiter, status, a.observes, err)
	}
	if limiter != "" {
		err = &RuleError{limiter, err}
	}
	a.Status, a.Limiter, a.Err = status, limiter, err
	if status == http.StatusServiceUnavailable {
		a.RetryAfter = 5 * time.Second
	}
	return false
}

var errEmptyKey = &fault.Keyless{Text: "its Key returned an empty key without an error"}

// Whom returns the key and the plan of a request under a rule, or refuses it.
func (rs *Rules) Whom(a *Admission, r *http.Request, rule *Rule, name string) (key, plan string, ok bool) {
	key, err := rule.Key(r)
	if err == nil && key == "" {
		err = errEmptyKey
	}
	if err == nil && rule.Plan != nil {
		if plan, err = rule.Plan(r); errors.Is(err, keyfuncs.ErrAbsent) {
			plan, err = "", nil
		}
	}
	if err == nil {
		rs.Watch.Key(name, r, key)
		return key, plan, true
	}
	status := http.StatusBadRequest
	if errors.Is(err, keyfuncs.ErrProgram) {
		status = http.StatusInternalServerError
	}
	return "", "", rs.fail(a, r, status, name, err)
}

// Keys asks the functions of the rules, but for those that only observe.
func (rs *Rules) Keys(a *Admission, r *http.Request) bool {
	a.Rules, a.Plain = rs, true
	for i := range rs.Rates {
		if !rs.Rates[i].ObserveOnly && !rs.rate(a, r, i) {
			return false
		}
	}
	for i := range rs.Slots {
		if !rs.Slots[i].ObserveOnly && !rs.claim(a, r, i) {
			return false
		}
	}
	return true
}

// rate adds what a rate charges, unless it does not apply.
func (rs *Rules) rate(a *Admission, r *http.Request, i int) bool {
	rule := &rs.Rates[i]
	c := backend.Charge{Limiter: rule.Limiter.Backend(), Units: 1}
	if rule.Cost != nil {
		c.Units = rule.Cost(r)
	}
	if c.Units < 0 {
		return rs.fail(a, r, http.StatusInternalServerError, c.Limiter.Name(), fmt.Errorf("its Cost returned %d", c.Units))
	}
	if c.Units == 0 || rule.Skip != nil && rule.Skip(r) {
		a.Plain = false
		return true
	}
	key, plan, ok := rs.Whom(a, r, &rule.Rule, c.Limiter.Name())
	if !ok {
		return false
	}
	c.Key = key
	if c.Limiter.Book() != nil {
		a.Plain = false // the document may give the key other policies
	}
	if plan != "" {
		c.Limiter = rule.Limiter.Plan(plan).Backend()
		a.Plain = a.Plain && c.Limiter == rule.Limiter.Backend()
	}
	a.add(i, c)
	return true
}

// claim adds what a rule of slots claims, unless it does not apply.
func (rs *Rules) claim(a *Admission, r *http.Request, i int) bool {
	rule := &rs.Slots[i]
	if rule.Skip != nil && rule.Skip(r) {
		return true
	}
	key, plan, ok := rs.Whom(a, r, &rule.Rule, rule.Slots.Name())
	if !ok {
		return false
	}
	slots := rule.Slots // which may be those of a plan
	if plan != "" {
		slots = slots.Plan(plan)
	}
	a.Claims = append(a.Claims, backend.Claim{Slots: slots.Backend(), Key: key, OneMore: rule.OneMore, Queue: rule.Queue})
	return true
}

// Charge charges the rates, all or none.
func (rs *Rules) Charge(a *Admission, r *http.Request) bool {
	if a.count == 0 {
		return true
	}
	return rs.charge(r.Context(), a, r)
}

func (rs *Rules) charge(ctx context.Context, a *Admission, r *http.Request) bool {
	if err := backend.Decide(ctx, step.Allow, a.Charges(), &a.Decision); err != nil {
		return rs.fail(a, r, http.StatusServiceUnavailable, "", err)
	}
	t := a.Decision.Totals()
	a.Asked, a.Limiter = true, t.Decider.Limiter
	if a.Decision.Allowed {
		return true
	}
	a.Status, a.RetryAfter = http.StatusTooManyRequests, backend.Span(t.RetryAfter)
	if rs.Service && rs.ofService(a) {
		a.Status = http.StatusServiceUnavailable
	}
	return false
}

// ofService reports whether only limits of the service have refused.
func (rs *Rules) ofService(a *Admission) bool {
	for i := range a.Decision.Len() {
		if d := a.Decision.At(i); !d.Allowed && !rs.RateOf(d.Limiter).Service {
			return false
		}
	}
	return true
}

// RateOf returns the rate whose limiter has a name.
func (rs *Rules) RateOf(limiter string) *RateRule {
	for i := range rs.Rates {
		if rs.Rates[i].Limiter.Name() == limiter {
			return &rs.Rates[i]
		}
	}
	return &noRate
}

// What no rule has, which does not change.
var (
	noRate  RateRule
	noSlots SlotsRule
)

// SlotsOf returns the rule whose slots have a name.
func (rs *Rules) SlotsOf(slots string) *SlotsRule {
	for i := range rs.Slots {
		if rs.Slots[i].Slots.Name() == slots {
			return &rs.Slots[i]
		}
	}
	return &noSlots
}

// Acquire takes the slots. Those without a queue come first, at once or not at all. Then the request waits in
// the one line that a guard has, and holds the others. If there is no slot, the charge is given back.
func (rs *Rules) Acquire(a *Admission, r *http.Request) bool {
	if len(a.Claims) == 0 || rs.acquire(r.Context(), a, r) {
		return true
	}
	a.Release()
	if a.Returned = true; a.Asked {
		within(r, func(ctx context.Context) { _ = a.Decision.Refund(ctx) })
	}
	return false
}

func (rs *Rules) acquire(ctx context.Context, a *Admission, r *http.Request) bool {
	atOnce := len(a.Claims)
	if last := &a.Claims[atOnce-1]; last.Queue > 0 {
		atOnce--
	}
	if atOnce > 0 && !rs.take(ctx, a, r, 0, a.Claims[:atOnce]) {
		return false
	}
	if atOnce == len(a.Claims) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, rs.SlotsOf(a.Claims[atOnce].Slots.Name()).MaxWait)
	defer cancel()
	return rs.take(ctx, a, r, 1, a.Claims[atOnce:])
}

func (rs *Rules) take(ctx context.Context, a *Admission, r *http.Request, i int, claims []backend.Claim) bool {
	slot := new(backend.Slot)
	err := slot.Take(ctx, claims)
	if err == nil {
		a.held[i] = slot
		a.Decision.AddSlots(slot.Answers()...)
		if !a.Asked {
			a.Limiter = claims[0].Slots.Name()
		}
		return true
	}
	a.Decision.ClearSlots() // the others are given back
	full, isFull := backend.Full(err)
	if gone := r.Context().Err(); !isFull || gone != nil {
		if gone != nil {
			err = gone
		}
		rs.fail(a, r, http.StatusServiceUnavailable, "", err)
	} else {
		a.Full, a.Limiter, a.Status = true, full.Limiter, http.StatusTooManyRequests
		if rs.SlotsOf(a.Limiter).Service {
			a.Status = http.StatusServiceUnavailable
		}
		a.Decision.AddSlots(full)
	}
	a.RetryAfter = rs.Pause()
	return false
}

// Refuse refuses a request that the steps have admitted so far, for want of a slot of the i-th claim, and
// gives everything back.
func (rs *Rules) Refuse(a *Admission, i int) {
	a.Release()
	full := a.Decision.Slots()[i] // it has one more than it should
	full.Allowed, full.Remaining = false, 0
	a.Decision.ClearSlots()
	a.Decision.AddSlots(full)
	a.Returned, a.Full, a.Limiter, a.Status = true, true, full.Limiter, http.StatusTooManyRequests
	a.RetryAfter = rs.Pause()
}

// Pause returns the Retry-After of who is refused for want of a slot: nobody knows when one is free.
func (rs *Rules) Pause() time.Duration {
	return time.Duration(rs.LeastPause+rand.IntN(rs.MostPause-rs.LeastPause+1)) * time.Second
}

// Observe asks the rules that only observe, each in a call of its own. None refuses the request, whatever it answers.
func (rs *Rules) Observe(a *Admission, r *http.Request) {
	ctx := backend.Observed(r.Context())
	for i := range rs.Rates {
		if o := (Admission{Rules: rs, observes: true}); rs.Rates[i].ObserveOnly {
			if rs.rate(&o, r, i) && o.count > 0 {
				rs.charge(ctx, &o, r)
			}
			a.observed(o)
		}
	}
	for i := range rs.Slots {
		if o := (Admission{Rules: rs, observes: true}); rs.Slots[i].ObserveOnly {
			if rs.claim(&o, r, i) && len(o.Claims) > 0 {
				rs.acquire(ctx, &o, r)
			}
			a.observed(o)
		}
	}
}

// observed adds what a rule says that only observes, if it applies.
func (a *Admission) observed(o Admission) {
	if o.Status != 0 || o.count > 0 || len(o.Claims) > 0 {
		a.Observed = append(a.Observed, o)
	}
}

// Release releases the slots, also those of rules that only observe. If an observer of the store panics, it releases
// the others even so.
func (a *Admission) Release() {
	held := a.held
	a.held = [2]*backend.Slot{}
	defer releaseAll(a.Observed)
	defer release(held[1])
	release(held[0])
}

func release(s *backend.Slot) {
	if s != nil {
		s.Release()
	}
}

func releaseAll(all []Admission) {
	if len(all) > 0 {
		defer releaseAll(all[1:])
		all[0].Release()
	}
}

// Held returns the slot of the claims without a queue, or nil.
func (a *Admission) Held() *backend.Slot { return a.held[0] }

// Settle corrects the charge to the units that were used, one number for each charge. It waits for a moment,
// even if the client has gone.
func (a *Admission) Settle(r *http.Request, actual []int64) (err error) {
	if !a.Asked || !a.Decision.Allowed {
		return nil
	}
	for i, c := range a.Charges() {
		if actual[i] != c.Units {
			within(r, func(ctx context.Context) { _, err = a.Decision.Settle(ctx, actual...) })
			return err
		}
	}
	return nil
}

func within(r *http.Request, call func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTimeout)
	defer cancel()
	call(ctx)
}
