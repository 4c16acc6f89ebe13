// Command hello is the first program of the README.
package main

import (
	"log"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit.Handler(http.FileServer(http.Dir(".")))))
}
