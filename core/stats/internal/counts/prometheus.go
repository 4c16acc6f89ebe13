package counts

import (
	"io"
	"slices"
	"strconv"
	"strings"
)

// ContentType is the media type of the text by [Stats.WritePrometheus].
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// A Family is a metric, with its series.
type Family struct {
	Name, Help string
	Kind       string // counter, gauge or histogram
	Labels     []string
	Samples    []Sample
}

// A Sample is one series of a [Family].
type Sample struct {
	Labels    []string // the values
	Value     float64
	Durations *Durations // of a histogram
}

// Families returns the counts as metrics, for registries of other libraries. The keys that are
// refused most are not in it.
func (s *Stats) Families() []Family {
	var m metrics
	n := s.Counts()
	m.limiters(n.Limiters)
	m.slots(n.Slots)
	m.store(&n.Store)
	m.memory(n.Memory)
	return m
}

// WritePrometheus writes the [Families] in the text format of Prometheus, version 0.0.4. It
// returns the error of the writer.
func (s *Stats) WritePrometheus(w io.Writer) error {
	var t text
	for _, f := range s.Families() {
		t.family(&f)
	}
	_, err := io.WriteString(w, t.String())
	return err
}

// A text is one in the format of Prometheus.
type text struct{ strings.Builder }

func (t *text) family(f *Family) {
	t.WriteString("# HELP " + f.Name + " " + f.Help + "\n# TYPE " + f.Name + " " + f.Kind + "\n")
	for _, x := range f.Samples {
		if x.Durations == nil {
			t.sample(f.Name, x.Value, f.Labels, x.Labels)
			continue
		}
		labels := append(slices.Clone(f.Labels), "le")
		for _, b := range x.Durations.Buckets {
			t.sample(f.Name+"_bucket", float64(b.Count), labels, append(slices.Clone(x.Labels), number(b.Seconds)))
		}
		t.sample(f.Name+"_bucket", float64(x.Durations.Count), labels, append(slices.Clone(x.Labels), "+Inf"))
		t.sample(f.Name+"_sum", x.Durations.Sum, f.Labels, x.Labels)
		t.sample(f.Name+"_count", float64(x.Durations.Count), f.Labels, x.Labels)
	}
}

func (t *text) sample(name string, value float64, labels, values []string) {
	t.WriteString(name)
	for i, label := range labels {
		t.WriteByte("{,"[min(i, 1)])
		t.WriteString(label + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(values[i]) + `"`)
	}
	if len(labels) > 0 {
		t.WriteByte('}')
	}
	t.WriteString(" " + number(value) + "\n")
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// metrics are the families so far.
type metrics []Family

func (m *metrics) family(name, kind, help string, labels ...string) {
	*m = append(*m, Family{Name: name, Help: help, Kind: kind, Labels: labels})
}

// add adds a sample to the latest family.
func (m *metrics) add(value float64, labels ...string) {
	f := &(*m)[len(*m)-1]
	f.Samples = append(f.Samples, Sample{Labels: labels, Value: value})
}

func (m *metrics) limiters(ls []Limiter) {
	counts := func(failed bool, of func(*Count) uint64) {
		for _, l := range ls {
			for _, c := range l.Counts {
				switch {
				case c.Result == Failed && failed:
					m.add(float64(of(&c)), l.Name, c.Reason)
				case c.Result != Failed && !failed:
					m.add(float64(of(&c)), l.Name, c.Policy, c.Result, c.Source)
				}
			}
		}
	}
	charges := func(c *Count) uint64 { return c.Charges }
	m.family("headgate_decisions_total", "counter", "Charges that were decided, by the policy that decided.", "limiter", "policy", "result", "source")
	counts(false, charges)
	m.family("headgate_decision_units_total", "counter", "Units of the charges that were decided.", "limiter", "policy", "result", "source")
	counts(false, func(c *Count) uint64 { return c.Units })
	m.family("headgate_decision_errors_total", "counter", "Charges for which there is no decision.", "limiter", "reason")
	counts(true, charges)
	each := func(name, help string, of func(*Limiter) uint64) {
		m.family(name, "counter", help, "limiter")
		for i := range ls {
			m.add(float64(of(&ls[i])), ls[i].Name)
		}
	}
	each("headgate_settlements_total", "Charges that were corrected, or should have been.", func(l *Limiter) uint64 { return l.Settled })
	each("headgate_settlement_errors_total", "Charges whose correction failed.", func(l *Limiter) uint64 { return l.Unsettled })
	each("headgate_settlement_given_back_units_total", "Units that were to be given back.", func(l *Limiter) uint64 { return l.GivenBack })
	each("headgate_settlement_charged_units_total", "Units that a settlement or a report counted.", func(l *Limiter) uint64 { return l.ChargedLater })
	each("headgate_settlement_uncovered_units_total", "Units of these for which there was no room.", func(l *Limiter) uint64 { return l.Uncovered })
	m.family("headgate_last_refusal_timestamp_seconds", "gauge", "When the limiter last refused a charge.", "limiter")
	for i := range ls {
		if at := ls[i].LastRefused; !at.IsZero() {
			m.add(float64(at.UnixMilli())/1000, ls[i].Name)
		}
	}
}

func (m *metrics) slots(ks []Slots) {
	m.family("headgate_slots_held", "gauge", "Slots that this process holds.", "slots")
	for i := range ks {
		m.add(float64(ks[i].Held), ks[i].Name)
	}
	m.family("headgate_slot_claims_total", "counter", "Claims of slots that were granted or refused, or refused on trial.", "slots", "result", "source")
	for _, k := range ks {
		for _, c := range k.Counts {
			if c.Result != Failed {
				m.add(float64(c.Claims), k.Name, c.Result, c.Source)
			}
		}
	}
	m.family("headgate_slot_claim_errors_total", "counter", "Claims of slots of which it is not known whether one was free.", "slots", "reason")
	for _, k := range ks {
		for _, c := range k.Counts {
			if c.Result == Failed {
				m.add(float64(c.Claims), k.Name, c.Reason)
			}
		}
	}
}

func (m *metrics) store(s *Store) {
	*m = append(*m, Family{
		Name: "headgate_store_call_duration_seconds", Kind: "histogram", Help: "How long calls to servers of stores took.",
		Labels:  []string{"result"},
		Samples: []Sample{{[]string{"answered"}, 0, &s.Answered}, {[]string{Failed}, 0, &s.Failed}},
	})
	one := func(name, kind, help string, value float64) {
		m.family(name, kind, help)
		m.add(value)
	}
	one("headgate_store_questions_total", "counter", "Decisions, settlements and keys of slots that calls were about.", float64(s.Questions))
	one("headgate_store_servers_away", "gauge", "Servers of stores that are unavailable.", float64(s.Away))
	one("headgate_store_outages_total", "counter", "How often a server of a store became unavailable.", float64(s.Outages))
	one("headgate_slots_lost_total", "counter", "Slots held when a store declared this process dead.", float64(s.Lost))
	one("headgate_slots_restated_keys_total", "counter", "Keys of slots that were stated again after a loss.", float64(s.Restated))
}

func (m *metrics) memory(ms []Memory) {
	each := func(name, kind, help string, of func(*Memory) float64) {
		m.family(name, kind, help, "store")
		for i := range ms {
			m.add(of(&ms[i]), ms[i].Name)
		}
	}
	each("headgate_memory_states", "gauge", "States of keys that are held.", func(m *Memory) float64 { return float64(m.Keys) })
	each("headgate_memory_bytes", "gauge", "Memory of all states.", func(m *Memory) float64 { return float64(m.Bytes) })
	each("headgate_memory_evicted_total", "counter", "States that were dropped while they still counted.", func(m *Memory) float64 { return float64(m.Evicted) })
}
