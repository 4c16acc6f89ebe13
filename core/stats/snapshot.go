package stats

import (
	"cmp"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// A snapshot has the counts of this process at one time, since [New]. Events that happen while it is made may be in it
// or not. It is encoded as JSON with the names in its tags.
type snapshot struct {
	Since    time.Time      `json:"since"`
	At       time.Time      `json:"at"`
	Limiters []groupCounts  `json:"limiters"` // by name
	Slots    []groupCounts  `json:"slots"`    // by name
	Store    storeCounts    `json:"store"`
	Memory   []memoryCounts `json:"memory,omitempty"`
}

// groupCounts are the counts of the limiters, or the slots, of one name.
type groupCounts struct {
	Name   string  `json:"name"`
	Counts []count `json:"counts"` // without those that are 0

	GivenBack    uint64 `json:"givenBack,omitempty"`    // units that were asked to be given back by Settle and Refund
	ChargedLater uint64 `json:"chargedLater,omitempty"` // units that Settle and Report counted
	Uncovered    uint64 `json:"uncovered,omitempty"`    // of ChargedLater: units for which there was no room
	Settled      uint64 `json:"settled,omitempty"`      // charges that were corrected, or should have been
	Unsettled    uint64 `json:"unsettled,omitempty"`    // of Settled: charges whose correction failed
	Held         int64  `json:"held,omitempty"`         // slots that this process holds

	// RefusingSince is when the refusals began that follow each other within a minute. It is zero if there was none for
	// a minute. LastRefused is when the last was. Neither tells of refusals on trial.
	RefusingSince time.Time `json:"refusingSince,omitzero"`
	LastRefused   time.Time `json:"lastRefused,omitzero"`

	// Top are the keys that are refused most, also on trial, in the current period of 15 minutes, which began with a
	// refusal. TopBefore are the keys of the period before, if it has ended less than 15 minutes ago.
	Top       *topKeys `json:"top,omitempty"`
	TopBefore *topKeys `json:"topBefore,omitempty"`
}

// The results of a charge, or of a claim of a slot.
const (
	admitted  = "admitted"
	refused   = "refused"
	trial     = "trial"     // refused by a rule that only observes
	withdrawn = "withdrawn" // not made, because another limiter of the same call refused
	failed    = "error"     // without an answer
)

// A count is how many charges, or claims of one slot, had one result.
type count struct {
	Policy  string `json:"policy,omitempty"` // that decided, if a limiter admitted or refused
	Result  string `json:"result"`
	Source  string `json:"source,omitempty"` // of the decision
	Reason  string `json:"reason,omitempty"` // why there is none
	Charges uint64 `json:"charges"`
	Units   uint64 `json:"units"`

	Last time.Time `json:"last,omitzero"` // when the policy last refused, if that is the result
}

// topKeys are the keys that were refused most in a period, with their counts, the largest first. They are at most 128,
// and any key that was refused more often than Refusals/128.
type topKeys struct {
	From     time.Time    `json:"from"`
	Until    time.Time    `json:"until"`
	Refusals uint64       `json:"refusals"` // of all keys
	Keys     []refusedKey `json:"keys"`
}

// A refusedKey was refused at least Refusals - Error times, and at most Refusals times.
type refusedKey struct {
	Name     string    `json:"name"` // a hash, or with Config.ShowKeys the first 128 bytes
	Refusals uint64    `json:"refusals"`
	Error    uint64    `json:"error"`
	First    time.Time `json:"first"` // that was counted
	Last     time.Time `json:"last"`
}

// storeCounts are about the servers of stores.
type storeCounts struct {
	Answered  durations `json:"answered"` // calls
	Failed    durations `json:"failed"`   // calls
	Questions uint64    `json:"questions"`
	Away      int64     `json:"away"`             // servers that are unavailable now
	Outages   uint64    `json:"outages"`          // how often one became unavailable
	Reason    string    `json:"reason"`           // of the latest outage
	Changed   time.Time `json:"changed,omitzero"` // since when a server has been unavailable, or none any more
	Lost      uint64    `json:"lost"`             // slots that this process held when it was declared dead
	Restated  uint64    `json:"restated"`         // keys of slots that were stated again
}

// durations are those of calls.
type durations struct {
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"` // seconds
	Buckets []bucket `json:"buckets"`
}

// A bucket counts the durations that are not longer than it.
type bucket struct {
	Seconds float64 `json:"seconds"`
	Count   uint64  `json:"count"`
}

// memoryCounts are about a store in this process.
type memoryCounts struct {
	Name    string `json:"name"`
	Keys    int    `json:"keys"`
	Bytes   int64  `json:"bytes"`
	Evicted uint64 `json:"evicted"`
}

// snapshot returns the counts, and if that is wanted the keys that are refused most. It takes the lock of each list of
// keys, so who only reads metrics does without.
func (s *Stats) snapshot(keys bool) snapshot {
	now := time.Now()
	n := snapshot{
		Since: s.start, At: now, Limiters: readGroups(&s.limiters, now, keys), Slots: readGroups(&s.slots, now, keys),
		Store: storeCounts{
			Answered: s.answered.read(), Failed: s.failed.read(), Questions: s.questions.Load(),
			Outages: s.outages.Load(), Lost: s.lost.Load(), Restated: s.restated.Load(),
		},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.Store.Reason = s.reason
	n.Store.Away = s.away
	n.Store.Changed = s.changed
	for i, use := range s.memories {
		name := "memory"
		x := use()
		if i > 0 {
			name += " " + strconv.Itoa(i+1)
		}
		n.Memory = append(n.Memory, memoryCounts{name, x.Keys, x.Bytes, x.Evicted})
	}
	return n
}

// readGroups returns the counts of all names, by name.
func readGroups(r *registry[group], now time.Time, keys bool) []groupCounts {
	all := []groupCounts{} // in JSON not null
	for _, g := range r.all() {
		n := g.read(now)
		if keys {
			n.Top, n.TopBefore = g.top.read(now)
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b groupCounts) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// read returns the counts of one name.
func (g *group) read(now time.Time) groupCounts {
	released := g.released.Load() // first: what is released was granted before, so Held is never below 0
	// A part is read before its whole, and counted after it: so it is never the more.
	n := groupCounts{
		Name: g.name, Counts: []count{}, Uncovered: g.uncovered.Load(), ChargedLater: g.chargedLater.Load(),
		GivenBack: g.givenBack.Load(), Unsettled: g.unsettled.Load(), Settled: g.settled.Load(),
	}
	n.RefusingSince, n.LastRefused = g.spell.times(now)
	// What is 0 is left out: most combinations of results and sources never occur.
	add := func(c count, of *counter, last *atomic.Int64) {
		c.Charges, c.Units = of.load()
		if c.Charges == 0 {
			return
		}
		if last != nil { // read after the count, and written before it: what is counted has a time
			c.Last = time.Unix(0, last.Load())
		}
		n.Counts = append(n.Counts, c)
	}
	each := func(c count, of *counters, last *atomic.Int64) {
		for i := range of {
			c.Source = step.Source(i).String()
			add(c, &of[i], last)
		}
	}
	for _, policy := range g.policies.all() {
		each(count{Policy: policy.name, Result: admitted}, &policy.admitted, nil)
		each(count{Policy: policy.name, Result: refused}, &policy.refused, &policy.lastRefused)
		each(count{Policy: policy.name, Result: trial}, &policy.trial, &policy.lastTrial)
	}
	each(count{Result: withdrawn}, &g.withdrawn, nil)
	for i := range g.errors {
		add(count{Result: failed, Reason: reasonTexts[i]}, &g.errors[i], nil)
	}
	// What this process holds is what it was granted, less what it has released.
	if g.kind == "slots" {
		for _, c := range n.Counts {
			if c.Result == admitted {
				n.Held += int64(c.Charges)
			}
		}
		n.Held -= int64(released)
	}
	return n
}

// read returns the durations. Each bucket has those of the smaller ones, too, as Prometheus wants it. The last count,
// of calls that are longer than all bounds, is only in the sum of all.
func (h *histogram) read() durations {
	var d durations
	for i := range h.counts {
		d.Count += h.counts[i].Load()
		if i < len(buckets) {
			d.Buckets = append(d.Buckets, bucket{buckets[i].Seconds(), d.Count})
		}
	}
	d.Sum = time.Duration(h.sum.Load()).Seconds()
	return d
}
