// Command hello is the first program of the README.
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(60)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
	})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", guard.Handler(hello)))
}
