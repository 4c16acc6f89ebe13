package headgated

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/core/stats"
)

// A collector has the counts of limits among the metrics of the process. It describes nothing, so that the registry
// takes the series as they come.
type collector struct{ stats *stats.Stats }

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	types := map[string]prometheus.ValueType{"counter": prometheus.CounterValue, "gauge": prometheus.GaugeValue}
	for _, f := range c.stats.Families() {
		if f.Type == "histogram" {
			collectHistograms(f, out)
			continue
		}
		for _, x := range f.Samples {
			names, values := namesAndValues(x.Labels)
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc(f.Name, f.Help, names, nil), types[f.Type], x.Value, values...)
		}
	}
}

// collectHistograms reads samples: of each histogram, the buckets, the last of which is +Inf, and then the sum.
func collectHistograms(f stats.Family, out chan<- prometheus.Metric) {
	buckets, count := make(map[float64]uint64), uint64(0)
	for _, x := range f.Samples {
		names, values := namesAndValues(x.Labels)
		last := len(names) - 1
		switch {
		case last < 0 || names[last] != "le":
			out <- prometheus.MustNewConstHistogram(prometheus.NewDesc(f.Name, f.Help, names, nil), count, x.Value, buckets, values...)
			buckets = make(map[float64]uint64)
		case values[last] == "+Inf":
			count = uint64(x.Value)
		default:
			bound, _ := strconv.ParseFloat(values[last], 64)
			buckets[bound] = uint64(x.Value)
		}
	}
}

func namesAndValues(labels []string) (names, values []string) {
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}
