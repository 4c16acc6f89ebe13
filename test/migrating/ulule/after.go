package ulule

import (
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// After does the same.
func After(app http.Handler) http.Handler {
	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
	return limit.Handler(app)
}
