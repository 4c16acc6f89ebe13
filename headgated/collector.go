package headgated

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/internal/old/core/stats"
)

// A collector has the counts of limits among the metrics of the process. It describes nothing, so that the registry
// takes the series as they come.
type collector struct{ stats *stats.Stats }

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c.stats.Families() {
		kind := prometheus.CounterValue
		if f.Kind == "gauge" {
			kind = prometheus.GaugeValue
		}
		desc := prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
		for _, x := range f.Samples {
			if x.Durations == nil {
				out <- prometheus.MustNewConstMetric(desc, kind, x.Value, x.Labels...)
				continue
			}
			buckets := make(map[float64]uint64)
			for _, b := range x.Durations.Buckets {
				buckets[b.Seconds] = b.Count
			}
			out <- prometheus.MustNewConstHistogram(desc, x.Durations.Count, x.Durations.Sum, buckets, x.Labels...)
		}
	}
}
