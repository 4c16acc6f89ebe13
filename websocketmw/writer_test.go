package websocketmw

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Settle of a rule for a rate gets the response of an upgrade that failed, and is not
// called for one that succeeded.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		want    *nethttp.Outcome
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusForbidden)
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, "no")
		}, &nethttp.Outcome{Status: 403, Written: 2, Cost: 1}},
		{"a body without a status", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "page")
		}, &nethttp.Outcome{Status: 200, Written: 4, Cost: 1}},
		{"nothing", func(http.ResponseWriter, *http.Request) {}, &nethttp.Outcome{Status: 200, Cost: 1}},
		{"a panic", func(http.ResponseWriter, *http.Request) {
			panic("refused")
		}, &nethttp.Outcome{Status: 500, Cost: 1}},
		{"a 101 that is not followed by a hijack", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
		}, &nethttp.Outcome{Status: 101, Cost: 1}},
		{"upgraded", func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			c.Close()
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got *nethttp.Outcome
			rate, err := core.New(memstore.New(memstore.Config{}), "handshakes", core.SlidingLog(core.PerHour(3)))
			if err != nil {
				t.Fatal(err)
			}
			settle := func(_ *http.Request, o nethttp.Outcome) int64 {
				got = &o
				return o.Cost
			}
			slots := newSlots(t, memstore.New(memstore.Config{}), "ws", 1)
			g, err := New(Config{Rules: []nethttp.Rule{
				{Slots: slots, Key: keyfuncs.Everyone()}, {Limiter: rate, Key: keyfuncs.Everyone(), Settle: settle},
			}})
			if err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() {
					if p := recover(); p != nil && p != "refused" {
						panic(p)
					}
				}()
				g.Handler(c.handler).ServeHTTP(newOnIdle(nil), upgradeRequest())
			}()
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%+v, not %+v", got, c.want)
			}
		})
	}
}
