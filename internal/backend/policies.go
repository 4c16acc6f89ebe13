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

// Policies are the policies of a plan, or of a key, as they are asked. They do not change.
type Policies struct {
	List     []step.Policy
	Max      int64 // the largest charge that all can admit
	Constant bool  // unlimited or blocked: no store is asked
}

// Prepare returns policies of a limiter as they are asked. It calls fault with each fault, and which of them has it, or -1.
func Prepare(limiter string, all []Policy, fault func(i int, err error)) *Policies {
	ps := &Policies{Max: step.MaxInt}
	if err := CheckName(limiter); err != nil {
		fault(-1, err)
	}
	if n := len(all); n == 0 || n > MaxPolicies {
		fault(-1, fmt.Errorf("a limiter has 1 to %d policies, not %d", MaxPolicies, n))
	}
	for i, p := range all {
		if p.Name == "" && len(all) == 1 {
			p.Name = limiter
		} else if err := CheckName(p.Name); err != nil {
			fault(i, err)
		}
		if slices.ContainsFunc(all[:i], func(q Policy) bool { return q.Name == p.Name && p.Name != "" }) {
			fault(i, errors.New("another policy has the same name"))
		}
		if ps.Constant = p.Constant(); ps.Constant && len(all) > 1 {
			fault(i, errors.New("unlimited and blocked must be the only policy: remove the others"))
		}
		q, err := step.New(limiter, p.Name, p.Numbers)
		if err != nil {
			fault(i, err)
		}
		q.Last = i == len(all)-1
		ps.Max = min(ps.Max, q.Max())
		ps.List = append(ps.List, q)
	}
	return ps
}

// CheckName accepts what a String of RFC 9651 can hold.
func CheckName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("a name has at most %d characters, not %d", maxName, len(name))
	}
	if i := strings.IndexFunc(name, func(c rune) bool { return c < ' ' || c > '~' }); i >= 0 {
		return fmt.Errorf("the name has the byte %#02x: only printable ASCII is allowed", name[i])
	}
	return nil
}
