package ulule

import (
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// After does the same.
func After(app http.Handler) http.Handler {
	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
	return limit.Handler(app)
}
