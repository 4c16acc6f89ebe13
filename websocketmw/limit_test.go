package websocketmw

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

// A rule takes the slots of the document, by the request's plan and its key, and from the next
// upgrade on those of the next document.
func TestLimitOfADocument(t *testing.T) {
	const document = `{"slots": {"ws": {"plans": {"free": 1, "gold": 2}, "overrides": [{"key": "anna", "slots": 3}, {"key": "ben", "plan": "blocked"}]},
		"other": {"plans": {"a": 100}}}}`
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
	ws, err := b.Slots("ws")
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.Slots("other")
	if err != nil {
		t.Fatal(err)
	}
	plan := func(r *http.Request) string { return r.Header.Get("X-Plan") }
	g, err := New(Config{Rules: []nethttp.Rule{{LimitSlots: ws, Key: keyfuncs.Header("X-User"), PlanName: plan}, {LimitSlots: other, Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	opens := func(user, plan string, want int) {
		t.Helper()
		for i := range want + 1 {
			v := g.Check(upgradeRequest("X-User", user, "X-Plan", plan))
			if i < want && v.Status() != 0 || i == want && v.Status() != 429 {
				t.Errorf("%s, plan %q, socket %d: %d %v", user, plan, i, v.Status(), v.Err)
			}
		}
	}
	opens("carl", "", 1)
	opens("carl", "gold", 1) // the second
	opens("dora", "silver", 1)
	opens("anna", "free", 3)
	opens("ben", "gold", 0)
	text.Store(strings.Replace(document, `"free": 1`, `"free": 4`, 1))
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	opens("carl", "free", 2)
	if err := g.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := ws.For("", "").Count(t.Context(), "carl"); n != 0 || err != nil {
		t.Errorf("%d are held, %v", n, err)
	}
}
