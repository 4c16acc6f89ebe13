package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Under each framework, requests in flight are counted, wait, are refused and released alike.
func TestInFlight(t *testing.T) {
	const quota = `429 "busy";r=0 no-store {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["busy"]}`
	for name, serve := range mounts {
		byPath := func(r *http.Request) (string, error) {
			if r.URL.Path == "/nobody" {
				return "", keyfuncs.ErrAbsent
			}
			return r.URL.Path, nil
		}
		for i, key := range keysOf(name, byPath) {
			t.Run(fmt.Sprint(name, " ", i > 0), func(t *testing.T) {
				slots, err := core.NewSlots(memstore.New(memstore.Config{}), "busy", 1)
				if err != nil {
					t.Fatal(err)
				}
				rule := nethttp.Rule{Slots: slots, Key: key, Queue: 1}
				guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{rule}, Wait: 10 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				var h http.Handler
				ask := func(path string) string {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
					return strings.Join(strings.Fields(fmt.Sprint(w.Code, " ", w.Header().Get("RateLimit"), " ", w.Header().Get("Cache-Control"), " ", w.Body)), " ")
				}
				inside := ""
				h = serve(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/outer" {
						inside = ask("/outer") + "\n" + ask("/inner")
					}
					fmt.Fprint(w, "done")
				}))
				const done = `200 "busy";r=0 done`
				if got := ask("/outer") + "\n" + inside; got != done+"\n"+quota+"\n"+done {
					t.Error(got)
				}
				if got := ask("/outer"); got != done { // released
					t.Error(got)
				}
				if got := ask("/nobody"); got != `400 no-store {"type":"about:blank","title":"Bad Request","status":400}` {
					t.Error(got)
				}
			})
		}
	}
}

// Faults of the program panic where the middleware is made.
func TestNoGuardPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"gin, no guard":    func() { ginmw.Use(nil) },
		"echo, no guard":   func() { echomw.Use(nil) },
		"echov5, no guard": func() { echov5mw.Use(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
