package stats_test

import (
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func ExampleStats_Handler() {
	seen := stats.New(stats.Config{Logger: slog.Default()})
	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
	limit := nethttp.Limit(store, "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
	http.Handle("/", limit.Handler(http.FileServer(http.Dir("."))))
	operators := http.NewServeMux()
	operators.Handle("/debug/headgate/", seen.Handler())
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:6060", operators)) }()
}
