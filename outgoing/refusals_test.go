package outgoing_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/outgoing"
)

// A guard that has no slot for a request gives back what its rate has charged, and does not say that it is spent. So a
// client comes back after the seconds that a slot may take, not after the hour of the rate.
func TestRefusalsForWantOfSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, client := new(core.MemoryStore), keyfuncs.Everyone()
		slots := core.NewSlots(store, "exports", 1)
		guard, err := nethttp.New(nethttp.Config{
			Rates:       []nethttp.Rate{{Limiter: core.NewLimiter(store, "api", core.SlidingLog(1, time.Hour)), Key: client}},
			Concurrency: []nethttp.Concurrency{{Slots: slots, Key: client}},
		})
		if err != nil {
			t.Fatal(err)
		}
		held, err := slots.Acquire(t.Context(), "everyone")
		if err != nil {
			t.Fatal(err)
		}
		h := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		peer := roundTripper(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			held.Release()
			return w.Result(), nil
		})
		start := time.Now()
		response, err := fetch(t, &outgoing.Transport{Base: peer, Retries: 1}, "http://a/")
		if took := time.Since(start); err != nil || response.StatusCode != 200 || took < time.Second || took > 7*time.Second {
			t.Errorf("%v, %v after %v", response, err, took)
		}
	})
}
