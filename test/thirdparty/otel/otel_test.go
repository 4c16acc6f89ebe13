// Package otel tests contrib/otelheadgate with the SDK of OpenTelemetry, which it does not require.
package otel

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headgate/headgate/contrib/otelheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const key = "alice@example.com"

// collected returns what the SDK has collected: a line for each point.
func collected(t *testing.T, reader *sdkmetric.ManualReader) (lines []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	points := func(m metricdata.Metrics, points []metricdata.DataPoint[float64]) {
		for _, p := range points {
			text := fmt.Sprintf("%s %s %v", m.Name, m.Unit, p.Value)
			for _, a := range p.Attributes.ToSlice() {
				text += fmt.Sprintf(" %s=%s", a.Key, a.Value.AsString())
			}
			lines = append(lines, text)
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[float64]:
				points(m, data.DataPoints)
			case metricdata.Gauge[float64]:
				points(m, data.DataPoints)
			default:
				t.Errorf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// eventsOf returns the events of a span, with their attributes.
func eventsOf(span sdktrace.ReadOnlySpan) (events []string) {
	for _, e := range span.Events() {
		text := e.Name
		for _, a := range e.Attributes {
			text += fmt.Sprintf(" %s=%s", a.Key, value(a))
		}
		events = append(events, text)
	}
	return events
}

func value(a attribute.KeyValue) string { return a.Value.String() }

// An SDK gets the counts, spans get the refusals, and nobody gets a key.
func TestOpenTelemetry(t *testing.T) {
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	seen := stats.New(stats.Config{})
	telemetry, err := otelheadgate.New(seen, otelheadgate.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer(), telemetry.Observer()}}
	limiter := core.NewLimiter(store, "api", core.FixedWindow(3, 400*24*time.Hour).Named("long"))
	slots := core.NewSlots(store, "sockets", 1)
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
	d, err := limiter.AllowN(ctx, key, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.AllowN(ctx, key, 2); err != nil {
		t.Fatal(err)
	}
	if err := d.Settle(ctx, 1); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	_, _ = limiter.Wait(ended, key)
	_, _ = slots.Acquire(ctx, key)
	_, _ = slots.Acquire(ctx, key)
	span.End()

	lines := collected(t, reader)
	for _, want := range []string{
		"headgate.decisions  1 headgate.limiter=api headgate.policy=long headgate.result=admitted headgate.source=store",
		"headgate.decisions  1 headgate.limiter=api headgate.policy=long headgate.result=refused headgate.source=store",
		"headgate.slots.held  1 headgate.slots=sockets",
		"headgate.slot.claims  1 headgate.result=refused headgate.slots=sockets headgate.source=store",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("there is no %s", want)
		}
	}
	events := eventsOf(spans.Ended()[0])
	if want := []string{
		"headgate.refused headgate.limiter=api headgate.policy=long headgate.units=2 headgate.source=store",
		"headgate.refused headgate.slots=sockets headgate.source=store",
	}; !slices.Equal(events, want) {
		t.Errorf("events %q\nwant %q", events, want)
	}
	if strings.Contains(strings.Join(append(lines, events...), "\n"), key) {
		t.Error("the key is in it")
	}
	if t.Failed() {
		t.Log(strings.Join(lines, "\n"))
	}
	if err := telemetry.Close(); err != nil {
		t.Fatal(err)
	}
	if lines := collected(t, reader); len(lines) != 0 {
		t.Errorf("after Close: %q", lines)
	}
}

// The span of a request tells a refusal from one by a rule that only observes, of rates and of slots.
func TestObserveOnlyOnSpans(t *testing.T) {
	for _, observe := range []bool{false, true} {
		spans := tracetest.NewSpanRecorder()
		telemetry, err := otelheadgate.New(stats.New(stats.Config{}), otelheadgate.Config{MeterProvider: sdkmetric.NewMeterProvider()})
		if err != nil {
			t.Fatal(err)
		}
		store := &core.MemoryStore{Observers: []*core.Observer{telemetry.Observer()}}
		everyone := keyfuncs.Everyone()
		passed := 0
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ })
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
		for _, config := range []nethttp.Config{
			{Rates: []nethttp.Rate{{Limiter: core.NewLimiter(store, "api", core.Blocked()), Key: everyone, ObserveOnly: observe}}},
			{Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(store, "requests", 0), Key: everyone, ObserveOnly: observe}}},
		} {
			guard, err := nethttp.New(config)
			if err != nil {
				t.Fatal(err)
			}
			guard.Handler(next).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		}
		span.End()
		got, want := eventsOf(spans.Ended()[0]), 0
		if observe {
			want = 2
		}
		if len(got) != 2 || passed != want {
			t.Fatalf("observe %v: %d passed, events %q", observe, passed, got)
		}
		for i, name := range []string{"headgate.limiter=api", "headgate.slots=requests"} {
			if !strings.HasPrefix(got[i], "headgate.refused "+name) || strings.Contains(got[i], "headgate.observe_only=true") != observe {
				t.Errorf("observe %v: event %q", observe, got[i])
			}
		}
		if err := telemetry.Close(); err != nil {
			t.Error(err)
		}
	}
}
