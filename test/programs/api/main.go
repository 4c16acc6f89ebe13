// Api limits each customer of an API to 5 requests a minute, over all servers.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// customers has the customer of each API key. Yours are in a database.
var customers = map[string]string{"key-of-anna": "anna", "key-of-ben": "ben"}

type customerKey struct{}

// authenticate puts the customer into the request's context. Without it, clients could invent keys.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		customer, ok := customers[r.Header.Get("X-API-Key")]
		if !ok {
			http.Error(w, "unknown API key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), customerKey{}, customer)))
	})
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redis := flag.String("redis", "redis://localhost:6379/0", "the `URL` of the Redis that all servers share")
	flag.Parse()

	store, err := redisstore.Open(*redis, redisstore.Config{
		Observers: []*core.Observer{{Changed: func(err error) { log.Printf("limits without Redis: %v", err) }}}, // nil: it is back
	})
	if err != nil {
		log.Fatal(err)
	}
	limit := nethttp.Limit(store, "customer", keyfuncs.Context(customerKey{}), core.SlidingLog(5, time.Minute))
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello", r.Context().Value(customerKey{}))
	})
	log.Printf("listening on http://%s/", *addr)
	log.Fatal(http.ListenAndServe(*addr, authenticate(limit.Handler(api))))
}
