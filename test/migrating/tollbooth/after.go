package tollbooth

import (
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// After admits 5 requests a second of each client address, to all paths together.
func After(app http.Handler) http.Handler {
	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.TokenBucket(5, time.Second))
	return limit.Handler(app)
}
