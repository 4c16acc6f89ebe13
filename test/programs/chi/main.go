// The middleware of chi has the type of guard.Handler.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))

	r := chi.NewRouter()
	r.Use(limit.Handler)
	r.Get("/", hello)
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", r))
}

func hello(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello\n")) }
