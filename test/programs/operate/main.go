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
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	operators := flag.String("operators", "127.0.0.1:6060", "serve the page for operators on this `address`")
	file := flag.String("limits", "limits.yaml", "the `file` of the limits")
	flag.Parse()

	// ShowKeys shows operators the keys themselves, here addresses. Without it, the page has hashes.
	seen := stats.New(stats.Config{Logger: slog.Default(), ShowKeys: true})
	store := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
	book, err := limits.Open(context.Background(), store, limits.File(*file), limits.Config{
		OnChange: func(s limits.State) { log.Println("limits", s.Version, s.Changes, s.Err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	api, err := book.Limiter("api")
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{Limiter: api, Key: keyfuncs.RemoteAddr()}}})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.ListenAndServe(*operators, seen.Handler())) }()
	log.Printf("listening on http://%s/, and for operators on http://%s/", *addr, *operators)
	log.Fatal(http.ListenAndServe(*addr, guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))))
}
