package thirdparty

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// collected returns what the SDK has collected: a line for each point.
func collected(t *testing.T, reader *sdkmetric.ManualReader) (lines []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	point := func(m metricdata.Metrics, value any, attributes attribute.Set) {
		text := fmt.Sprintf("%s %s %v", m.Name, m.Unit, value)
		for _, a := range attributes.ToSlice() {
			text += fmt.Sprintf(" %s=%s", a.Key, a.Value.AsString())
		}
		lines = append(lines, text)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					point(m, p.Value, p.Attributes)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					point(m, time.Since(time.Unix(0, int64(p.Value*1e9))) < 24*time.Hour, p.Attributes)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					point(m, fmt.Sprint(p.Count, p.Sum), p.Attributes)
				}
			default:
				t.Errorf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// TestOpenTelemetry: an SDK gets the counts under the names of the documentation, spans get the
// refusals, and nobody gets a key.
func TestOpenTelemetry(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	spans := tracetest.NewSpanRecorder()
	seen, err := stats.New(stats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	telemetry, err := otelheadgate.New(seen, otelheadgate.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), AspNetCore: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := core.Observers(seen.Observer(), telemetry.Observer())
	store := memstore.New(memstore.Config{Observer: o})
	limiter, err := core.New(store, "api", core.FixedWindow(core.Rate{Events: 3, Per: 400 * 24 * time.Hour}).Named("long"))
	if err != nil {
		t.Fatal(err)
	}
	slots, err := core.NewSlots(store, "sockets", 1)
	if err != nil {
		t.Fatal(err)
	}
	const key = "alice@example.com"
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
	d, err := limiter.AllowN(ctx, key, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.AllowN(ctx, key, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Settle(ctx, 1); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	_, _ = limiter.Wait(ended, key)
	_, _ = slots.Acquire(ctx, key)
	_, _ = slots.Acquire(ctx, key)
	o.Called(core.CallEvent{Questions: 4, Took: 2 * time.Second})
	o.Called(core.CallEvent{Questions: 1, Took: time.Second, Err: context.DeadlineExceeded})
	o.Called(core.CallEvent{Questions: 1, Took: time.Second, Err: &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}})
	o.Called(core.CallEvent{Questions: 1, Took: time.Second, Err: errors.New("reset")})
	o.Settled(ctx, core.SettleEvent{Limiter: "api", Units: 1, Actual: 2, Err: core.ErrUnavailable})
	o.SlotsRestated(3)
	o.Decided(ctx, core.DecisionEvent{Limiter: "new", Policy: "new", Units: 1, Trial: true})
	o.Changed(errors.New("connection refused"))
	span.End()

	lines := collected(t, reader)
	for _, want := range []string{
		"headgate.decisions {decision} 1 headgate.limiter=api headgate.policy=long headgate.result=admitted headgate.source=store",
		"headgate.decisions {decision} 1 headgate.limiter=api headgate.policy=long headgate.result=refused headgate.source=store",
		"headgate.decisions {decision} 1 error.type=canceled headgate.limiter=api headgate.result=error",
		"headgate.decision.units {unit} 2 headgate.limiter=api headgate.policy=long headgate.result=admitted headgate.source=store",
		"headgate.settlement.units {unit} 1 headgate.limiter=api headgate.settlement=given_back",
		"headgate.slots.held {slot} 1 headgate.slots=sockets",
		"headgate.slots.claims {claim} 1 headgate.result=refused headgate.slots=sockets headgate.source=store",
		"headgate.slots.lost {slot} 0",
		"headgate.store.call.duration s 1 2",
		"headgate.store.call.duration s 2 2 error.type=timeout",
		"headgate.store.call.duration s 1 1 error.type=_OTHER",
		"headgate.decisions {decision} 1 headgate.limiter=new headgate.policy=new headgate.result=trial headgate.source=none",
		"headgate.settlements {charge} 2 headgate.limiter=api",
		"headgate.settlement.errors {charge} 1 headgate.limiter=api",
		"headgate.last_refusal s true headgate.limiter=api",
		"headgate.slots.restated {key} 3",
		"headgate.store.questions {question} 7",
		"headgate.store.outages {outage} 1",
		"headgate.store.away {server} 1",
		"aspnetcore.rate_limiting.requests {request} 1 aspnetcore.rate_limiting.policy=api aspnetcore.rate_limiting.result=acquired",
		"aspnetcore.rate_limiting.requests {request} 1 aspnetcore.rate_limiting.policy=api aspnetcore.rate_limiting.result=endpoint_limiter",
		"aspnetcore.rate_limiting.requests {request} 1 aspnetcore.rate_limiting.policy=api aspnetcore.rate_limiting.result=request_canceled",
		"aspnetcore.rate_limiting.active_request_leases {request} 1 aspnetcore.rate_limiting.policy=sockets",
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
	for _, line := range collected(t, reader) {
		if !strings.Contains(line, "call.duration") {
			t.Errorf("after Close: %s", line)
		}
	}
}

// eventsOf returns the events of a span, with their attributes.
func eventsOf(span sdktrace.ReadOnlySpan) (events []string) {
	for _, e := range span.Events() {
		text := e.Name
		for _, a := range e.Attributes {
			text += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
		}
		events = append(events, text)
	}
	return events
}

// TestTrialsOfSpans: the span of a request tells a refusal from one that refused nobody: of a guard
// and of slots in shadow mode.
func TestTrialsOfSpans(t *testing.T) {
	for _, trial := range []bool{false, true} {
		seen, err := stats.New(stats.Config{})
		if err != nil {
			t.Fatal(err)
		}
		spans := tracetest.NewSpanRecorder()
		telemetry, err := otelheadgate.New(seen, otelheadgate.Config{MeterProvider: sdkmetric.NewMeterProvider()})
		if err != nil {
			t.Fatal(err)
		}
		store := memstore.New(memstore.Config{Observer: telemetry.Observer()})
		rates := core.Must(nethttp.New(nethttp.Config{
			Rules:       []nethttp.Rule{{Limiter: core.Must(core.New(store, "api", core.Blocked())), Key: keyfuncs.Everyone()}},
			ObserveOnly: trial,
		}))
		held := core.Must(websocketmw.New(websocketmw.Config{
			Rules:       []nethttp.Rule{{Slots: core.Must(core.NewSlots(store, "sockets", 0)), Key: keyfuncs.Everyone()}},
			ObserveOnly: trial,
		}))
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
		r, passed := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), 0
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
			r.Header.Set(name, value)
		}
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ })
		rates.Handler(next).ServeHTTP(httptest.NewRecorder(), r)
		held.Handler(next).ServeHTTP(httptest.NewRecorder(), r)
		span.End()
		mark, want := "", 0
		if trial {
			mark, want = " headgate.trial=true", 2
		}
		got := eventsOf(spans.Ended()[0])
		if len(got) != 2 || passed != want {
			t.Fatalf("trial %v: %d passed, events %q", trial, passed, got)
		}
		for i, name := range []string{"headgate.limiter=api", "headgate.slots=sockets"} {
			if !strings.HasPrefix(got[i], "headgate.refused"+mark+" "+name) {
				t.Errorf("trial %v: event %q", trial, got[i])
			}
		}
		if err := telemetry.Close(); err != nil {
			t.Error(err)
		}
	}
}
