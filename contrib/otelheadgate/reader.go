package otelheadgate

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/headgate/headgate/core/stats"
)

// A reader tells a meter what is counted.
type reader struct {
	stats       *stats.Stats
	meter       metric.Meter
	instruments []metric.Observable
	errs        []error

	decisions, units, near, claims, lost, restated, questions, outages, evicted metric.Int64Observable
	settlements, unsettled, settled                                             metric.Int64Observable
	held, away, states, bytes                                                   metric.Int64Observable
	last                                                                        metric.Float64Observable
	requests, leases                                                            metric.Int64Observable // nil without AspNetCore
}

func newReader(s *stats.Stats, meter metric.Meter, aspNetCore bool) *reader {
	r := &reader{stats: s, meter: meter}
	r.decisions = r.counter("headgate.decisions", "{decision}", "Charges that were decided, or for which there is no decision.")
	r.units = r.counter("headgate.decision.units", "{unit}", "Units of the charges.")
	r.near = r.counter("headgate.near_limit", "{decision}", "Charges admitted after which as much of a limit was used as is warned of.")
	r.settlements = r.counter("headgate.settlements", "{charge}", "Charges that were corrected, or should have been.")
	r.unsettled = r.counter("headgate.settlement.errors", "{charge}", "Charges whose correction failed.")
	r.settled = r.counter("headgate.settlement.units", "{unit}", "Units by which charges were corrected.")
	r.claims = r.counter("headgate.slots.claims", "{claim}", "Claims of slots.")
	r.lost = r.counter("headgate.slots.lost", "{slot}", "Slots held when a store declared this process dead.")
	r.restated = r.counter("headgate.slots.restated", "{key}", "Keys of slots that were stated again after a loss.")
	r.questions = r.counter("headgate.store.questions", "{question}", "What calls of stores were about.")
	r.outages = r.counter("headgate.store.outages", "{outage}", "How often a server of a store became unavailable.")
	r.evicted = r.counter("headgate.memory.evicted", "{state}", "States that were dropped while they still counted.")
	r.held = r.gauge("headgate.slots.held", "{slot}", "Slots that this process holds.")
	r.away = r.gauge("headgate.store.away", "{server}", "Servers of stores that are unavailable.")
	r.states = r.gauge("headgate.memory.states", "{state}", "States of keys that are held.")
	r.bytes = r.gauge("headgate.memory.usage", "By", "Memory of all states.")
	last, err := r.meter.Float64ObservableGauge("headgate.last_refusal", metric.WithUnit("s"),
		metric.WithDescription("When the limiter last refused a charge, since 1970."))
	r.last, r.instruments, r.errs = last, append(r.instruments, last), append(r.errs, err)
	if aspNetCore {
		r.requests = r.counter("aspnetcore.rate_limiting.requests", "{request}", "Requests that tried to acquire a lease.")
		r.leases = r.gauge("aspnetcore.rate_limiting.active_request_leases", "{request}", "Requests that hold a lease.")
	}
	return r
}

func (r *reader) counter(name, unit, description string) metric.Int64Observable {
	i, err := r.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return r.add(i, err)
}

// gauge is what can be added up over processes.
func (r *reader) gauge(name, unit, description string) metric.Int64Observable {
	i, err := r.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	return r.add(i, err)
}

func (r *reader) add(i metric.Int64Observable, err error) metric.Int64Observable {
	r.instruments, r.errs = append(r.instruments, i), append(r.errs, err)
	return i
}

// read is called when metrics are collected.
func (r *reader) read(_ context.Context, o metric.Observer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("headgate: the meter panicked: %v", p)
		}
	}()
	n := r.stats.Counts()
	observe := func(i metric.Int64Observable, value int64, attributes ...attribute.KeyValue) {
		o.ObserveInt64(i, value, metric.WithAttributes(attributes...))
	}
	for i := range n.Limiters {
		r.limiter(&n.Limiters[i], observe)
		if l := &n.Limiters[i]; !l.LastRefused.IsZero() {
			o.ObserveFloat64(r.last, float64(l.LastRefused.UnixMilli())/1000, metric.WithAttributes(attribute.String("headgate.limiter", l.Name)))
		}
	}
	for i := range n.Slots {
		r.slots(&n.Slots[i], observe)
	}
	observe(r.lost, int64(n.Store.Lost))
	observe(r.restated, int64(n.Store.Restated))
	observe(r.questions, int64(n.Store.Questions))
	observe(r.outages, int64(n.Store.Outages))
	observe(r.away, n.Store.Away)
	for _, m := range n.Memory {
		store := attribute.String("headgate.store", m.Name)
		observe(r.states, int64(m.Keys), store)
		observe(r.bytes, m.Bytes, store)
		observe(r.evicted, int64(m.Evicted), store)
	}
	return nil
}

type observeFunc = func(i metric.Int64Observable, value int64, attributes ...attribute.KeyValue)

func (r *reader) limiter(l *stats.Limiter, observe observeFunc) {
	name := attribute.String("headgate.limiter", l.Name)
	requests := make(map[string]uint64)
	for _, c := range l.Counts {
		attributes := append(outcome(c.Result, c.Source, c.Reason), name)
		if c.Policy != "" {
			attributes = append(attributes, attribute.String("headgate.policy", c.Policy))
		}
		observe(r.decisions, int64(c.Charges), attributes...)
		observe(r.units, int64(c.Units), attributes...)
		requests[leaseResult(c.Result, c.Reason)] += c.Charges
	}
	if l.Near > 0 {
		observe(r.near, int64(l.Near), name)
	}
	if l.Settled > 0 {
		observe(r.settlements, int64(l.Settled), name)
		observe(r.unsettled, int64(l.Unsettled), name)
	}
	for kind, n := range map[string]uint64{"given_back": l.GivenBack, "charged": l.ChargedLater, "uncovered": l.Uncovered} {
		if n > 0 {
			observe(r.settled, int64(n), name, attribute.String("headgate.settlement", kind))
		}
	}
	if r.requests == nil {
		return
	}
	for result, n := range requests {
		if result != "" {
			observe(r.requests, int64(n), attribute.String("aspnetcore.rate_limiting.policy", l.Name), attribute.String("aspnetcore.rate_limiting.result", result))
		}
	}
}

func (r *reader) slots(k *stats.Slots, observe observeFunc) {
	name := attribute.String("headgate.slots", k.Name)
	observe(r.held, k.Held, name)
	if r.leases != nil {
		observe(r.leases, k.Held, attribute.String("aspnetcore.rate_limiting.policy", k.Name))
	}
	for _, c := range k.Counts {
		observe(r.claims, int64(c.Claims), append(outcome(c.Result, c.Source, c.Reason), name)...)
	}
}

// outcome returns the attributes of a count.
func outcome(result, source, reason string) []attribute.KeyValue {
	attributes := []attribute.KeyValue{attribute.String("headgate.result", result)}
	if source != "" {
		attributes = append(attributes, attribute.String("headgate.source", source))
	}
	if reason != "" {
		attributes = append(attributes, errorType(reason))
	}
	return attributes
}

// leaseResult returns the result as ASP.NET Core names it, or nothing if it has no name.
func leaseResult(result, reason string) string {
	switch {
	case result == stats.Admitted, result == stats.OnTrial:
		return "acquired"
	case result == stats.Refused:
		return "endpoint_limiter"
	case reason == "canceled":
		return "request_canceled"
	default:
		return ""
	}
}
