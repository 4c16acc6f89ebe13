package nethttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

// A rule takes the slots of the document, by the request's plan and its key, and from the next
// request on those of the next document.
func TestSlotsOfADocument(t *testing.T) {
	const document = `{"slots": {"jobs": {"plans": {"free": 1, "gold": 2}, "overrides": [{"key": "anna", "slots": 3}, {"key": "ben", "plan": "blocked"}]}}}`
	var text atomic.Value
	text.Store(document)
	store := memstore.New(memstore.Config{})
	b, err := limits.Open(t.Context(), store, store, limits.SourceFunc(func(context.Context) ([]byte, error) {
		return []byte(text.Load().(string)), nil
	}), limits.Config{Every: 1000 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	jobs, err := b.Slots("jobs")
	if err != nil {
		t.Fatal(err)
	}
	plan := func(r *http.Request) string { return r.Header.Get("X-Plan") }
	g := newGuard(t, nethttp.Config{Rules: []nethttp.Rule{{LimitSlots: jobs, Key: keyfuncs.Header("X-User"), PlanName: plan}}})
	takes := func(user, plan string, want int) {
		t.Helper()
		for i := range want + 1 {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-User", user)
			r.Header.Set("X-Plan", plan)
			v := g.Check(r)
			if i < want && v.Status() != 0 || i == want && v.Status() != 429 {
				t.Errorf("%s, plan %q, request %d: %d %v", user, plan, i, v.Status(), v.Err)
			}
		}
	}
	takes("carl", "", 1)
	takes("carl", "gold", 1) // the second
	takes("dora", "silver", 1)
	takes("anna", "free", 3)
	takes("ben", "gold", 0)
	text.Store(strings.Replace(document, `"free": 1`, `"free": 4`, 1))
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	takes("carl", "free", 2)

	key := keyfuncs.Everyone()
	slots := newSlots(t, store, "x", 1)
	third, err := limits.Open(t.Context(), store, store, limits.Bytes([]byte(`{"slots": {"third": {"plans": {"a": 1}}}}`)), limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	strange := core.Must(third.Slots("third"))
	for want, all := range map[string][]nethttp.Rule{
		"Rules[0].LimitSlots: Slots is set too":                                 {{LimitSlots: jobs, Slots: slots, Key: key}},
		"Rules[0].PlanSlots: the plans are those":                               {{LimitSlots: jobs, PlanSlots: func(*http.Request, string) *core.Slots { return nil }, Key: key}},
		"Rules[0].PlanName: it is for Limit and LimitSlots":                     {{Slots: slots, PlanName: plan, Key: key}},
		"Rules[1].LimitSlots: with Rules[0]: the limits are of different books": {{LimitSlots: jobs, Key: key}, {LimitSlots: strange, Key: key}},
		"Rules[1].LimitSlots: with Rules[0]: both":                              {{LimitSlots: jobs, Key: key}, {LimitSlots: jobs, Key: key}},
	} {
		if _, err := nethttp.New(nethttp.Config{Rules: all}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
}
