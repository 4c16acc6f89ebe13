package core

import (
	"context"
	"fmt"
	"slices"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/store"
)

const maxCharges = 64 // of an AllowAll

// A Charge is a call to charge a key of a limiter with N units.
//
// With N = 0 it charges nothing and only checks. A window or a token bucket then refuses if more
// than its limit is used. That is possible after a [Limiter.Report]. A SlidingLog and a MinInterval
// refuse if they would refuse one unit.
type Charge struct {
	Limiter *Limiter
	Key     string `json:"-"`
	N       int64

	// Anyway counts the units whether they fit or not, up to 2^53-1, since they have been
	// used. The charge refuses nothing, and is counted even if the call is refused for another.
	// [Answer.Allowed] says whether it fitted. See [Limiter.Report].
	Anyway bool
}

// Format implements [fmt.Formatter]: it prints the charge without its key.
func (c Charge) Format(s fmt.State, verb rune) {
	type plain Charge
	c.Key = hidden.Mark
	hidden.Print(s, verb, plain(c))
}

// AllowAll charges several limiters together, each for its own key and number of units: all are
// charged or none is. There are 1 to 64 charges. Their limiters have equal stores, and at most 64
// policies together. No two charges have both the same limiter's name and the same key. Otherwise
// the error is [ErrQuestion].
//
// For example, it limits a session, and with a larger number the address that many
// sessions share.
func AllowAll(ctx context.Context, charges ...Charge) (Decision, error) {
	d, _, err := together(ctx, store.Allow, charges)
	return d, err
}

// PeekAll returns the decision that [AllowAll] would make, and changes nothing.
func PeekAll(ctx context.Context, charges ...Charge) (Decision, error) {
	d, _, err := together(ctx, store.Peek, charges)
	return d, err
}

// Report counts n units that have been used, whether they fit or not. Examples are the tokens of an
// answer, the bytes of a download or the seconds of a computation. From then on the key is refused
// for as long as if they had been admitted. A token bucket goes into debt, but no further than
// [Policy.Debt]. The count of a window stands above its limit. Events that have begun may go on.
//
// The decision is Allowed if all units fitted. Its Remaining is the number of units left after
// counting, and its RetryAfter the time until one unit is left. The result uncovered is the number
// of units for which there was no room. The decision holds no charge that could be settled, because
// the units are used.
//
// A number below 1 is [ErrCost], and one above 2^53-1 counts as that. An error of the store means that
// it is unknown whether the units were counted; they are not sent twice. While a shared store is away,
// they are counted in this process or not at all, as the store is configured.
func (l *Limiter) Report(ctx context.Context, key string, n int64) (d Decision, uncovered int64, err error) {
	return ReportAll(ctx, Charge{Limiter: l, Key: key, N: n})
}

// ReportAll is [Limiter.Report] for several limiters, each with its own key and number of units, as
// [AllowAll] takes them. All of them are Anyway.
func ReportAll(ctx context.Context, charges ...Charge) (d Decision, uncovered int64, err error) {
	reported := slices.Clone(charges)
	for i := range reported {
		if reported[i].N == 0 {
			return Decision{}, 0, ErrCost
		}
		reported[i].Anyway = true
	}
	return together(ctx, store.Allow, reported)
}

// together makes a decision about charges.
func together(ctx context.Context, mode store.Mode, charges []Charge) (d Decision, uncovered int64, err error) {
	if ctx == nil {
		return Decision{}, 0, errContext
	}
	if err := checkCharges(charges); err != nil {
		return Decision{}, 0, err
	}
	if c := &charges[0]; len(charges) == 1 && !c.Anyway {
		err = c.Limiter.decide(ctx, mode, *c, &d)
		return d, 0, err
	}
	o := charges[0].Limiter.observer
	start := begin(o)
	q, err := decideAll(ctx, mode, charges)
	defer q.free()
	if o != nil && mode != store.Peek {
		decided(ctx, o, start, &q.Result, err, charges...)
		reported(ctx, o, start, q, err)
	}
	if err != nil {
		return Decision{}, 0, err
	}
	for i := range q.Charges {
		uncovered = max(uncovered, q.Charges[i].Uncovered)
	}
	d = decisionOf(&q.Result, charges...)
	if mode == store.Peek {
		d.spent = nil
	}
	return d, uncovered, nil
}

// checkCharges reports why charges cannot be made in one call.
func checkCharges(charges []Charge) error {
	if err := checkTogether("charge", charges, maxCharges); err != nil {
		return err
	}
	n := 0
	for i := range charges {
		if charges[i].N < 0 {
			return ErrCost
		}
		n += len(charges[i].Limiter.policies)
	}
	if n > store.MaxReadings {
		return fmt.Errorf("%w: the limiters of %d charges have %d policies, more than %d", ErrQuestion, len(charges), n, store.MaxReadings)
	}
	return nil
}

// A member is a charge or a claim, as far as all of one call are checked together.
type member struct {
	of    string // what the name is of
	name  string
	store any // all that are not nil must be equal
	key   string
}

func (c Charge) member() (m member, ok bool) {
	if c.Limiter == nil {
		return member{of: "limiter"}, false
	}
	return member{"limiter", c.Limiter.name, c.Limiter.store, c.Key}, true
}

// checkTogether reports why these charges or claims cannot be made in one call.
func checkTogether[T interface{ member() (member, bool) }](what string, parts []T, most int) error {
	if len(parts) == 0 || len(parts) > most {
		return fmt.Errorf("%w: %d %ss, not 1 to %d", ErrQuestion, len(parts), what, most)
	}
	var room [8]member // enough for most calls
	before := room[:0]
	for i, p := range parts {
		m, ok := p.member()
		if !ok {
			return fmt.Errorf("%w: nil %s in %s %d", ErrQuestion, m.of, what, i+1)
		}
		for _, b := range before {
			if b.store != m.store && b.store != nil && m.store != nil {
				return fmt.Errorf("%w: %s %q and %q have different stores", ErrQuestion, m.of, b.name, m.name)
			}
			if b.name == m.name && b.key == m.key {
				return fmt.Errorf("%w: two %ss of %s %q have the same key", ErrQuestion, what, m.of, m.name)
			}
		}
		before = append(before, m)
	}
	return nil
}
