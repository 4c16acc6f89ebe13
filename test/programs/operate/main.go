// Operate reads its limits from a file that may change while it runs, and shows who is refused.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/debug"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/yamldoc"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	operators := flag.String("operators", "127.0.0.1:6060", "serve the page for operators on this `address`")
	file := flag.String("limits", "limits.yaml", "the `file` of the limits")
	flag.Parse()

	// ShowKeys shows operators the keys themselves, here addresses. Without it, the page has hashes.
	seen := core.Must(stats.New(stats.Config{Logger: slog.Default(), ShowKeys: true}))
	store := memstore.New(memstore.Config{Observer: seen.Observer()})
	book, err := limits.Open(context.Background(), store, store, limits.File(*file), limits.Config{
		Decode: yamldoc.Decode,
		Changed: func(e limits.Event) {
			log.Printf("limits: version %s, error: %v\n%v", e.State.Version, e.State.Err, e.Diff)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	api, err := book.Limit("api")
	if err != nil {
		log.Fatal(err)
	}
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limit: api, Key: keyfuncs.RemoteAddr()}}}))
	go func() {
		log.Fatal(http.ListenAndServe(*operators, debug.Handler(seen, debug.Config{
			Limits: func() debug.Limits { return debug.Limits{Limiters: book.View().Limiters()} },
		})))
	}()
	log.Printf("listening on http://%s/, and for operators on http://%s/", *addr, *operators)
	log.Fatal(http.ListenAndServe(*addr, guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))))
}
