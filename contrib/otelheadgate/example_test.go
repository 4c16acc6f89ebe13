package otelheadgate_test

import (
	"github.com/headgate/headgate/contrib/otelheadgate"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
)

// A store whose limits are in the metrics and the traces of the program's SDK.
func ExampleNew() {
	seen := core.Must(stats.New(stats.Config{}))
	telemetry := core.Must(otelheadgate.New(seen, otelheadgate.Config{}))
	store := memstore.New(memstore.Config{Observer: core.Observers(seen.Observer(), telemetry.Observer())})
	stop := telemetry.Close
	_, _ = store, stop
}
