// Package promheadgate puts what package stats counts among the metrics of a program that uses
// client_golang. A program that does not needs no library: package debug serves the same.
//
//	seen, err := stats.New(stats.Config{})
//	...
//	prometheus.MustRegister(promheadgate.Collector(seen))
package promheadgate

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/core/stats"
)

// Collector returns a collector of the metrics that [stats.Stats.WritePrometheus] writes, with
// the same names. It is safe for concurrent use.
func Collector(s *stats.Stats) prometheus.Collector { return collector{s} }

type collector struct{ stats *stats.Stats }

// Describe implements prometheus.Collector. It describes nothing, so that the registry takes
// the series as they come.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c.stats.Families() {
		kind := prometheus.CounterValue
		if f.Kind == "gauge" {
			kind = prometheus.GaugeValue
		}
		desc := prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
		for _, x := range f.Samples {
			if x.Durations != nil {
				out <- histogram(desc, x)
				continue
			}
			out <- prometheus.MustNewConstMetric(desc, kind, x.Value, x.Labels...)
		}
	}
}

func histogram(desc *prometheus.Desc, x stats.Sample) prometheus.Metric {
	buckets := make(map[float64]uint64)
	for _, b := range x.Durations.Buckets {
		buckets[b.Seconds] = b.Count
	}
	return prometheus.MustNewConstHistogram(desc, x.Durations.Count, x.Durations.Sum, buckets, x.Labels...)
}
