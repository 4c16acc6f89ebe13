package nethttp_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// TestFaultsAreLogged: a guard whose requests have no key, and one whose key is a proxy, say so once,
// also on trial.
func TestFaultsAreLogged(t *testing.T) {
	for name, test := range map[string]struct {
		rule    nethttp.Rule
		request []string
		status  int
		want    string
	}{
		"no key":  {nethttp.Rule{Key: header}, nil, 400, `rule=1 limit=second requests=3 since=2000-01-01T00:00:00.000Z reason="no X-Client"`},
		"a proxy": {nethttp.Rule{Key: keyfuncs.RemoteAddr()}, []string{"X-Forwarded-For", "203.0.113.7"}, 200, "the address of a proxy"},
	} {
		for _, trial := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var text bytes.Buffer
					first := memory(t, "first", core.Unlimited())
					test.rule.Limiter = newLimiter(t, first.Store(), "second", core.Unlimited().Named("other"))
					c := rules(nethttp.Rule{Limiter: first, Key: keyfuncs.Everyone()}, test.rule)
					c.Logger, c.ObserveOnly = slog.New(utc(&text)), trial
					h := newGuard(t, c).Handler(status(200))
					for range 5 {
						r := request("GET", "/", test.request...)
						r.RemoteAddr = "10.0.0.1:80"
						if w := serve(h, r); w.Code != test.status && !trial {
							t.Error(w.Code)
						}
						time.Sleep(30 * time.Second)
					}
					if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, test.want) || strings.Contains(got, "10.0.0.1") {
						t.Error(got)
					}
				})
			})
		}
	}
}

// utc writes records as text, with times that do not depend on where the test runs.
func utc(text *bytes.Buffer) slog.Handler {
	return slog.NewTextHandler(text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindTime {
			a.Value = slog.TimeValue(a.Value.Time().UTC())
		}
		return a
	}})
}

// TestFaultsAreLoggedByDefault: without a Logger, the default gets the records, whatever it is by
// then; a Logger that discards them turns them off.
func TestFaultsAreLoggedByDefault(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	for _, off := range []bool{false, true} {
		c := rules(nethttp.Rule{Limiter: memory(t, "api", core.Unlimited()), Key: keyfuncs.RemoteAddr()})
		if off {
			c.Logger = slog.New(slog.DiscardHandler)
		}
		h := newGuard(t, c).Handler(status(200))
		var text bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
		r := request("GET", "/", "X-Forwarded-For", "203.0.113.7")
		r.RemoteAddr = "10.0.0.1:80"
		serve(h, r)
		if got := strings.Contains(text.String(), "the address of a proxy"); got == off {
			t.Error(off, text.String())
		}
	}
}
