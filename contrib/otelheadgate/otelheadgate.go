// Package otelheadgate reports what limits do with OpenTelemetry.
//
//	seen := stats.New(stats.Config{})
//	telemetry, err := otelheadgate.New(seen, otelheadgate.Config{})
//	...
//	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer(), telemetry.Observer()}}
//
// It needs the API of OpenTelemetry only. The program chooses an SDK, and sets its providers.
//
// # Metrics
//
// The metrics are those of package stats: headgate_decision_units_total is headgate.decision.units here, and its label
// limiter the attribute headgate.limiter. The meter asks for them when it collects, so a decision costs the same
// whatever the meter is. Of a histogram there are its count and its sum, as NAME.count and NAME.sum. Attributes are
// names, never keys.
//
// # Traces
//
// A refusal is the event headgate.refused on the span of the request; of a rule that only observes it has the attribute
// headgate.observe_only. No span is begun for a decision. A call without an answer returns an error, which is the
// caller's to record.
package otelheadgate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
)

const scope = "github.com/headgate/headgate/contrib/otelheadgate"

// Config is the configuration of [Telemetry]. Its zero value is ready to use.
type Config struct {
	// MeterProvider makes the meter. Nil means the one of package otel.
	MeterProvider metric.MeterProvider
}

// Telemetry reports what a [stats.Stats] counts. Make it with [New]. It is safe for concurrent use.
type Telemetry struct {
	stats        *stats.Stats
	instruments  map[string]metric.Float64Observable // by the name of the metric
	registration metric.Registration
}

// New begins to report. The error is the meter's. A meter that panics makes an error too.
func New(seen *stats.Stats, c Config) (t *Telemetry, err error) {
	defer recovered(&err)
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	meter := c.MeterProvider.Meter(scope)
	t = &Telemetry{stats: seen, instruments: make(map[string]metric.Float64Observable)}
	var all []metric.Observable
	var errs []error
	for _, family := range seen.Families() {
		for _, name := range names(family) {
			i, err := instrument(meter, family, name)
			t.instruments[name] = i
			all = append(all, i)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if t.registration, err = meter.RegisterCallback(t.collect, all...); err != nil {
		return nil, err
	}
	return t, nil
}

// recovered makes an error of a panic of the meter.
func recovered(err *error) {
	p := recover()
	if p != nil {
		*err = fmt.Errorf("headgate: the meter panicked: %v", p)
	}
}

// names returns the names of a family's metrics.
func names(family stats.Family) []string {
	name := strings.ReplaceAll(strings.TrimSuffix(family.Name, "_total"), "_", ".")
	if family.Type == "histogram" {
		return []string{name + ".count", name + ".sum"}
	}
	return []string{name}
}

func instrument(meter metric.Meter, family stats.Family, name string) (metric.Float64Observable, error) {
	unit := ""
	switch {
	case strings.HasSuffix(name, ".bytes"):
		unit = "By"
	case strings.Contains(name, ".seconds") && !strings.HasSuffix(name, ".count"):
		unit = "s"
	}
	if family.Type == "gauge" {
		return meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(family.Help))
	}
	return meter.Float64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(family.Help))
}

// collect is called when metrics are collected.
func (t *Telemetry) collect(_ context.Context, o metric.Observer) (err error) {
	defer recovered(&err)
	for _, family := range t.stats.Families() {
		all := names(family)
		for _, sample := range family.Samples {
			name := all[len(all)-1]
			labels := sample.Labels
			n := len(labels)
			if family.Type == "histogram" && n >= 2 && labels[n-2] == "le" {
				name = all[0]
				labels = labels[:n-2]
				if sample.Labels[n-1] != "+Inf" {
					continue
				}
			}
			o.ObserveFloat64(t.instruments[name], sample.Value, metric.WithAttributes(attributes(labels)...))
		}
	}
	return nil
}

func attributes(labels []string) (all []attribute.KeyValue) {
	for i := 0; i+1 < len(labels); i += 2 {
		all = append(all, attribute.String("headgate."+labels[i], labels[i+1]))
	}
	return all
}

// Close ends what [New] began.
func (t *Telemetry) Close() error { return t.registration.Unregister() }

// Observer returns an observer that tells spans of refusals. It belongs beside the observer of the stats. If a span
// panics, nobody notices.
func (t *Telemetry) Observer() *core.Observer {
	return &core.Observer{Decided: decided, Acquired: acquired}
}

const refusal = "headgate.refused"

// decided tells the span of a request that it was refused.
func decided(ctx context.Context, e core.DecisionEvent) {
	if e.Allowed || e.Err != nil || e.Policy == "" {
		return
	}
	event(ctx, e.ObserveOnly, attribute.String("headgate.limiter", e.Limiter), attribute.String("headgate.policy", e.Policy),
		attribute.Int64("headgate.units", e.Units), attribute.String("headgate.source", e.Source))
}

// acquired tells the span of a request that there was no slot for it.
func acquired(ctx context.Context, e core.SlotEvent) {
	if !e.Granted && e.Err == nil {
		event(ctx, e.ObserveOnly, attribute.String("headgate.slots", e.Slots), attribute.String("headgate.source", e.Source))
	}
}

func event(ctx context.Context, observeOnly bool, attributes ...attribute.KeyValue) {
	defer func() { _ = recover() }()
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if observeOnly {
		attributes = append(attributes, attribute.Bool("headgate.observe_only", true))
	}
	span.AddEvent(refusal, trace.WithAttributes(attributes...))
}
