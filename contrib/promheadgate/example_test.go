package promheadgate_test

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/contrib/promheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
)

// A store whose limits are among the metrics of the program.
func ExampleCollector() {
	seen := stats.New(stats.Config{})
	prometheus.MustRegister(promheadgate.Collector(seen))
	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
	limiter := core.NewLimiter(store, "api", core.SlidingLog(60, time.Minute))
	_ = limiter
}
