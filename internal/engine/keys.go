package engine

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/keyfuncs"
)

var errEmptyKey = &fault.Keyless{Text: "its Key returned an empty key without an error"}

// Keys asks the functions of the rules, but for those that only observe. It ends with the first rule that cannot say
// whom to count: then nothing was charged.
func (rs *Rules) Keys(admission *Admission, r *http.Request) bool {
	admission.Rules = rs
	admission.AllDefault = true
	for i := range rs.Rates {
		if !rs.Rates[i].ObserveOnly && !rs.addCharge(admission, r, i) {
			return false
		}
	}
	for i := range rs.Slots {
		if !rs.Slots[i].ObserveOnly && !rs.addClaim(admission, r, i) {
			return false
		}
	}
	return true
}

// addCharge adds what a rate charges, unless it does not apply.
func (rs *Rules) addCharge(admission *Admission, r *http.Request, i int) bool {
	rule := &rs.Rates[i]
	charge := backend.Charge{Limiter: rule.Limiter.Backend(), Units: 1}
	if rule.Cost != nil {
		charge.Units = rule.Cost(r)
	}
	if charge.Units < 0 {
		err := fmt.Errorf("its Cost returned %d", charge.Units)
		return rs.fail(admission, r, http.StatusInternalServerError, charge.Limiter.Name(), err)
	}
	if charge.Units == 0 || rule.Skip != nil && rule.Skip(r) {
		admission.AllDefault = false
		return true
	}
	// After Cost and Skip, so that a request to which the rule does not apply needs no key.
	key, plan, ok := rs.Whom(admission, r, &rule.Rule, charge.Limiter.Name())
	if !ok {
		return false
	}
	charge.Key = key
	// What is prepared for responses is that of the default plan. A document may give a key other policies.
	if charge.Limiter.Book() != nil {
		admission.AllDefault = false
	}
	if plan != "" {
		charge.Limiter = rule.Limiter.Plan(plan).Backend()
		admission.AllDefault = admission.AllDefault && charge.Limiter == rule.Limiter.Backend()
	}
	admission.add(i, charge)
	return true
}

// addClaim adds what a rule of slots claims, unless it does not apply.
func (rs *Rules) addClaim(admission *Admission, r *http.Request, i int) bool {
	rule := &rs.Slots[i]
	if rule.Skip != nil && rule.Skip(r) {
		return true
	}
	key, plan, ok := rs.Whom(admission, r, &rule.Rule, rule.Slots.Name())
	if !ok {
		return false
	}
	slots := rule.Slots
	if plan != "" {
		slots = slots.Plan(plan)
	}
	claim := backend.Claim{Slots: slots.Backend(), Key: key, OneMore: rule.OneMore, Queue: rule.Queue}
	admission.Claims = append(admission.Claims, claim)
	return true
}

// Whom returns the key and the plan of a request under a rule, or refuses it. The name is that of the rule's limiter or
// slots. An empty key would be one that all share who have none, so it is a missing one.
func (rs *Rules) Whom(admission *Admission, r *http.Request, rule *Rule, name string) (key, plan string, ok bool) {
	key, err := rule.Key(r)
	if err == nil && key == "" {
		err = errEmptyKey
	}
	// A request that names no plan has the default one.
	if err == nil && rule.Plan != nil {
		plan, err = rule.Plan(r)
		if errors.Is(err, keyfuncs.ErrAbsent) {
			plan = ""
			err = nil
		}
	}
	if err == nil {
		rs.Watch.WarnOfProxy(name, r, key)
		return key, plan, true
	}
	// A missing key is a fault of the client, unless the function says that it is one of the program.
	status := http.StatusBadRequest
	if errors.Is(err, keyfuncs.ErrProgram) {
		status = http.StatusInternalServerError
	}
	return "", "", rs.fail(admission, r, status, name, err)
}
