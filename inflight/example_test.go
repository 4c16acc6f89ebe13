package inflight_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/inflight"
	"github.com/headgate/headgate/keyfuncs"
)

// Two reports at once for each user; others are refused.
func ExampleLimit() {
	user := keyfuncs.Header("X-User") // set by authentication
	limit := core.Must(inflight.Limit("reports", user, 2))
	handler := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "a report that takes a while")
	}))

	r := httptest.NewRequest("GET", "/report", nil)
	r.Header.Set("X-User", "anna")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit"), w.Body)
	// Output: 200 "reports";r=1 a report that takes a while
}

// Two reports at once for each user. Five more requests wait, for up to ten seconds.
func ExampleGuard_Handler() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "reports", 2))
	guard := core.Must(inflight.New(inflight.Config{
		Rules: []inflight.Rule{{Slots: slots, Key: keyfuncs.Header("X-User")}}, // set by authentication
		Queue: 5,
		Wait:  10 * time.Second,
	}))
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "a report that takes a while")
	}))

	r := httptest.NewRequest("GET", "/report", nil)
	r.Header.Set("X-User", "anna")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit"), w.Body)
	// Output: 200 "reports";r=1 a report that takes a while
}
