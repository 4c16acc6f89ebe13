package counts

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// A Snapshot has the counts of this process at one time, since [Stats] was made. Events that happen
// while it is made may be in it or not. It is encoded as JSON with the names in its tags.
type Snapshot struct {
	Since    time.Time `json:"since"`
	At       time.Time `json:"at"`
	Limiters []Limiter `json:"limiters"` // by name
	Slots    []Slots   `json:"slots"`    // by name
	Store    Store     `json:"store"`
	Memory   []Memory  `json:"memory,omitempty"`
}

// Limiter has the counts of the limiters of one name.
type Limiter struct {
	Name   string  `json:"name"`
	Counts []Count `json:"counts"` // of charges, without those that are 0

	GivenBack    uint64 `json:"givenBack"`    // units that were asked to be given back by Settle and Refund
	ChargedLater uint64 `json:"chargedLater"` // units that Settle and Report counted
	Uncovered    uint64 `json:"uncovered"`    // of ChargedLater: units for which there was no room
	Settled      uint64 `json:"settled"`      // charges that were corrected, or should have been
	Unsettled    uint64 `json:"unsettled"`    // of Settled: charges whose correction failed

	Refusals
}

// The results of a charge, or of a claim of a slot.
const (
	// Admitted is a charge that was admitted, or a slot that was granted.
	Admitted = "admitted"
	// Refused is a charge or a claim that was refused.
	Refused = "refused"
	// OnTrial is a charge or a claim that was refused, and that refused nobody: see Trial of
	// [store.DecisionEvent].
	OnTrial = "trial"
	// Withdrawn is a charge that this limiter admitted, and that was not made, because
	// another limiter of the same call refused.
	Withdrawn = "withdrawn"
	// Failed is a charge or a claim without an answer.
	Failed = "error"
)

// Count is how many charges had one result.
type Count struct {
	Policy  string `json:"policy,omitempty"` // that decided, if the result is Admitted, Refused or OnTrial
	Result  string `json:"result"`
	Source  string `json:"source,omitempty"` // of the decision
	Reason  string `json:"reason,omitempty"` // if Failed: unavailable, canceled, timeout, closed or other
	Charges uint64 `json:"charges"`
	Units   uint64 `json:"units"`

	Last time.Time `json:"last,omitzero"` // if Refused or OnTrial: when the policy last did
}

// Slots has the counts of slots of one name.
type Slots struct {
	Name   string      `json:"name"`
	Held   int64       `json:"held"` // by this process
	Counts []SlotCount `json:"counts"`

	Refusals
}

// SlotCount is how many claims had one result.
type SlotCount struct {
	Result string `json:"result"`
	Source string `json:"source,omitempty"`
	Reason string `json:"reason,omitempty"` // as in a Count
	Claims uint64 `json:"claims"`
}

// Refusals says who is refused, and since when.
type Refusals struct {
	// RefusingSince is when the refusals began that follow each other within a minute. It
	// is zero if there was none for a minute. LastRefused is when the last was. Neither tells of
	// refusals on trial.
	RefusingSince time.Time `json:"refusingSince,omitzero"`
	LastRefused   time.Time `json:"lastRefused,omitzero"`

	// Top are the keys that are refused most, also on trial, in the current period of 15 minutes,
	// which began with a refusal. TopBefore are the keys of the period before, if it has ended less
	// than 15 minutes ago.
	Top       *Top `json:"top,omitempty"`
	TopBefore *Top `json:"topBefore,omitempty"`
}

// Top has the keys that were refused most in a period, with their counts, the largest first.
// It has at most 128, and any key that was refused more often than Refusals/128.
type Top struct {
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Refusals uint64    `json:"refusals"` // of all keys
	Keys     []Key     `json:"keys"`
}

// A Key is a key that was refused. It was refused at least Refusals - Error times, and at
// most Refusals times.
type Key struct {
	Name     string    `json:"name"` // a hash, or with Config.ShowKeys the first 128 bytes
	Refusals uint64    `json:"refusals"`
	Error    uint64    `json:"error"`
	First    time.Time `json:"first"` // that was counted
	Last     time.Time `json:"last"`
}

// Store has the reports of stores about their servers.
type Store struct {
	Answered  Durations `json:"answered"` // calls
	Failed    Durations `json:"failed"`   // calls
	Questions uint64    `json:"questions"`
	Away      int64     `json:"away"`             // servers that are unavailable now
	Outages   uint64    `json:"outages"`          // how often one became unavailable
	Reason    string    `json:"reason"`           // of the latest outage
	Changed   time.Time `json:"changed,omitzero"` // when the latest outage began or ended
	Lost      uint64    `json:"lost"`             // slots that this process held when it was declared dead
	Restated  uint64    `json:"restated"`         // keys of slots that were stated again
}

// Durations are the durations of calls.
type Durations struct {
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"` // seconds
	Buckets []Bucket `json:"buckets"`
}

// A Bucket counts the durations that are not longer than it.
type Bucket struct {
	Seconds float64 `json:"seconds"`
	Count   uint64  `json:"count"`
}

// Memory is the memory of a store in this process.
type Memory struct {
	Name    string `json:"name"`
	Keys    int    `json:"keys"`
	Bytes   int64  `json:"bytes"`
	Evicted uint64 `json:"evicted"`
}

// Snapshot returns the counts, with the keys that are refused most.
func (s *Stats) Snapshot() Snapshot {
	n := s.Counts()
	add := func(r *Refusals, t *top) { r.Top, r.TopBefore = t.read(n.At) }
	for i := range n.Limiters {
		add(&n.Limiters[i].Refusals, &s.limiters.get(n.Limiters[i].Name).top)
	}
	for i := range n.Slots {
		add(&n.Slots[i].Refusals, &s.slots.get(n.Slots[i].Name).top)
	}
	return n
}

// Counts returns the counts, without the keys that are refused most.
func (s *Stats) Counts() Snapshot {
	n := Snapshot{
		Since: s.start, At: time.Now(),
		Limiters: []Limiter{}, Slots: []Slots{},
		Store: Store{
			Answered: s.calls.answered.read(), Failed: s.calls.failed.read(),
			Questions: s.calls.questions.Load(),
			Away:      s.away.Load(), Outages: s.outages.Load(),
			Lost: s.lost.Load(), Restated: s.restated.Load(),
		},
	}
	for _, l := range s.limiters.all() {
		n.Limiters = append(n.Limiters, l.read(n.At))
	}
	for _, k := range s.slots.all() {
		n.Slots = append(n.Slots, k.read(n.At))
	}
	slices.SortFunc(n.Limiters, func(a, b Limiter) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(n.Slots, func(a, b Slots) int { return cmp.Compare(a.Name, b.Name) })
	s.mu.Lock()
	defer s.mu.Unlock()
	n.Store.Reason, n.Store.Changed = s.reason, s.changed
	for _, m := range s.memories {
		x := m.store.Stats()
		n.Memory = append(n.Memory, Memory{m.name, x.Keys, x.Bytes, x.Evicted})
	}
	return n
}

func (l *limiter) read(now time.Time) Limiter {
	n := Limiter{
		Name: l.name, Counts: []Count{}, Refusals: l.spell.read(now),
		GivenBack: l.givenBack.Load(), ChargedLater: l.chargedLater.Load(), Uncovered: l.uncovered.Load(),
		Unsettled: l.unsettled.Load(), Settled: l.settled.Load(),
	}
	add := func(c Count, of *counter) {
		if c.Charges, c.Units = of.load(); c.Charges > 0 {
			n.Counts = append(n.Counts, c)
		}
	}
	each := func(c Count, of *counters) {
		for i := range of {
			c.Source = step.Source(i).String()
			add(c, &of[i])
		}
	}
	for _, p := range l.policies.all() {
		each(Count{Policy: p.name, Result: Admitted}, &p.admitted)
		each(Count{Policy: p.name, Result: Refused, Last: time.Unix(0, p.last.Load())}, &p.refused)
		each(Count{Policy: p.name, Result: OnTrial, Last: time.Unix(0, p.lastTrial.Load())}, &p.trial)
	}
	each(Count{Result: Withdrawn}, &l.withdrawn)
	for i := range l.errors {
		add(Count{Result: Failed, Reason: reasonText(i)}, &l.errors[i])
	}
	return n
}

func (k *slots) read(now time.Time) Slots {
	n := Slots{Name: k.name, Held: k.held(), Counts: []SlotCount{}, Refusals: k.spell.read(now)}
	for i, result := range [...]string{Admitted, Refused, OnTrial} {
		for j := range k.results[i] {
			if c := k.results[i][j].Load(); c > 0 {
				n.Counts = append(n.Counts, SlotCount{Result: result, Source: step.Source(j).String(), Claims: c})
			}
		}
	}
	for i := range k.errors {
		if c := k.errors[i].Load(); c > 0 {
			n.Counts = append(n.Counts, SlotCount{Result: Failed, Reason: reasonText(i), Claims: c})
		}
	}
	return n
}

func (s *spell) read(now time.Time) (r Refusals) {
	r.RefusingSince, r.LastRefused = s.times(now)
	return r
}
