package outgoing_test

import (
	"log"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/outgoing"
)

// A client that keeps to a limit of 50 a second, and to what GitHub answers.
func ExampleTransport() {
	client := &http.Client{Transport: &outgoing.Transport{
		Limiter: core.NewLimiter(new(core.MemoryStore), "github", core.SlidingLog(50, 1050*time.Millisecond)),
		Retries: 3,
		Reads:   []outgoing.Reader{outgoing.GitHub},
	}}
	response, err := client.Get("https://api.github.com/zen")
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
}

// A 304 of GitHub is free.
func ExampleTransport_settle() {
	transport := &outgoing.Transport{
		Limiter: core.NewLimiter(new(core.MemoryStore), "github", core.FixedWindow(5000, time.Hour)),
		Reads:   []outgoing.Reader{outgoing.GitHub},
		Settle: func(_ *http.Request, response *http.Response) int64 {
			if response.StatusCode == http.StatusNotModified {
				return 0
			}
			return 1
		},
	}
	_ = http.Client{Transport: transport}
}
