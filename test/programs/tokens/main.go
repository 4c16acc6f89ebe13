// Tokens gives each user 1,000 tokens an hour. A request reserves the most that it can use, and pays what it used.
package main

import (
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// maxTokens is what the handler allows an answer to have.
const maxTokens = 400

var tokens = core.NewLimiter(new(core.MemoryStore), "tokens", core.TokenBucket(1000, time.Hour))

func complete(w http.ResponseWriter, r *http.Request) {
	used := rand.Int64N(maxTokens) + 1 // what the model says that it used
	if err := nethttp.SetCost(r.Context(), tokens, used); err != nil {
		log.Print(err)
	}
	fmt.Fprintf(w, "used %d tokens\n", used)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	flag.Parse()

	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: tokens,
		Key:     keyfuncs.Header("X-User"), // which your authentication sets
		Cost:    func(*http.Request) int64 { return maxTokens },
	}}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /complete", guard.Handler(http.HandlerFunc(complete)))
	log.Printf("listening on http://%s/", *addr)
	log.Fatal(http.ListenAndServe(*addr, nil))
}
