// Outgoing sends 10 requests to a server that admits 5 a second, and is never refused.
package main

import (
	"flag"
	"log"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/nethttp"
)

func main() {
	url := flag.String("url", "http://127.0.0.1:8080/", "the `URL` to ask")
	flag.Parse()

	// With a redisstore, all processes keep to the limit together.
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "outgoing", core.SlidingLog(core.PerSecond(5))))
	client := &http.Client{Transport: core.Must(nethttp.NewTransport(nethttp.TransportConfig{
		Limiter: limiter,
		Retries: 3, // of requests that can be repeated, if the server refuses nevertheless
	}))}
	for range 10 {
		response, err := client.Get(*url) // waits until the limit admits it
		if err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
		log.Println(response.Status)
	}
}
