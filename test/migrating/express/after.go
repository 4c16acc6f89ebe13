// Package express is a program with the options of express-rate-limit, in headgate.
package express

import (
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// After admits 100 requests in 15 minutes of each client, of which those that were answered
// below 400 do not count.
func After(app http.Handler) http.Handler {
	limiter := core.NewLimiter(new(core.MemoryStore), "login", // store, identifier
		core.SlidingLog(100, 15*time.Minute)) // limit, windowMs
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: limiter,
			Key:     keyfuncs.XForwardedFor("10.0.0.0/8"), // keyGenerator, trust proxy
			Settle:  nethttp.FailuresOnly,                 // skipSuccessfulRequests
		}},
		Skip:   func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/health") }, // skip
		Fields: nethttp.XRateLimitFields,                                                       // legacyHeaders: true
	})
	if err != nil {
		log.Fatal(err)
	}
	return guard.Handler(app)
}
