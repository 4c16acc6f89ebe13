// Package occupancy has what guards that take slots share.
package occupancy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/headgate/headgate/core"
)

// SetFields appends the fields of draft-ietf-httpapi-ratelimit-headers-11 about all limits
// but those that are hidden. Held is -1 where it is unknown. If full, those that are known
// have refused.
func SetFields(h http.Header, all []core.Occupancy, hidden func(i int) bool, full bool) {
	var policies, states string
	for i, o := range all {
		if hidden(i) || o.Limit == core.NoLimit {
			continue
		}
		name := strconv.Quote(o.Slots) // printable ASCII: the same in RFC 9651
		policies = list(policies, fmt.Sprintf(`%s;q=%d;qu="concurrent-requests"`, name, o.Limit))
		if o.Held >= 0 {
			remaining := o.Remaining()
			if full { // these slots refused, whatever the store has counted
				remaining = 0
			}
			states = list(states, fmt.Sprintf(`%s;r=%d`, name, remaining))
		}
	}
	addOnce(h, "Ratelimit-Policy", policies)
	addOnce(h, "Ratelimit", states)
}

// addOnce adds a value, unless it is empty or already there because a guard set its fields
// twice.
func addOnce(h http.Header, name, value string) {
	if value != "" && !slices.Contains(h[name], value) {
		h[name] = append(h[name], value)
	}
}

// list appends to the text of a list (RFC 9651).
func list(items, item string) string {
	if items == "" {
		return item
	}
	return items + ", " + item
}

// Of returns the occupancies of a slot, with Held -1 if nothing was counted.
func Of(slot *core.Slot) []core.Occupancy {
	all := slot.Occupancies()
	if slot.Source() == core.SourceOpen {
		for i := range all {
			all[i].Held = -1
		}
	}
	return all
}

// Refused returns the occupancies of claims of which one was full: only that one is known.
func Refused(full *core.FullError, claims []core.Claim) (all []core.Occupancy) {
	for i, c := range claims {
		o := core.Occupancy{Slots: c.Slots.Name(), Limit: c.Slots.Limit(c.Key), Held: -1}
		if i == full.Claim {
			o = full.Occupancy
		}
		all = append(all, o)
	}
	return all
}

// Clash returns why two slots cannot be taken together, or nil if they can, or if a is nil.
func Clash(a, b *core.Slots) error {
	switch {
	case a == nil:
		return nil
	case a.Name() == b.Name():
		return fmt.Errorf("both slots are named %q: give each a name of its own", a.Name())
	case a.Store() != b.Store() && a.Store().Shared() && b.Store().Shared():
		return fmt.Errorf("slots %q and %q have different stores, both shared: use one store, or one guard for each", a.Name(), b.Name())
	}
	return nil
}
