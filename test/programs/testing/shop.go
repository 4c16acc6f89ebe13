// Package shop is a small service whose tests show how limits are tested.
package shop

import (
	"io"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Handler returns the service. Each user may call it 60 times in any minute, and 1,000 times
// a day. The store is a parameter, so that a test can bring its own.
func Handler(store core.Store) http.Handler {
	user := keyfuncs.Header("X-User") // written by the gateway in front
	limit := nethttp.Limit(store, "user", user,
		core.SlidingLog(60, time.Minute).Named("minute"),
		core.FixedWindow(1000, 24*time.Hour).Named("day"))
	return limit.Handler(http.HandlerFunc(hello))
}

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") }
