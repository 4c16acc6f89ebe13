package nethttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
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
					c.Observe = func(*http.Request, nethttp.Verdict) {} // it gets the refusals
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

// TestRefusalsAreLogged: without Observe, what is refused without a decision is logged with the reason,
// each reason once a minute, and never with a key.
func TestRefusalsAreLogged(t *testing.T) {
	errStable := fmt.Errorf("%w: no session", keyfuncs.ErrAbsent)
	for name, test := range map[string]struct {
		rule    nethttp.Rule
		want    []string
		observe bool
	}{
		"a key function's error": {nethttp.Rule{Key: func(*http.Request) (string, error) { return "", errors.New("anna is unknown") }},
			[]string{`status=400 requests=1 reason="an error of the rule's Key"`, `status=400 requests=6 reason="an error of the rule's Key"`}, false},
		"no key": {nethttp.Rule{Key: func(*http.Request) (string, error) { return "", errStable }},
			[]string{`status=400 requests=1 reason="headgate: keyfuncs: absent"`, `status=400 requests=6 reason="headgate: keyfuncs: absent: no session"`}, false},
		"a fault of the program": {nethttp.Rule{Key: keyfuncs.Everyone(), Cost: func(*http.Request) int64 { return -1 }},
			[]string{`status=500 requests=1 reason="Cost returned -1; it must be 0 or more"`, `status=500 requests=6 reason=`}, false},
		"an observed guard": {nethttp.Rule{Key: keyfuncs.Everyone(), Cost: func(*http.Request) int64 { return -1 }}, nil, true},
		"a refusal":         {nethttp.Rule{Key: keyfuncs.Everyone(), Cost: func(*http.Request) int64 { return 9 }}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var text bytes.Buffer
				test.rule.Limiter = memory(t, "api", core.SlidingLog(core.PerDay(1)))
				c := rules(test.rule)
				c.Logger = slog.New(utc(&text))
				if test.observe {
					c.Observe = func(*http.Request, nethttp.Verdict) {}
				}
				h := newGuard(t, c).Handler(status(200))
				for range 9 {
					serve(h, request("GET", "/"))
					time.Sleep(10 * time.Second)
				}
				var lines []string
				for line := range strings.Lines(text.String()) {
					if strings.Contains(line, "no request had a key") {
						continue
					}
					lines = append(lines, line)
				}
				if len(lines) != len(test.want) {
					t.Fatalf("%q", lines)
				}
				for i, want := range test.want {
					if !strings.Contains(lines[i], "headgate: guard: requests are refused without a decision\" rule=0 limit=api "+want) {
						t.Errorf("%s\nwant %s", lines[i], want)
					}
				}
			})
		})
	}
}

// TestRefusalsOfAStoreAreLogged: also those that are of no rule alone; not those that nobody reads.
func TestRefusalsOfAStoreAreLogged(t *testing.T) {
	var text bytes.Buffer
	slots := newSlots(t, memstore.New(memstore.Config{}), "jobs", 1)
	if err := slots.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := rules(nethttp.Rule{Slots: slots, Key: keyfuncs.Everyone()})
	c.Logger = slog.New(utc(&text))
	h := newGuard(t, c).Handler(status(200))
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	serve(h, request("GET", "/").WithContext(gone))
	if text.Len() > 0 {
		t.Error(text.String())
	}
	for range 3 {
		serve(h, request("GET", "/"))
	}
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `status=503 requests=1 reason="headgate: the slots are closed"`) {
		t.Error(got)
	}
}
