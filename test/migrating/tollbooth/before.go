// Package tollbooth is a program with didip/tollbooth, and the same with headgate.
package tollbooth

import (
	"net/http"

	"github.com/didip/tollbooth/v7"
)

// Before admits 5 requests a second of each client address, to each path.
func Before(app http.Handler) http.Handler {
	limit := tollbooth.NewLimiter(5, nil)
	limit.SetIPLookups([]string{"RemoteAddr"})
	return tollbooth.LimitHandler(limit, app)
}
