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
func Collector(seen *stats.Stats) prometheus.Collector { return collector{seen} }

type collector struct{ stats *stats.Stats }

// Describe implements prometheus.Collector. It describes nothing, so that the registry takes the series as they come.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, family := range c.stats.Families() {
		if family.Type == "histogram" {
			histogram(family, out)
			continue
		}
		kind := prometheus.CounterValue
		if family.Type == "gauge" {
			kind = prometheus.GaugeValue
		}
		for _, sample := range family.Samples {
			names, values := split(sample.Labels)
			description := prometheus.NewDesc(family.Name, family.Help, names, nil)
			out <- prometheus.MustNewConstMetric(description, kind, sample.Value, values...)
		}
	}
}

// histogram collects a family whose samples are buckets and, after those of a series, its sum.
func histogram(family stats.Family, out chan<- prometheus.Metric) {
	buckets := make(map[float64]uint64)
	count := uint64(0)
	for _, sample := range family.Samples {
		names, values := split(sample.Labels)
		last := len(names) - 1
		if last >= 0 && names[last] == "le" {
			count = uint64(sample.Value)
			bound, err := strconv.ParseFloat(values[last], 64)
			if err == nil && values[last] != "+Inf" {
				buckets[bound] = count
			}
			continue
		}
		description := prometheus.NewDesc(family.Name, family.Help, names, nil)
		out <- prometheus.MustNewConstHistogram(description, count, sample.Value, buckets, values...)
		buckets = make(map[float64]uint64)
	}
}

// split returns the names and the values of labels.
func split(labels []string) (names, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		names = append(names, labels[i])
		values = append(values, labels[i+1])
	}
	return names, values
}
