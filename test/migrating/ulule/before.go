// Package ulule is a program with ulule/limiter, and the same with headgate.
package ulule

import (
	"log"
	"net/http"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

// Before admits 60 requests a minute of each client address.
func Before(app http.Handler) http.Handler {
	rate, err := limiter.NewRateFromFormatted("60-M")
	if err != nil {
		log.Fatal(err)
	}
	return stdlib.NewMiddleware(limiter.New(memory.NewStore(), rate)).Handler(app)
}
