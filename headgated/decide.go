package headgated

import (
	"fmt"
	"slices"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
)

// An ask is a charge that a request asks for.
type ask struct {
	limit, plan, key string
	units            int64
}

// in returns the index of the ask of the same limit, plan and key, or -1.
func (a ask) in(asks []ask) int {
	return slices.IndexFunc(asks, func(b ask) bool { return a.limit == b.limit && a.plan == b.plan && a.key == b.key })
}

// An unknownError is about a limit or a plan that the document does not have.
type unknownError struct {
	index int
	what  string
}

func (e *unknownError) Error() string {
	return fmt.Sprintf("charges[%d].%s: there is no such %[2]s", e.index, e.what)
}

// Verbs are what is done about charges.
const (
	toCharge = step.Allow  // all or none
	toCheck  = step.Peek   // nothing is charged
	toReport = step.Settle // all, whether they fit or not
)

// chargesOf returns what is asked for by the limiters of a configuration. With strict, a plan that the document does not have is an unknownError;
// otherwise the default plan applies.
func (c *configuration) chargesOf(asks []ask, strict bool) (charges []backend.Charge, err error) {
	charges = make([]backend.Charge, 0, len(asks))
	for i, a := range asks {
		l, known := c.limiter(a.limit, a.plan, a.key)
		switch {
		case l == nil:
			return nil, &unknownError{i, wordLimit}
		case strict && !known:
			return nil, &unknownError{i, wordPlan}
		}
		charges = append(charges, backend.Charge{Limiter: l, Key: a.key, Units: a.units})
	}
	return charges, nil
}

// limiter returns what applies to a key in a request of a plan, and whether the document has that plan. It is nil if
// there is no such limit.
func (c *configuration) limiter(limit, plan, key string) (l *backend.Limiter, known bool) {
	t := c.tables[limit]
	if t == nil {
		return nil, false
	}
	return backend.NewShared(c.store, limit).Constant(t.Find(plan, key)), plan == "" || t.Has(plan)
}
