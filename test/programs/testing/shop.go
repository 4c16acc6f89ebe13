// Package shop is a small service whose tests show how limits are tested.
package shop

import (
	"io"
	"net/http"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Handler returns the service. Each user may call it 60 times in any minute, and 1,000 times
// a day. The store is a parameter, so that a test can bring its own.
func Handler(store core.Store) (http.Handler, error) {
	limiter, err := core.New(store, "api",
		core.SlidingLog(core.PerMinute(60)).Named("minute"),
		core.FixedWindow(core.PerDay(1000)).Named("day"))
	if err != nil {
		return nil, err
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.Header("X-User")}}, // written by the gateway in front
	})
	if err != nil {
		return nil, err
	}
	return guard.Handler(http.HandlerFunc(hello)), nil
}

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") }
