package tollbooth

import (
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// After admits 5 requests a second of each client address, to all paths together.
func After(app http.Handler) http.Handler {
	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.TokenBucket(core.PerSecond(5), 5)))
	return limit.Handler(app)
}
