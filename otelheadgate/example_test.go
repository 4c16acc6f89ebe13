package otelheadgate_test

import (
	"log"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/otelheadgate"
)

// A store whose limits are in the metrics and the traces of the program's SDK.
func ExampleNew() {
	seen, err := stats.New(stats.Config{})
	if err != nil {
		log.Fatal(err)
	}
	telemetry, err := otelheadgate.New(seen, otelheadgate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	store := memstore.New(memstore.Config{Observer: core.Observers(seen.Observer(), telemetry.Observer())})
	stop := telemetry.Close
	_, _ = store, stop
}
