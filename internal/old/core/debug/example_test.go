package debug_test

import (
	"log"
	"log/slog"
	"net/http"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/debug"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/stats"
)

// A store that is watched, and a server for those who operate it.
func ExampleHandler() {
	seen := core.Must(stats.New(stats.Config{Logger: slog.Default()}))
	store := memstore.New(memstore.Config{Observer: seen.Observer()})
	api := core.Must(core.New(store, "api", core.SlidingLog(core.PerMinute(60))))
	operators := http.NewServeMux()
	operators.Handle("/debug/headgate/", debug.Handler(seen, debug.Config{
		Limits: func() debug.Limits { return debug.Limits{Limiters: []*core.Limiter{api}} },
	}))
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:6060", operators)) }()
}
