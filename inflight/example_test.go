package inflight_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/inflight"
	"github.com/headgate/headgate/keyfuncs"
)

// Two reports at once for each user. Five more requests wait, for up to ten seconds.
func ExampleGuard_Handler() {
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "reports", 2)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := inflight.New(inflight.Config{
		Rules: []inflight.Rule{{Slots: slots, Key: keyfuncs.Header("X-User")}}, // set by authentication
		Queue: 5,
		Wait:  10 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
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
