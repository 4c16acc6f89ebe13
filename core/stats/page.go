package stats

import (
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"
)

// shownKeys is how many of the keys that are refused most are on the page.
const shownKeys = 10

//go:embed page.html
var pageText string

var (
	pageFunctions = template.FuncMap{"clock": clock, "grouped": grouped}
	page          = template.Must(template.New("page").Funcs(pageFunctions).Parse(pageText))
)

// A view is what the page shows: the report of the JSON, made into rows of texts. page.html has the order:
//
//	Now                what is wrong now, each with what to do
//	Rows               limiters: a row for each policy, with what it says and how often it decided
//	Tops               the keys that were refused most, a list for each name and period
//	SlotRows           slots
//	Servers, Memory    the store
type view struct {
	*report

	Style     template.CSS
	Refresh   int // seconds; 0: never
	RatesFrom time.Time
	Now       []trouble
	Rows      []row // of limiters
	SlotRows  []row
	Tops      []shownTop
	Servers   []string

	rates *earlier
	texts map[part]string // of policies in force that have no row yet
}

// A trouble is something that is wrong, and what to do.
type trouble struct{ What, Do string }

// A row is a policy of a limiter, or slots.
type row struct {
	Name, Policy, Text              string
	Held                            int64
	Admitted, Refused, Failed, Last string
	Rate, Trial                     string
}

// A shownTop is a list of keys.
type shownTop struct {
	Of, When string
	Refusals uint64
	Keys     []refusedKey
	More     int

	Trial, OnlyTrial bool // some of the refusals refused nobody; all
}

// view returns what the page shows, which the browser is to ask for again after so many seconds. The number comes from
// the address, so it is read as one, and what is none is ignored.
func (h *handler) view(refresh string) *view {
	r := h.report()
	rates := h.rates.since(&r.snapshot)
	v := &view{report: r, Style: template.CSS(style), RatesFrom: rates.time, rates: rates, texts: make(map[part]string)}
	n, err := strconv.Atoi(refresh)
	if err == nil && n > 0 {
		v.Refresh = min(n, 3600)
	}
	// What has decided comes first, and takes its text out of those that are in force. What is left has decided
	// nothing.
	v.readTexts()
	for i := range r.Limiters {
		v.limiter(&r.Limiters[i])
	}
	v.undecided()
	slices.SortStableFunc(v.Rows, func(a, b row) int { return strings.Compare(a.Name, b.Name) })
	for i := range r.Slots {
		v.slots(&r.Slots[i])
	}
	v.servers()
	if r.Error != "" {
		v.Now = append(v.Now, trouble{
			"The new configuration is not in force: " + r.Error,
			"Until it is right, the one before applies.",
		})
	}
	return v
}

// readTexts reads the texts of the policies that are in force.
func (v *view) readTexts() {
	if v.Limits == nil {
		return
	}
	// Plans of a limiter may have policies of one name, which are counted together.
	for _, policy := range v.Limits.Policies {
		k := part{policy.Limiter, policy.Name}
		before, ok := v.texts[k]
		if ok && before != policy.Text {
			v.texts[k] = before + "; " + policy.Text // of another plan
		} else {
			v.texts[k] = policy.Text
		}
	}
}

// limiter adds a row for each policy that decided, and one for what none decided.
func (v *view) limiter(counts *groupCounts) {
	each, sum := tallies(counts.Counts)
	for i := range each {
		t := &each[i]
		// These are the withdrawn and the failed, which come below. Their policy has no name.
		if t.decided() == 0 {
			continue
		}
		k := part{counts.Name, t.policy}
		v.Rows = append(v.Rows, row{
			Name: counts.Name, Policy: t.policy, Text: v.texts[k],
			Rate: v.rates.rate(counts.Name, t, v.At), Trial: t.tried(v.At),
			Admitted: grouped(t.admitted), Refused: t.share(), Failed: "–", Last: ago(v.At, t.lastRefused),
		})
		delete(v.texts, k)
	}
	if sum.failed > 0 || sum.withdrawn > 0 {
		text := "without a decision"
		if sum.withdrawn > 0 {
			text = grouped(sum.withdrawn) + " charges that another limiter refused"
		}
		v.Rows = append(v.Rows, row{
			Name: counts.Name, Text: text,
			Admitted: "–", Refused: "–", Rate: "–", Failed: grouped(sum.failed), Last: "–",
		})
	}
	v.refusals("limiter", "has", counts, &sum)
}

// undecided adds a row for each policy in force that has not decided yet. Of policies with one name, in several plans,
// there is one row.
func (v *view) undecided() {
	if v.Limits == nil {
		return
	}
	for _, policy := range v.Limits.Policies {
		k := part{policy.Limiter, policy.Name}
		text, ok := v.texts[k]
		if !ok {
			continue
		}
		v.Rows = append(v.Rows, row{
			Name: policy.Limiter, Policy: policy.Name, Text: text,
			Admitted: "0", Refused: "0", Rate: "0", Failed: "–", Last: "never",
		})
		delete(v.texts, k)
	}
}

// slots adds the row of the slots of one name.
func (v *view) slots(counts *groupCounts) {
	_, sum := tallies(counts.Counts)
	v.SlotRows = append(v.SlotRows, row{
		Name: counts.Name, Held: counts.Held, Last: ago(v.At, counts.LastRefused), Trial: sum.tried(v.At),
		Admitted: grouped(sum.admitted), Refused: sum.share(), Failed: grouped(sum.failed),
	})
	v.refusals("slots", "have", counts, &sum)
}

// refusals adds who is refused.
func (v *view) refusals(kind, verb string, counts *groupCounts, sum *tally) {
	// What goes on now is a trouble. Who was refused is listed even when that is over.
	of := kind + " “" + counts.Name + "”"
	if !counts.RefusingSince.IsZero() {
		v.Now = append(v.Now, trouble{
			of + " " + verb + " been refusing since " + clock(counts.RefusingSince) + ".",
			"If one key has most refusals below, a client ignores Retry-After, or the key is your proxy. " +
				"If many keys have a few, the limit is too low.",
		})
	}
	add := func(t *topKeys, when string) {
		shown := t.Keys[:min(len(t.Keys), shownKeys)]
		v.Tops = append(v.Tops, shownTop{
			Of: of, When: when, Refusals: t.Refusals, Keys: shown, More: len(t.Keys) - len(shown),
			Trial: sum.trial > 0, OnlyTrial: sum.trial > 0 && sum.refused == 0,
		})
	}
	if t := counts.Top; t != nil {
		add(t, "since "+clock(t.From))
	}
	if t := counts.TopBefore; t != nil {
		add(t, clock(t.From)+" to "+clock(t.Until))
	}
}

// servers tells of the servers of stores: an outage that goes on first.
func (v *view) servers() {
	counts := &v.Store
	switch {
	case counts.Away > 0:
		v.Now = append(v.Now, trouble{
			fmt.Sprintf("The store is unavailable since %s: %s", clock(counts.Changed), counts.Reason),
			"Meanwhile, the Failure of its configuration decides. " +
				"The command “headgate ping” tells what is wrong with Redis.",
		})
	case counts.Outages > 0:
		v.Servers = append(v.Servers, fmt.Sprintf("It was unavailable %s times, until %s: %s",
			grouped(counts.Outages), clock(counts.Changed), counts.Reason))
	}
	n := counts.Answered.Count + counts.Failed.Count
	if n > 0 {
		mean := time.Duration((counts.Answered.Sum + counts.Failed.Sum) / float64(n) * float64(time.Second))
		const text = "%s calls, %s of which failed, about %s questions; %v a call on average."
		failed := grouped(counts.Failed.Count)
		v.Servers = append(v.Servers,
			fmt.Sprintf(text, grouped(n), failed, grouped(counts.Questions), mean.Round(time.Microsecond)))
	}
	if counts.Lost+counts.Restated > 0 {
		v.Servers = append(v.Servers, fmt.Sprintf("%s slots were lost, %s keys of slots stated again.",
			grouped(counts.Lost), grouped(counts.Restated)))
	}
}

// clock returns a time of day in UTC, with the date unless it is today's.
func clock(t time.Time) string {
	t = t.UTC()
	y, month, d := time.Now().UTC().Date()
	if t.Year() == y && t.Month() == month && t.Day() == d {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// ago says how long ago something was.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return max(now.Sub(then), 0).Round(time.Second).String() + " ago"
}
