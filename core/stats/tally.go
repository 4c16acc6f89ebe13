package stats

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// A tally is how often a policy had each result, whatever the source. A tally has charges and no units: the page says
// how often, and metrics also how much.
type tally struct {
	policy                                      string
	admitted, refused, trial, withdrawn, failed uint64
	lastRefused, lastTrial                      time.Time
}

// tallies returns one for each policy, in their order, and the sum of all.
func tallies(counts []count) (each []tally, sum tally) {
	// There are few, so a list is searched faster than a map, and keeps their order.
	for i := range counts {
		policy := counts[i].Policy
		at := slices.IndexFunc(each, func(t tally) bool { return t.policy == policy })
		if at < 0 {
			at = len(each)
			each = append(each, tally{policy: policy})
		}
		each[at].add(&counts[i])
		sum.add(&counts[i])
	}
	return each, sum
}

// add adds a count of the policy.
func (t *tally) add(c *count) {
	switch c.Result {
	case admitted:
		t.admitted += c.Charges
	case refused:
		t.refused += c.Charges
		t.lastRefused = later(t.lastRefused, c.Last)
	case trial:
		t.trial += c.Charges
		t.lastTrial = later(t.lastTrial, c.Last)
	case withdrawn:
		t.withdrawn += c.Charges
	case failed:
		t.failed += c.Charges
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// decided is how many were decided, also on trial. What was withdrawn or has no answer was not decided by this policy.
func (t *tally) decided() uint64 { return t.admitted + t.refused + t.trial }

// share returns how many were refused, with the percentage.
func (t *tally) share() string {
	if t.refused == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%.3g %%)", grouped(t.refused), percent(t.refused, t.decided()))
}

// tried says what was refused on trial, if anything was.
func (t *tally) tried(now time.Time) string {
	if t.trial == 0 {
		return ""
	}
	const text = "on trial: %s (%.3g %%) would be refused, the last %s"
	return fmt.Sprintf(text, grouped(t.trial), percent(t.trial, t.decided()), ago(now, t.lastTrial))
}

// percent returns how many in a hundred a part is.
func percent(n, of uint64) float64 { return 100 * float64(n) / float64(of) }

// A part is a policy of a limiter.
type part struct{ limiter, policy string }

// An earlier is what was counted at an earlier time.
type earlier struct {
	time    time.Time
	tallies map[part]tally
}

// rate returns what a policy has decided each second since then, and how much it refused.
func (e *earlier) rate(limiter string, t *tally, now time.Time) string {
	was := e.tallies[part{limiter, t.policy}]
	seconds := now.Sub(e.time).Seconds()
	// There is no rate yet if the page is asked for in the instant in which the counting began.
	if seconds <= 0 {
		return "–"
	}
	n := t.decided() - was.decided()
	text := fmt.Sprintf("%.3g", float64(n)/seconds)
	refused := t.refused - was.refused
	if refused > 0 {
		text += fmt.Sprintf(", %.3g %% refused", percent(refused, n))
	}
	return text
}

// ratesOver is how far back rates go at least, once the page has been read for so long.
const ratesOver = 10 * time.Second

// rates keeps what was counted at two times, so that rates are those of a short time while somebody looks. All who look
// at the page share them, so one more who looks does not make the time shorter.
type rates struct {
	mu           sync.Mutex
	older, newer *earlier
}

// since returns that with which the counts are to be compared, and keeps the counts.
func (h *rates) since(n *snapshot) *earlier {
	h.mu.Lock()
	defer h.mu.Unlock()
	// The first page has the rates since the beginning. Then the old counts are those of 10 to 20 seconds ago, if
	// somebody looks so often: younger ones make rates that jump, and older ones hide what is going on now.
	if h.newer == nil {
		h.newer = &earlier{time: n.Since}
		h.older = h.newer
	}
	if n.At.Sub(h.newer.time) >= ratesOver {
		h.older = h.newer
		h.newer = &earlier{n.At, make(map[part]tally)}
		for _, counts := range n.Limiters {
			each, _ := tallies(counts.Counts)
			for _, t := range each {
				h.newer.tallies[part{counts.Name, t.policy}] = t
			}
		}
	}
	return h.older
}
