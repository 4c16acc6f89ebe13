package otelheadgate_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/contrib/otelheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
)

// What a real SDK is told is tested in test/thirdparty, so that it is not required here.

// observers returns those of stats that are reported to a meter.
func observers(t testing.TB, p metric.MeterProvider) []*core.Observer {
	t.Helper()
	s := stats.New(stats.Config{})
	telemetry, err := otelheadgate.New(s, otelheadgate.Config{MeterProvider: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := telemetry.Close(); err != nil {
			t.Error(err)
		}
	})
	return []*core.Observer{s.Observer(), telemetry.Observer()}
}

// A faulty meter provider panics, or its meters do, or their instruments.
type faulty struct {
	metric.MeterProvider

	when string
}

func (f faulty) Meter(name string, options ...metric.MeterOption) metric.Meter {
	if f.when == "meter" {
		panic("on purpose")
	}
	return faultyMeter{f.MeterProvider.Meter(name, options...), f.when}
}

type faultyMeter struct {
	metric.Meter

	when string
}

func (f faultyMeter) Float64ObservableCounter(name string, options ...metric.Float64ObservableCounterOption) (metric.Float64ObservableCounter, error) {
	switch f.when {
	case "instrument":
		panic("on purpose")
	case "error":
		return nil, errors.New("no instrument")
	}
	return f.Meter.Float64ObservableCounter(name, options...)
}

func (f faultyMeter) RegisterCallback(read metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	if err := read(context.Background(), faultyObserver{}); err == nil {
		return nil, errors.New("the panic is not reported")
	}
	return noop.Registration{}, nil
}

type faultyObserver struct{ metric.Observer }

func (faultyObserver) ObserveFloat64(metric.Float64Observable, float64, ...metric.ObserveOption) {
	panic("on purpose")
}

// faultySpan panics when it gets an event.
type faultySpan struct{ trace.Span }

func (faultySpan) IsRecording() bool                     { return true }
func (faultySpan) AddEvent(string, ...trace.EventOption) { panic("on purpose") }

// TestMeterThatPanics breaks no request: New returns an error, and later nothing happens.
func TestMeterThatPanics(t *testing.T) {
	for _, when := range []string{"meter", "instrument", "error"} {
		s := stats.New(stats.Config{})
		if _, err := otelheadgate.New(s, otelheadgate.Config{MeterProvider: faulty{noop.NewMeterProvider(), when}}); err == nil {
			t.Errorf("%s: no error", when)
		}
	}
	m := &core.MemoryStore{Observers: observers(t, faulty{noop.NewMeterProvider(), "later"})}
	l := core.NewLimiter(m, "banned", core.Blocked())
	ctx := trace.ContextWithSpan(context.Background(), faultySpan{trace.SpanFromContext(context.Background())})
	if d, err := l.Allow(ctx, "key"); err != nil || d.Allowed {
		t.Errorf("%v %v", d, err)
	}
}
