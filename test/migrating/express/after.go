// Package express is a program with the options of express-rate-limit, in headgate.
package express

import (
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// After admits 100 requests in 15 minutes of each client, of which those that were answered
// below 400 do not count.
func After(app http.Handler) http.Handler {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "login", // store, identifier
		core.SlidingLog(core.Rate{Events: 100, Per: 15 * time.Minute}))) // limit, windowMs
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: limiter,
			Key:     core.Must(keyfuncs.XForwardedFor("10.0.0.0/8")), // keyGenerator, trust proxy
			Settle:  nethttp.FailuresOnly,                            // skipSuccessfulRequests
		}},
		Skip:   func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/health") }, // skip
		Fields: nethttp.XRateLimit,                                                             // legacyHeaders: true
	}))
	return guard.Handler(app)
}
