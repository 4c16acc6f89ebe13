package headgated

import (
	"context"
	"fmt"
	"slices"

	"github.com/headgate/headgate/internal/old/core"
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

// A verb is what is done about charges.
type verb int

const (
	toCharge verb = iota // all or none
	toCheck              // nothing is charged
	toReport             // all, whether they fit or not
)

// chargesOf returns what is asked for by the limiters of a configuration. With strict, a plan that the document does not have is an unknownError;
// otherwise the default plan applies.
func (c *configuration) chargesOf(asks []ask, strict bool) (charges []core.Charge, err error) {
	charges = make([]core.Charge, 0, len(asks))
	for i, a := range asks {
		l, known := c.view.Find(a.limit, a.plan, a.key)
		switch {
		case l == nil, c.bare:
			return nil, &unknownError{i, wordLimit}
		case strict && !known:
			return nil, &unknownError{i, wordPlan}
		}
		charges = append(charges, core.Charge{Limiter: l, Key: a.key, N: a.units})
	}
	return charges, nil
}

// decide asks core. Uncovered is of a report: the units for which there was no room.
func decide(ctx context.Context, v verb, charges []core.Charge) (d core.Decision, uncovered int64, err error) {
	switch v {
	case toCheck:
		d, err = core.PeekAll(ctx, charges...)
	case toReport:
		d, uncovered, err = core.ReportAll(ctx, charges...)
	default:
		d, err = core.AllowAll(ctx, charges...)
	}
	return d, uncovered, err
}
