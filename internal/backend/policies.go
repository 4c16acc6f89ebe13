package backend

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/step"
)

const maxName = 64

// MaxPolicies is the most policies of a limiter.
const MaxPolicies = 8

// A Policy is numbers and the name by which clients know them, which the only one of a limiter may leave out.
type Policy struct {
	Name string
	step.Numbers
}

// Policies are the policies of a plan, or of a key, as they are asked. They do not change. Many decisions point into
// the List at once; only the store's Prepare has written to it, before the first.
type Policies struct {
	List     []step.Policy
	Max      int64 // the largest charge that all can admit
	Constant bool  // unlimited or blocked: no store is asked
}

// Prepare returns policies of a limiter as they are asked. It calls fault with each fault, and which of them has it, or
// -1. After a fault the result is of no use. What the store needs of its own is not yet in it: see Prepare of
// [store.Rates].
func Prepare(limiter string, all []Policy, fault func(i int, err error)) *Policies {
	prepared := &Policies{Max: step.MaxInt}
	if err := CheckName(limiter); err != nil {
		fault(-1, err)
	}
	if len(all) == 0 || len(all) > MaxPolicies {
		fault(-1, fmt.Errorf("a limiter has 1 to %d policies, not %d", MaxPolicies, len(all)))
	}
	for i, policy := range all {
		if policy.Name == "" && len(all) == 1 {
			policy.Name = limiter
		} else if err := CheckName(policy.Name); err != nil {
			fault(i, err)
		}
		sameName := func(other Policy) bool { return other.Name == policy.Name && policy.Name != "" }
		if slices.ContainsFunc(all[:i], sameName) {
			fault(i, errors.New("another policy has the same name"))
		}
		prepared.Constant = policy.Constant()
		if prepared.Constant && len(all) > 1 {
			fault(i, errors.New("unlimited and blocked must be the only policy: remove the others"))
		}
		// All faults are told together, so the list goes on behind one.
		next, err := step.New(limiter, policy.Name, policy.Numbers)
		if err != nil {
			fault(i, err)
		}
		next.Last = i == len(all)-1
		prepared.Max = min(prepared.Max, next.Max())
		prepared.List = append(prepared.List, next)
	}
	return prepared
}

// CheckName accepts what a String of RFC 9651 can hold. Names of policies are such strings in the fields RateLimit and
// RateLimit-Policy, and are told as they are.
func CheckName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("a name has at most %d characters, not %d", maxName, len(name))
	}
	unprintable := strings.IndexFunc(name, func(char rune) bool { return char < ' ' || char > '~' })
	if unprintable >= 0 {
		return fmt.Errorf("the name has the byte %#02x: only printable ASCII is allowed", name[unprintable])
	}
	return nil
}
