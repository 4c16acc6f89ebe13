// Package promheadgate puts what package stats counts among the metrics of a program that uses client_golang. A program
// that does not needs no library: Stats.Handler serves the same.
//
//	seen := stats.New(stats.Config{})
//	...
//	prometheus.MustRegister(promheadgate.Collector(seen))
package promheadgate

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/core/stats"
)

// Collector returns a collector of the metrics that [stats.Stats.WritePrometheus] writes, with the same names. It is
// safe for concurrent use.
func Collector(s *stats.Stats) prometheus.Collector { return collector{s} }

type collector struct{ stats *stats.Stats }

// Describe implements prometheus.Collector. It describes nothing, so that the registry takes the series as they come.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c.stats.Families() {
		if f.Type == "histogram" {
			histogram(f, out)
			continue
		}
		kind := prometheus.CounterValue
		if f.Type == "gauge" {
			kind = prometheus.GaugeValue
		}
		for _, x := range f.Samples {
			names, values := split(x.Labels)
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc(f.Name, f.Help, names, nil), kind, x.Value, values...)
		}
	}
}

// histogram collects a family whose samples are buckets and, after those of a series, its sum.
func histogram(f stats.Family, out chan<- prometheus.Metric) {
	buckets, count := make(map[float64]uint64), uint64(0)
	for _, x := range f.Samples {
		names, values := split(x.Labels)
		if last := len(names) - 1; last >= 0 && names[last] == "le" {
			count = uint64(x.Value)
			if bound, err := strconv.ParseFloat(values[last], 64); err == nil && values[last] != "+Inf" {
				buckets[bound] = count
			}
			continue
		}
		out <- prometheus.MustNewConstHistogram(prometheus.NewDesc(f.Name, f.Help, names, nil), count, x.Value, buckets, values...)
		buckets = make(map[float64]uint64)
	}
}

// split returns the names and the values of labels.
func split(labels []string) (names, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}
