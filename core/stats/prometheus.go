package stats

import (
	"io"
	"strconv"
	"strings"
)

// ContentType is that of what [Stats.WritePrometheus] writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// WritePrometheus writes what is counted in the text format of Prometheus, version 0.0.4. The
// keys that are refused most are not in it. It returns the error of the writer.
func (s *Stats) WritePrometheus(w io.Writer) error {
	var t text
	n := s.Counts()
	t.limiters(n.Limiters)
	t.slots(n.Slots)
	t.store(&n.Store)
	t.memory(n.Memory)
	_, err := io.WriteString(w, t.String())
	return err
}

// A text is one in the format of Prometheus.
type text struct{ strings.Builder }

// family begins the samples of a metric.
func (t *text) family(name, kind, help string) {
	t.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// sample writes a sample, whose labels are names and values in turn.
func (t *text) sample(name, value string, labels ...string) {
	t.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		t.WriteByte("{,"[min(i, 1)])
		t.WriteString(labels[i])
		t.WriteString(`="`)
		t.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(labels[i+1]))
		t.WriteByte('"')
	}
	if len(labels) > 0 {
		t.WriteByte('}')
	}
	t.WriteByte(' ')
	t.WriteString(value)
	t.WriteByte('\n')
}

func (t *text) count(name string, value uint64, labels ...string) {
	t.sample(name, strconv.FormatUint(value, 10), labels...)
}

func (t *text) gauge(name string, value int64, labels ...string) {
	t.sample(name, strconv.FormatInt(value, 10), labels...)
}

func (t *text) float(name string, value float64, labels ...string) {
	t.sample(name, strconv.FormatFloat(value, 'g', -1, 64), labels...)
}

func (t *text) limiters(ls []Limiter) {
	const decisions, units, errs = "headgate_decisions_total", "headgate_decision_units_total", "headgate_decision_errors_total"
	counts := func(name string, failed bool, of func(*Count) uint64) {
		for _, l := range ls {
			for _, c := range l.Counts {
				switch {
				case c.Result == Failed && failed:
					t.count(name, of(&c), "limiter", l.Name, "reason", c.Reason)
				case c.Result != Failed && !failed:
					t.count(name, of(&c), "limiter", l.Name, "policy", c.Policy, "result", c.Result, "source", c.Source)
				}
			}
		}
	}
	charges := func(c *Count) uint64 { return c.Charges }
	t.family(decisions, "counter", "Charges that were decided, by the policy that decided.")
	counts(decisions, false, charges)
	t.family(units, "counter", "Units of the charges that were decided.")
	counts(units, false, func(c *Count) uint64 { return c.Units })
	t.family(errs, "counter", "Charges for which there is no decision.")
	counts(errs, true, charges)
	each := func(name, help string, of func(*Limiter) uint64) {
		t.family(name, "counter", help)
		for i := range ls {
			t.count(name, of(&ls[i]), "limiter", ls[i].Name)
		}
	}
	each("headgate_settlements_total", "Charges that were corrected, or should have been.", func(l *Limiter) uint64 { return l.Settled })
	each("headgate_settlement_errors_total", "Charges whose correction failed.", func(l *Limiter) uint64 { return l.Unsettled })
	each("headgate_settlement_given_back_units_total", "Units that were to be given back.", func(l *Limiter) uint64 { return l.GivenBack })
	each("headgate_settlement_charged_units_total", "Units that a settlement charged.", func(l *Limiter) uint64 { return l.ChargedLater })
	each("headgate_settlement_uncovered_units_total", "Units for which a settlement found no room.", func(l *Limiter) uint64 { return l.Uncovered })
	const last = "headgate_last_refusal_timestamp_seconds"
	t.family(last, "gauge", "When the limiter last refused a charge.")
	for i := range ls {
		if at := ls[i].LastRefused; !at.IsZero() {
			t.float(last, float64(at.UnixMilli())/1000, "limiter", ls[i].Name)
		}
	}
}

func (t *text) slots(ks []Slots) {
	const held, claims, errs = "headgate_slots_held", "headgate_slot_claims_total", "headgate_slot_claim_errors_total"
	t.family(held, "gauge", "Slots that this process holds.")
	for i := range ks {
		t.gauge(held, ks[i].Held, "slots", ks[i].Name)
	}
	t.family(claims, "counter", "Claims of slots that were granted or refused.")
	for _, k := range ks {
		for _, c := range k.Counts {
			if c.Result != Failed {
				t.count(claims, c.Claims, "slots", k.Name, "result", c.Result, "source", c.Source)
			}
		}
	}
	t.family(errs, "counter", "Claims of slots of which it is not known whether one was free.")
	for _, k := range ks {
		for _, c := range k.Counts {
			if c.Result == Failed {
				t.count(errs, c.Claims, "slots", k.Name, "reason", c.Reason)
			}
		}
	}
}

func (t *text) store(s *Store) {
	const duration, questions = "headgate_store_call_duration_seconds", "headgate_store_questions_total"
	t.family(duration, "histogram", "How long calls to servers of stores took.")
	for _, r := range []struct {
		result string
		d      *Durations
	}{{"answered", &s.Answered}, {Failed, &s.Failed}} {
		for _, b := range r.d.Buckets {
			t.count(duration+"_bucket", b.Count, "result", r.result, "le", strconv.FormatFloat(b.Seconds, 'g', -1, 64))
		}
		t.count(duration+"_bucket", r.d.Count, "result", r.result, "le", "+Inf")
		t.float(duration+"_sum", r.d.Sum, "result", r.result)
		t.count(duration+"_count", r.d.Count, "result", r.result)
	}
	one := func(name, kind, help string, value int64) {
		t.family(name, kind, help)
		t.gauge(name, value)
	}
	one(questions, "counter", "Decisions, settlements and keys of slots that calls were about.", int64(s.Questions))
	one("headgate_store_servers_away", "gauge", "Servers of stores that are unavailable.", s.Away)
	one("headgate_store_outages_total", "counter", "How often a server of a store became unavailable.", int64(s.Outages))
	one("headgate_slots_lost_total", "counter", "Slots held when a store declared this process dead.", int64(s.Lost))
	one("headgate_slots_restated_keys_total", "counter", "Keys of slots that were stated again after a loss.", int64(s.Restated))
}

func (t *text) memory(ms []Memory) {
	if len(ms) == 0 {
		return
	}
	each := func(name, kind, help string, of func(*Memory) int64) {
		t.family(name, kind, help)
		for i := range ms {
			t.gauge(name, of(&ms[i]), "store", ms[i].Name)
		}
	}
	each("headgate_memory_states", "gauge", "States of keys that are held.", func(m *Memory) int64 { return int64(m.Keys) })
	each("headgate_memory_bytes", "gauge", "Memory of all states.", func(m *Memory) int64 { return m.Bytes })
	each("headgate_memory_evicted_total", "counter", "States that were dropped while they still counted.", func(m *Memory) int64 { return int64(m.Evicted) })
}
