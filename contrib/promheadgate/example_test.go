package promheadgate_test

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/contrib/promheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
)

// A store whose limits are among the metrics of the program.
func ExampleCollector() {
	seen := core.Must(stats.New(stats.Config{}))
	prometheus.MustRegister(promheadgate.Collector(seen))
	store := memstore.New(memstore.Config{Observer: seen.Observer()})
	_ = store
}
