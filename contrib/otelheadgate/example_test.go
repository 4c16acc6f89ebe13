package otelheadgate_test

import (
	"log"
	"time"

	"github.com/headgate/headgate/contrib/otelheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
)

// A store whose limits are in the metrics and the traces of the program's SDK.
func ExampleNew() {
	seen := stats.New(stats.Config{})
	telemetry, err := otelheadgate.New(seen, otelheadgate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer telemetry.Close()
	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer(), telemetry.Observer()}}
	limiter := core.NewLimiter(store, "api", core.SlidingLog(60, time.Minute))
	_ = limiter
}
