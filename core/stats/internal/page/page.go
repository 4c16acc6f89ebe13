package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/core/stats/internal/counts"
)

// shownKeys is how many of the keys that are refused most are on the page.
const shownKeys = 10

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"clock": clock}).Parse(pageText))

// A view is what the page shows.
type view struct {
	Style     template.CSS
	Refresh   int // seconds; 0: never
	Since, At time.Time
	Process   Process
	RatesFrom time.Time
	Now       []trouble
	Rows      []row
	Tops      []top
	Slots     []row
	Version   string
	Servers   []string
	Memory    []counts.Memory
}

// A trouble is something that is wrong, and what to do.
type trouble struct{ What, Do string }

// A row is one of the limiters or of the slots.
type row struct {
	Limiter, Policy, Text           string
	Held                            int64
	Admitted, Refused, Failed, Last string
	Rate, Trial                     string
}

type top struct {
	Of, When, Total string
	Keys            []counts.Key
	More            int

	Trial, OnlyTrial bool // some of the refusals refused nobody; all
}

func writePage(w io.Writer, r Report, before *sample, refresh string) error {
	v := view{Style: template.CSS(style), Since: r.Since, At: r.At, Memory: r.Memory, Process: r.Process, RatesFrom: before.at}
	if n, err := strconv.Atoi(refresh); err == nil && n > 0 {
		v.Refresh = min(n, 3600)
	}
	texts := v.limits(&r)
	for i := range r.Limiters {
		l := &r.Limiters[i]
		v.limiter(l, texts, &r, before)
		v.refusals("limiter", l.Name, &l.Refusals, ofLimiter(l))
	}
	v.undecided(r.Limits, texts)
	slices.SortStableFunc(v.Rows, func(a, b row) int { return strings.Compare(a.Limiter, b.Limiter) })
	for i := range r.Slots {
		k := &r.Slots[i]
		v.slots(k, r.At)
		v.refusals("slots", k.Name, &k.Refusals, ofSlots(k))
	}
	v.servers(&r.Store)
	v.stale(r.Limits)
	return page.Execute(w, v)
}

// A part is a policy of a limiter.
type part struct{ limiter, policy string }

// limits returns the texts of the policies that are in force.
func (v *view) limits(r *Report) map[part]string {
	texts := make(map[part]string)
	if r.Limits == nil {
		return texts
	}
	v.Version = r.Limits.Version
	for _, l := range r.Limits.Limiters {
		for _, p := range l.Policies {
			k := part{l.Name, p.Name}
			if before, ok := texts[k]; ok && before != p.Policy {
				texts[k] = before + "; " + p.Policy // of another plan
			} else {
				texts[k] = p.Policy
			}
		}
	}
	return texts
}

// limiter adds a row for each policy that decided, and one for what none decided.
func (v *view) limiter(l *counts.Limiter, texts map[part]string, r *Report, before *sample) {
	var order []string
	of := make(map[string]*tally)
	var failed, withdrawn uint64
	for _, c := range l.Counts {
		switch c.Result {
		case counts.Failed:
			failed += c.Charges
			continue
		case counts.Withdrawn:
			withdrawn += c.Charges
			continue
		}
		s := of[c.Policy]
		if s == nil {
			s = new(tally)
			of[c.Policy] = s
			order = append(order, c.Policy)
		}
		s.add(c.Result, c.Charges, c.Last)
	}
	for _, policy := range order {
		s := of[policy]
		p := part{l.Name, policy}
		v.Rows = append(v.Rows, row{
			Limiter: l.Name, Policy: policy, Text: texts[p], Rate: before.rate(p, s, r.At), Trial: s.tried(r.At),
			Admitted: counts.Grouped(s.admitted), Refused: s.share(), Failed: "–", Last: ago(r.At, s.last),
		})
		delete(texts, p)
	}
	if failed > 0 || withdrawn > 0 {
		text := "without a decision"
		if withdrawn > 0 {
			text = counts.Grouped(withdrawn) + " charges fitted, and another limiter refused them"
		}
		v.Rows = append(v.Rows, row{Limiter: l.Name, Text: text, Admitted: "–", Refused: "–", Rate: "–", Failed: counts.Grouped(failed), Last: "–"})
	}
}

func (v *view) slots(k *counts.Slots, now time.Time) {
	s := ofSlots(k)
	v.Slots = append(v.Slots, row{
		Limiter: k.Name, Held: k.Held, Last: ago(now, k.LastRefused), Trial: s.tried(now),
		Admitted: counts.Grouped(s.admitted), Refused: s.share(), Failed: counts.Grouped(s.failed),
	})
}

// undecided adds a row for each policy in force that has not decided yet.
func (v *view) undecided(limits *ReportedLimits, texts map[part]string) {
	if limits == nil {
		return
	}
	for _, l := range limits.Limiters {
		for _, p := range l.Policies {
			of := part{l.Name, p.Name}
			if text, ok := texts[of]; ok {
				v.Rows = append(v.Rows, row{Limiter: l.Name, Policy: p.Name, Text: text, Admitted: "0", Refused: "0", Rate: "0", Failed: "–", Last: "never"})
				delete(texts, of)
			}
		}
	}
}

// refusals adds who is refused.
func (v *view) refusals(kind, name string, r *counts.Refusals, s *tally) {
	of := kind + " “" + name + "”"
	if !r.RefusingSince.IsZero() {
		verb := map[string]string{"limiter": "has", "slots": "have"}[kind]
		v.Now = append(v.Now, trouble{
			of + " " + verb + " been refusing since " + clock(r.RefusingSince) + ".",
			"If one key has most refusals below, a client ignores Retry-After, or the key is your proxy. If many keys have a few, the limit is too low.",
		})
	}
	add := func(t *counts.Top, when string) {
		if t == nil {
			return
		}
		shown := t.Keys[:min(len(t.Keys), shownKeys)]
		v.Tops = append(v.Tops, top{
			Of: of, When: when, Trial: s.trial > 0, OnlyTrial: s.trial > 0 && s.refused == 0, Total: counts.Grouped(t.Refusals),
			Keys: shown, More: len(t.Keys) - len(shown),
		})
	}
	if r.Top != nil {
		add(r.Top, "since "+clock(r.Top.From))
	}
	if r.TopBefore != nil {
		add(r.TopBefore, clock(r.TopBefore.From)+" to "+clock(r.TopBefore.Until))
	}
}

// stale adds why a newer configuration is not in force.
func (v *view) stale(limits *ReportedLimits) {
	if limits != nil && limits.Error != "" {
		v.Now = append(v.Now, trouble{"The new configuration is not in force: " + limits.Error, "Until it is right, the one before applies."})
	}
}

func (v *view) servers(s *counts.Store) {
	switch {
	case s.Away > 0:
		v.Now = append(v.Now, trouble{
			fmt.Sprintf("The store is unavailable since %s: %s", clock(s.Changed), s.Reason),
			"Meanwhile, the Failure of its configuration decides. The command “headgate ping” tells what is wrong with Redis.",
		})
	case s.Outages > 0:
		v.Servers = append(v.Servers, fmt.Sprintf("It was unavailable %s times, until %s: %s", counts.Grouped(s.Outages), clock(s.Changed), s.Reason))
	}
	if n := s.Answered.Count + s.Failed.Count; n > 0 {
		mean := time.Duration((s.Answered.Sum + s.Failed.Sum) / float64(n) * float64(time.Second))
		v.Servers = append(v.Servers, fmt.Sprintf("%s calls, %s of which failed, about %s questions; %v a call on average.",
			counts.Grouped(n), counts.Grouped(s.Failed.Count), counts.Grouped(s.Questions), mean.Round(time.Microsecond)))
	}
	if s.Lost+s.Restated > 0 {
		v.Servers = append(v.Servers, fmt.Sprintf("%s slots were lost, %s keys of slots stated again.", counts.Grouped(s.Lost), counts.Grouped(s.Restated)))
	}
}

// clock returns a time of day in UTC, with the date unless it is today's.
func clock(t time.Time) string {
	t = t.UTC()
	if y, m, d := time.Now().UTC().Date(); t.Year() == y && t.Month() == m && t.Day() == d {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return max(now.Sub(then), 0).Round(time.Second).String() + " ago"
}
