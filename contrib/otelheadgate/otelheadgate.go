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
func New(seen *stats.Stats, config Config) (telemetry *Telemetry, err error) {
	defer recovered(&err)
	if config.MeterProvider == nil {
		config.MeterProvider = otel.GetMeterProvider()
	}
	meter := config.MeterProvider.Meter(scope)
	telemetry = &Telemetry{stats: seen, instruments: make(map[string]metric.Float64Observable)}
	// The families are always the same, so all instruments are known before anything is counted.
	var all []metric.Observable
	var errs []error
	for _, family := range seen.Families() {
		for _, name := range names(family) {
			made, err := instrument(meter, family, name)
			telemetry.instruments[name] = made
			all = append(all, made)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	telemetry.registration, err = meter.RegisterCallback(telemetry.collect, all...)
	if err != nil {
		return nil, err
	}
	return telemetry, nil
}

// recovered makes an error of a panic of the meter.
func recovered(err *error) {
	fault := recover()
	if fault != nil {
		*err = fmt.Errorf("headgate: the meter panicked: %v", fault)
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
func (t *Telemetry) collect(_ context.Context, observer metric.Observer) (err error) {
	defer recovered(&err)
	for _, family := range t.stats.Families() {
		all := names(family)
		for _, sample := range family.Samples {
			name := all[len(all)-1]
			labels := sample.Labels
			n := len(labels)
			// Instruments that observe have no histograms. Of the buckets, only that of all is reported: it is the
			// count.
			if family.Type == "histogram" && n >= 2 && labels[n-2] == "le" {
				name = all[0]
				labels = labels[:n-2]
				if sample.Labels[n-1] != "+Inf" {
					continue
				}
			}
			observer.ObserveFloat64(t.instruments[name], sample.Value, metric.WithAttributes(attributes(labels)...))
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
func decided(ctx context.Context, event core.DecisionEvent) {
	if event.Allowed || event.Err != nil || event.Policy == "" {
		return
	}
	tell(ctx, event.ObserveOnly,
		attribute.String("headgate.limiter", event.Limiter), attribute.String("headgate.policy", event.Policy),
		attribute.Int64("headgate.units", event.Units), attribute.String("headgate.source", event.Source))
}

// acquired tells the span of a request that there was no slot for it.
func acquired(ctx context.Context, event core.SlotEvent) {
	if event.Granted || event.Err != nil {
		return
	}
	tell(ctx, event.ObserveOnly,
		attribute.String("headgate.slots", event.Slots), attribute.String("headgate.source", event.Source))
}

// tell adds the event of a refusal to the span of a request.
func tell(ctx context.Context, observeOnly bool, attributes ...attribute.KeyValue) {
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
