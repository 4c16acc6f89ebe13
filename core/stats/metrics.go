package stats

import (
	"io"
	"iter"
	"strconv"
	"strings"
)

// A Family is a metric, with its series.
type Family struct {
	Name, Help string
	Type       string // counter, gauge or histogram
	Samples    []Sample
}

// A Sample is one value. Those of a histogram are the cumulative counts of its buckets, whose last label is le, the
// last with "+Inf", and then the sum of what was observed, without le.
type Sample struct {
	Labels []string // name, value, name, value, ...
	Value  float64
}

// Families returns the counts, for exporters to other systems. It makes new ones with each call, about one sample for
// each name, policy, result and source that has occurred. A family is there also if it has no sample. Their names and
// labels are what boards and alerts are made of: a change of one is a change of the API.
func (s *Stats) Families() []Family {
	// Keys are in no metric: their names would make a series each.
	n := s.snapshot(false)
	var m metrics
	m.limiters(n.Limiters)
	m.slots(n.Slots)
	m.store(&n.Store)
	m.memory(n.Memory)
	return m
}

// WritePrometheus writes the counts in the text format of Prometheus, version 0.0.4. The error is that of the writer.
//
//	# HELP headgate_decisions_total Charges that were decided, by the policy that decided.
//	# TYPE headgate_decisions_total counter
//	headgate_decisions_total{limiter="api",policy="day",result="admitted",source="store"} 2
func (s *Stats) WritePrometheus(w io.Writer) error {
	var text strings.Builder
	for _, family := range s.Families() {
		text.WriteString("# HELP " + family.Name + " " + family.Help + "\n")
		text.WriteString("# TYPE " + family.Name + " " + family.Type + "\n")
		// The text wants a sum and a count of each histogram. A Sample without le is the sum, and comes after the last
		// bucket.
		count := 0.0 // what the last bucket has
		for _, sample := range family.Samples {
			n := len(sample.Labels)
			switch {
			case family.Type != "histogram":
				write(&text, family.Name, sample.Labels, sample.Value)
			case n > 1 && sample.Labels[n-2] == "le":
				write(&text, family.Name+"_bucket", sample.Labels, sample.Value)
				count = sample.Value
			default:
				write(&text, family.Name+"_sum", sample.Labels, sample.Value)
				write(&text, family.Name+"_count", sample.Labels, count)
			}
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// escaper is for values of labels, in which the format has three characters to escape.
var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// write writes a line of a sample. A value of a label is the only place where a text of a program stands, so it is all
// that is escaped.
func write(text *strings.Builder, name string, labels []string, value float64) {
	text.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		text.WriteByte("{,"[min(i, 1)])
		text.WriteString(labels[i] + `="` + escaper.Replace(labels[i+1]) + `"`)
	}
	if len(labels) > 0 {
		text.WriteByte('}')
	}
	text.WriteString(" " + number(value) + "\n")
}

// number returns the shortest text that is read as this number again. It has no exponent.
func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// metrics are the families so far.
type metrics []Family

func (m *metrics) family(name, kind, help string) {
	*m = append(*m, Family{Name: name, Type: kind, Help: help})
}

// add adds a sample to the latest family.
func (m *metrics) add(value float64, labels ...string) {
	f := &(*m)[len(*m)-1]
	f.Samples = append(f.Samples, Sample{labels, value})
}

// decisions are the counts of all groups, those without a decision apart.
func decisions(all []groupCounts, decided bool) iter.Seq2[string, *count] {
	return func(yield func(string, *count) bool) {
		for i := range all {
			for j := range all[i].Counts {
				c := &all[i].Counts[j]
				if (c.Result != failed) == decided && !yield(all[i].Name, c) {
					return
				}
			}
		}
	}
}

// limiters adds the families of limiters. The text format wants all samples of a family together, so each family looks
// at all limiters anew.
func (m *metrics) limiters(all []groupCounts) {
	m.family("headgate_decisions_total", "counter", "Charges that were decided, by the policy that decided.")
	for name, c := range decisions(all, true) {
		m.add(float64(c.Charges), "limiter", name, "policy", c.Policy, "result", c.Result, "source", c.Source)
	}
	m.family("headgate_decision_units_total", "counter", "Units of the charges that were decided.")
	for name, c := range decisions(all, true) {
		m.add(float64(c.Units), "limiter", name, "policy", c.Policy, "result", c.Result, "source", c.Source)
	}
	m.family("headgate_decision_errors_total", "counter", "Charges for which there is no decision.")
	for name, c := range decisions(all, false) {
		m.add(float64(c.Charges), "limiter", name, "reason", c.Reason)
	}
	each := func(name, help string, of func(*groupCounts) uint64) {
		m.family(name, "counter", help)
		for i := range all {
			m.add(float64(of(&all[i])), "limiter", all[i].Name)
		}
	}
	each("headgate_settlements_total",
		"Charges that were corrected, or should have been.",
		func(c *groupCounts) uint64 { return c.Settled })
	each("headgate_settlement_errors_total",
		"Charges whose correction failed.",
		func(c *groupCounts) uint64 { return c.Unsettled })
	each("headgate_settlement_given_back_units_total",
		"Units that were to be given back.",
		func(c *groupCounts) uint64 { return c.GivenBack })
	each("headgate_settlement_charged_units_total",
		"Units that a settlement or a report counted.",
		func(c *groupCounts) uint64 { return c.ChargedLater })
	each("headgate_settlement_uncovered_units_total",
		"Units of these for which there was no room.",
		func(c *groupCounts) uint64 { return c.Uncovered })
	m.family("headgate_last_refusal_timestamp_seconds", "gauge", "When the limiter last refused a charge.")
	for i := range all {
		// A limiter that has refused nothing has no sample: 0 would be a refusal in 1970.
		at := all[i].LastRefused
		if !at.IsZero() {
			m.add(float64(at.UnixMilli())/1000, "limiter", all[i].Name)
		}
	}
}

// slots adds the families of slots.
func (m *metrics) slots(all []groupCounts) {
	m.family("headgate_slots_held", "gauge", "Slots that this process holds.")
	for i := range all {
		m.add(float64(all[i].Held), "slots", all[i].Name)
	}
	m.family("headgate_slot_claims_total", "counter",
		"Claims of slots that were granted or refused, or refused on trial.")
	for name, count := range decisions(all, true) {
		m.add(float64(count.Charges), "slots", name, "result", count.Result, "source", count.Source)
	}
	m.family("headgate_slot_claim_errors_total", "counter",
		"Claims of slots of which it is not known whether one was free.")
	for name, c := range decisions(all, false) {
		m.add(float64(c.Charges), "slots", name, "reason", c.Reason)
	}
}

// store adds the families of the servers of stores.
func (m *metrics) store(counts *storeCounts) {
	m.family("headgate_store_call_duration_seconds", "histogram", "How long calls to servers of stores took.")
	// Failed calls have a series of their own: those that end at a Timeout would hide how long answers take.
	m.durations("answered", &counts.Answered)
	m.durations(failed, &counts.Failed)
	one := func(name, kind, help string, value float64) {
		m.family(name, kind, help)
		m.add(value)
	}
	one("headgate_store_questions_total", "counter",
		"Decisions, settlements and keys of slots that calls were about.",
		float64(counts.Questions))
	one("headgate_store_servers_away", "gauge",
		"Servers of stores that are unavailable.",
		float64(counts.Away))
	one("headgate_store_outages_total", "counter",
		"How often a server of a store became unavailable.",
		float64(counts.Outages))
	one("headgate_slots_lost_total", "counter",
		"Slots held when a store declared this process dead.",
		float64(counts.Lost))
	one("headgate_slots_restated_keys_total", "counter",
		"Keys of slots that were stated again after a loss.",
		float64(counts.Restated))
}

// durations adds a histogram to the latest family.
func (m *metrics) durations(result string, d *durations) {
	for _, b := range d.Buckets {
		m.add(float64(b.Count), "result", result, "le", number(b.Seconds))
	}
	m.add(float64(d.Count), "result", result, "le", "+Inf")
	m.add(d.Sum, "result", result)
}

// memory adds the families of stores in this process.
func (m *metrics) memory(all []memoryCounts) {
	each := func(name, kind, help string, of func(*memoryCounts) float64) {
		m.family(name, kind, help)
		for i := range all {
			m.add(of(&all[i]), "store", all[i].Name)
		}
	}
	each("headgate_memory_states", "gauge",
		"States of keys that are held.",
		func(c *memoryCounts) float64 { return float64(c.Keys) })
	each("headgate_memory_bytes", "gauge",
		"Memory of all states.",
		func(c *memoryCounts) float64 { return float64(c.Bytes) })
	each("headgate_memory_evicted_total", "counter",
		"States that were dropped while they still counted.",
		func(c *memoryCounts) float64 { return float64(c.Evicted) })
}
