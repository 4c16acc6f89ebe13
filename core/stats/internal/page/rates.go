package page

import (
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/core/stats/internal/counts"
)

// A tally is how often there was each result.
type tally struct {
	admitted, refused, trial, failed uint64
	last, lastTrial                  time.Time
}

func (t *tally) add(result string, n uint64, last time.Time) {
	switch result {
	case counts.Admitted:
		t.admitted += n
	case counts.Refused:
		t.refused += n
		t.last = later(t.last, last)
	case counts.OnTrial:
		t.trial += n
		t.lastTrial = later(t.lastTrial, last)
	case counts.Failed:
		t.failed += n
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func ofLimiter(l *counts.Limiter) *tally {
	t := new(tally)
	for _, c := range l.Counts {
		t.add(c.Result, c.Charges, c.Last)
	}
	return t
}

func ofSlots(k *counts.Slots) *tally {
	t := new(tally)
	for _, c := range k.Counts {
		t.add(c.Result, c.Claims, time.Time{})
	}
	return t
}

// decided is how many were decided, also on trial.
func (t *tally) decided() uint64 { return t.admitted + t.refused + t.trial }

// share returns how many were refused, with the percentage.
func (t *tally) share() string {
	if t.refused == 0 {
		return "0"
	}
	return fmt.Sprintf("%s (%.3g %%)", counts.Grouped(t.refused), percent(t.refused, t.decided()))
}

// tried says what was refused on trial, if anything was.
func (t *tally) tried(now time.Time) string {
	if t.trial == 0 {
		return ""
	}
	text := fmt.Sprintf("on trial: %s (%.3g %%) would be refused", counts.Grouped(t.trial), percent(t.trial, t.decided()))
	if !t.lastTrial.IsZero() {
		text += ", the last " + ago(now, t.lastTrial)
	}
	return text
}

func percent(n, of uint64) float64 { return 100 * float64(n) / float64(of) }

// A sample is what was counted at one time.
type sample struct {
	at time.Time
	of map[part]tally
}

// rate returns what a policy has decided each second since the sample, and how much it refused.
func (s *sample) rate(p part, t *tally, now time.Time) string {
	was, seconds := s.of[p], now.Sub(s.at).Seconds()
	if seconds <= 0 {
		return "–"
	}
	n := t.decided() - was.decided()
	text := fmt.Sprintf("%.3g", float64(n)/seconds)
	if refused := t.refused - was.refused; refused > 0 {
		text += fmt.Sprintf(", %.3g %% refused", percent(refused, n))
	}
	return text
}

// ratesOver is how far back rates go at least, once the page has been read for so long.
const ratesOver = 10 * time.Second

// rates keeps two samples, so that rates are those of a short time while somebody looks.
type rates struct {
	mu         sync.Mutex
	old, young *sample
}

// since returns the sample with which a report is to be compared, and keeps the report.
func (h *rates) since(r *counts.Snapshot) *sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.young == nil {
		h.young = &sample{at: r.Since}
		h.old = h.young
	}
	if r.At.Sub(h.young.at) >= ratesOver {
		h.old, h.young = h.young, newSample(r)
	}
	return h.old
}

func newSample(r *counts.Snapshot) *sample {
	s := &sample{at: r.At, of: make(map[part]tally)}
	for _, l := range r.Limiters {
		for _, c := range l.Counts {
			p := part{l.Name, c.Policy}
			t := s.of[p]
			t.add(c.Result, c.Charges, c.Last)
			s.of[p] = t
		}
	}
	return s
}
