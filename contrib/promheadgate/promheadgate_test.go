package promheadgate_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/headgate/headgate/contrib/promheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/stats"
)

// TestCollector: the registry accepts the metrics, and they are those of the text.
func TestCollector(t *testing.T) {
	s := stats.New(stats.Config{})
	store, err := redisstore.Open("redis://127.0.0.1:1/0", redisstore.Config{Observers: []*core.Observer{s.Observer()}}) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(t.Context())
	memory := &core.MemoryStore{Observers: []*core.Observer{s.Observer()}}
	l, slots := core.NewLimiter(memory, `a "name"\`, core.FixedWindow(2, 400*24*time.Hour)), core.NewSlots(memory, "ws", 1)
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		_, _ = l.Allow(ctx, "key")
		_, _ = slots.Acquire(ctx, "key")
	}
	cancel()
	_, _ = l.Wait(ctx, "key")
	if _, err := core.NewLimiter(store, "away", core.FixedWindow(2, time.Hour)).Allow(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(promheadgate.Collector(s))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got, want bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.WritePrometheus(&want); err != nil {
		t.Fatal(err)
	}
	if got, want := samples(got.String()), samples(want.String()); !slices.Equal(got, want) {
		t.Errorf("the registry has\n%s\nthe text has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// samples returns the lines with values in order, each with its labels in order, but for the
// one whose value is written in another way: a time.
func samples(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line[0] == '#' || strings.HasPrefix(line, "headgate_last_refusal") {
			continue
		}
		line = strings.TrimSuffix(line, "\n")
		if name, rest, found := strings.Cut(line, "{"); found {
			labels, value, _ := strings.Cut(rest, "} ")
			each := strings.Split(strings.TrimSuffix(labels, `"`), `",`)
			slices.Sort(each)
			line = name + "{" + strings.Join(each, ",") + "} " + value
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}
