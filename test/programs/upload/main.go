// Upload limits each address to 100 MiB an hour. Each MiB that has begun costs one unit.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const (
	mib       = 1 << 20
	maxUpload = 50 * mib
)

// cost returns the units of an upload. One that does not say how long it is pays for the longest.
func cost(r *http.Request) int64 {
	if r.ContentLength < 0 {
		return maxUpload / mib
	}
	return (r.ContentLength + mib - 1) / mib // an empty upload is free
}

func upload(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, "the upload is cut off, or longer than 50 MiB", http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%d bytes\n", n)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	flag.Parse()

	limiter := core.NewLimiter(new(core.MemoryStore), "uploads", core.TokenBucket(100, time.Hour))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: limiter,
		Key:     keyfuncs.RemoteAddr(),
		Cost:    cost,
	}}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("PUT /upload", http.MaxBytesHandler(guard.Handler(http.HandlerFunc(upload)), maxUpload))
	log.Printf("listening on http://%s/", *addr)
	log.Fatal(http.ListenAndServe(*addr, nil))
}
