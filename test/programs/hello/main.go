// Command hello is the first program of the README.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit.Handler(http.FileServer(http.Dir(".")))))
}
