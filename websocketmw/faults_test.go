package websocketmw

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A guard whose handshakes have no key, or the key of a proxy, says so once.
func TestFaultsAreLogged(t *testing.T) {
	for want, key := range map[string]keyfuncs.Func{
		`reason="headgate: keyfuncs: absent: header X-User"`: keyfuncs.Header("X-User"),
		"the key is the address of a proxy":                  keyfuncs.RemoteAddr(),
	} {
		synctest.Test(t, func(t *testing.T) {
			var text bytes.Buffer
			g, err := New(Config{
				Rules:   []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: key}},
				Logger:  slog.New(slog.NewTextHandler(&text, nil)),
				Observe: func(*http.Request, nethttp.Verdict) {},
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				r := upgradeRequest("X-Forwarded-For", "203.0.113.7")
				r.RemoteAddr = "10.0.0.1:80"
				v := g.Check(r)
				v.End(nethttp.Outcome{})
				time.Sleep(30 * time.Second)
			}
			if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "headgate: websocketmw: ") || !strings.Contains(got, "limit=ws") || !strings.Contains(got, want) {
				t.Error(got)
			}
		})
	}
}
