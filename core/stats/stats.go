// Package stats counts what limiters and slots do, and who is refused, in bounded memory: a page for operators, and
// metrics for Prometheus.
//
//	seen := stats.New(stats.Config{})
//	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
//	http.Handle("/debug/headgate/", seen.Handler()) // where only operators get
//
// Series are made of names, never of keys: of 1,024 limiters, 1,024 slots, and 16 policies of each limiter. Further
// names are counted together, as "(others)".
package stats

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats/internal/counts"
	"github.com/headgate/headgate/core/stats/internal/page"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
)

// Config configures [Stats]. Its zero value is ready to use.
type Config struct {
	// ShowKeys shows the keys that are refused most on the page, instead of hashes of them. Then the page is as
	// secret as the keys.
	ShowKeys bool

	// Logger, if not nil, gets a record at INFO about the refusals of a limiter or of slots, at most one a second for
	// each; one at WARN when a store's server is away or has lost slots; and one at INFO when it is back.
	Logger *slog.Logger
}

// Stats counts what its observer is told. It is safe for concurrent use.
type Stats struct {
	inner    *counts.Stats
	observer core.Observer
	memories atomic.Int64
}

// New returns a Stats that has counted nothing.
func New(c Config) *Stats {
	inner := counts.New(counts.Config{ShowKeys: c.ShowKeys, Logger: c.Logger})
	s := &Stats{inner: inner}
	s.observer.Backend(&backend.Observer{Told: inner.Observer(), Memory: s.memory})
	return s
}

// Observer returns the observer for the stores whose events shall be counted.
func (s *Stats) Observer() *core.Observer { return &s.observer }

// memory adds a store in memory, whose size is a metric.
func (s *Stats) memory(m *memory.Store) {
	name := "memory"
	if n := s.memories.Add(1); n > 1 {
		name += " " + strconv.FormatInt(n, 10)
	}
	s.inner.AddMemory(name, m)
}

// Handler returns the page for operators. Mount it at a path that ends in a slash, where only operators get: below it
// are "metrics", the text for Prometheus, and "json", the counts. It answers GET and HEAD.
func (s *Stats) Handler() http.Handler { return page.Handler(s.inner, page.Config{}) }

// HandlerWith is Handler with the limits that are in force. It is for headgated.
func (s *Stats) HandlerWith(limits func() backend.Limits) http.Handler {
	return page.Handler(s.inner, page.Config{Limits: limits})
}

// WritePrometheus writes the counts in the text format of Prometheus, version 0.0.4.
func (s *Stats) WritePrometheus(w io.Writer) error { return s.inner.WritePrometheus(w) }

// A Family is a metric, with its series.
type Family struct {
	Name, Help string
	Type       string // counter, gauge or histogram
	Samples    []Sample
}

// A Sample is one value. Those of a histogram are the cumulative counts of its buckets, whose last label is le, the
// last with "+Inf", and then the sum of what was observed, without le.
type Sample struct {
	Labels []string // name, value, name, value, ...
	Value  float64
}

// Families returns the counts, for exporters to other systems.
func (s *Stats) Families() []Family {
	var all []Family
	for _, f := range s.inner.Families() {
		family := Family{Name: f.Name, Help: f.Help, Type: f.Kind}
		for _, x := range f.Samples {
			family.add(f.Labels, x)
		}
		all = append(all, family)
	}
	return all
}

func (f *Family) add(names []string, x counts.Sample) {
	var labels []string
	for i, name := range names {
		labels = append(labels, name, x.Labels[i])
	}
	if x.Durations == nil {
		f.Samples = append(f.Samples, Sample{labels, x.Value})
		return
	}
	bucket := func(le string, count uint64) {
		f.Samples = append(f.Samples, Sample{append(labels[:len(labels):len(labels)], "le", le), float64(count)})
	}
	for _, b := range x.Durations.Buckets {
		bucket(strconv.FormatFloat(b.Seconds, 'f', -1, 64), b.Count)
	}
	bucket("+Inf", x.Durations.Count)
	f.Samples = append(f.Samples, Sample{labels, x.Durations.Sum})
}
