package otelheadgate_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/embedded"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/contrib/otelheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
)

// What a real SDK is told is tested in internal/thirdparty, so that it is not required here.

// observed returns the observer of stats that are reported to a meter.
func observed(t testing.TB, p metric.MeterProvider) *core.Observer {
	t.Helper()
	s, err := stats.New(stats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	telemetry, err := otelheadgate.New(s, otelheadgate.Config{MeterProvider: p, AspNetCore: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := telemetry.Close(); err != nil {
			t.Error(err)
		}
	})
	return core.Observers(s.Observer(), telemetry.Observer())
}

// TestDecisionsDoNotAllocate, whether admitted or refused, with a meter that does nothing.
func TestDecisionsDoNotAllocate(t *testing.T) {
	m := memstore.New(memstore.Config{Observer: observed(t, noop.NewMeterProvider())})
	for name, p := range map[string]core.Policy{"api": core.TokenBucket(core.PerSecond(1_000_000), 1_000_000), "banned": core.Blocked()} {
		l, err := core.New(m, name, p)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := l.Allow(context.Background(), "key"); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkDecided reports what an admitted decision takes with a meter that does nothing,
// beside an observer that does nothing.
func BenchmarkDecided(b *testing.B) {
	for name, o := range map[string]*core.Observer{
		"Nothing": {Decided: func(context.Context, core.DecisionEvent) {}},
		"Noop":    observed(b, noop.NewMeterProvider()),
	} {
		b.Run(name, func(b *testing.B) {
			e := core.DecisionEvent{Limiter: "api", Policy: "minute", Units: 1, Allowed: true, Source: core.SourceStore}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				o.Decided(ctx, e)
			}
		})
	}
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

func (f faultyMeter) Int64ObservableCounter(name string, options ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	switch f.when {
	case "instrument":
		panic("on purpose")
	case "error":
		return nil, errors.New("no instrument")
	}
	return f.Meter.Int64ObservableCounter(name, options...)
}

func (f faultyMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return faultyHistogram{}, nil
}

func (f faultyMeter) RegisterCallback(read metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	if err := read(context.Background(), faultyObserver{}); err == nil {
		return nil, errors.New("the panic is not reported")
	}
	return noop.Registration{}, nil
}

type faultyHistogram struct{ embedded.Float64Histogram }

func (faultyHistogram) Record(context.Context, float64, ...metric.RecordOption) {
	panic("on purpose")
}
func (faultyHistogram) Enabled(context.Context) bool { return true }

type faultyObserver struct{ metric.Observer }

func (faultyObserver) ObserveInt64(metric.Int64Observable, int64, ...metric.ObserveOption) {
	panic("on purpose")
}

// faultySpan panics when it gets an event.
type faultySpan struct{ trace.Span }

func (faultySpan) IsRecording() bool                     { return true }
func (faultySpan) AddEvent(string, ...trace.EventOption) { panic("on purpose") }

// TestMeterThatPanics breaks no request: New returns an error, and later nothing happens.
func TestMeterThatPanics(t *testing.T) {
	for _, when := range []string{"meter", "instrument", "error"} {
		s, err := stats.New(stats.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := otelheadgate.New(s, otelheadgate.Config{MeterProvider: faulty{noop.NewMeterProvider(), when}}); err == nil {
			t.Errorf("%s: no error", when)
		}
	}
	o := observed(t, faulty{noop.NewMeterProvider(), "later"})
	o.Called(core.CallEvent{Questions: 1})
	m := memstore.New(memstore.Config{Observer: o})
	l, err := core.New(m, "banned", core.Blocked())
	if err != nil {
		t.Fatal(err)
	}
	ctx := trace.ContextWithSpan(context.Background(), faultySpan{trace.SpanFromContext(context.Background())})
	if d, err := l.Allow(ctx, "key"); err != nil || d.Allowed {
		t.Errorf("%v %v", d, err)
	}
}
