// Package otelheadgate reports what limits do with OpenTelemetry.
//
//	seen, err := stats.New(stats.Config{})
//	...
//	telemetry, err := otelheadgate.New(seen, otelheadgate.Config{})
//	...
//	store := memstore.New(memstore.Config{
//		Observer: core.Observers(seen.Observer(), telemetry.Observer()),
//	})
//
// It needs the API of OpenTelemetry only. The program chooses an SDK, and sets its providers.
//
// # Metrics
//
// Package stats counts, and the meter asks for the counts when it collects them. So a decision
// costs the same whatever the meter is.
//
//	headgate.decisions            {decision}  charges, by limiter, policy, result and source
//	headgate.decision.units       {unit}      their units
//	headgate.near_limit           {decision}  by limiter, with WarnAt of package stats
//	headgate.last_refusal         s           since 1970, when the limiter last refused
//	headgate.settlements          {charge}    that were corrected, or should have been
//	headgate.settlement.errors    {charge}    those of them for which that failed
//	headgate.settlement.units     {unit}      by limiter and kind: given_back, charged, uncovered
//	headgate.slots.held           {slot}      by this process, by name of the slots
//	headgate.slots.claims         {claim}     by slots, result and source
//	headgate.slots.lost           {slot}
//	headgate.slots.restated       {key}       keys of slots that were stated again after a loss
//	headgate.store.call.duration  s           histogram; error.type if it failed
//	headgate.store.questions      {question}  that calls were about
//	headgate.store.outages        {outage}
//	headgate.store.away           {server}    unavailable now
//	headgate.memory.states        {state}     by store, as memory.usage and memory.evicted
//	headgate.memory.usage         By
//	headgate.memory.evicted       {state}
//
// The attributes headgate.limiter, headgate.policy, headgate.slots and headgate.store are names, as
// in package stats, and never keys. So the configuration bounds the number of series. Further
// attributes are headgate.source and headgate.result: admitted, refused, trial, withdrawn or error.
// With an error there is error.type: unavailable, canceled, timeout, closed or _OTHER.
//
// # Traces
//
// A refusal is the event headgate.refused on the span of the request. A refusal on trial, which
// refused nobody, has the attribute headgate.trial. No span is begun for a decision. A call without
// an answer returns an error, which is the caller's to record.
package otelheadgate

import (
	"context"
	"errors"
	"fmt"

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

	// AspNetCore adds the metrics of the semantic conventions for ASP.NET Core, for existing
	// boards. They are aspnetcore.rate_limiting.requests, with the limiter as the policy, and
	// active_request_leases, with the slots as the policy. A request that several limiters decide
	// is counted for each, unless another one refused it.
	AspNetCore bool
}

// Telemetry reports what a [stats.Stats] counts. Make it with [New]. It is safe for concurrent
// use.
type Telemetry struct {
	registration metric.Registration
	calls        metric.Float64Histogram
	answered     metric.MeasurementOption
}

// New begins to report. The error is the meter's. A meter that panics makes an error too.
func New(s *stats.Stats, c Config) (t *Telemetry, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("headgate: the meter panicked: %v", r)
		}
	}()
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	t = &Telemetry{answered: metric.WithAttributeSet(*attribute.EmptySet())}
	r := newReader(s, c.MeterProvider.Meter(scope), c.AspNetCore)
	t.calls, err = r.meter.Float64Histogram("headgate.store.call.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls to servers of stores took."),
		metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1))
	if err = errors.Join(append(r.errs, err)...); err != nil {
		return nil, err
	}
	t.registration, err = r.meter.RegisterCallback(r.read, r.instruments...)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Close ends what [New] began.
func (t *Telemetry) Close() error { return t.registration.Unregister() }

// Observer returns an observer that tells spans of refusals, and measures calls of stores. It
// belongs into the configuration of a store, beside the observer of the stats: see
// [core.Observers]. If a span or the meter panics, nobody notices.
func (t *Telemetry) Observer() *core.Observer {
	return &core.Observer{
		Refused:     refused,
		SlotRefused: full,
		Called:      t.called,
	}
}

func (t *Telemetry) called(e core.CallEvent) {
	defer func() { _ = recover() }()
	option := t.answered
	if e.Err != nil {
		option = metric.WithAttributes(errorType(stats.Reason(e.Err)))
	}
	t.calls.Record(context.Background(), e.Took.Seconds(), option)
}

const refusal = "headgate.refused"

// refused tells the span of a request that it was refused.
func refused(ctx context.Context, e core.DecisionEvent, _ string) {
	defer func() { _ = recover() }()
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(refusal, onTrial(e.Trial), trace.WithAttributes(
			attribute.String("headgate.limiter", e.Limiter),
			attribute.String("headgate.policy", e.Policy),
			attribute.Int64("headgate.units", e.Units),
			attribute.String("headgate.source", e.Source.String())))
	}
}

// full tells the span of a request that there was no slot for it.
func full(ctx context.Context, e core.SlotEvent, _ string) {
	defer func() { _ = recover() }()
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.AddEvent(refusal, onTrial(e.Trial), trace.WithAttributes(
			attribute.String("headgate.slots", e.Slots),
			attribute.String("headgate.source", e.Source.String())))
	}
}

// onTrial is the attribute of a refusal that refused nobody.
func onTrial(yes bool) trace.EventOption {
	if !yes {
		return trace.WithAttributes()
	}
	return trace.WithAttributes(attribute.Bool("headgate.trial", true))
}

// errorType returns a reason of package stats, as the semantic conventions write it.
func errorType(reason string) attribute.KeyValue {
	if reason == "other" {
		reason = "_OTHER"
	}
	return attribute.String("error.type", reason)
}
