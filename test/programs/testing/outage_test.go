package shop

import (
	"context"
	"fmt"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
)

// A down is a store that fails as one over Redis does that is configured to FailClosed. A
// struct that embeds a store is one, so a test overrides what it needs.
type down struct{ core.Store }

func (down) Ask(context.Context, *store.Question) error {
	return fmt.Errorf("%w: on purpose", core.ErrUnavailable)
}

// A lone is a store that fails as one over Redis does that is configured to FailLocal: the
// process decides by itself, and the decision says so.
type lone struct{ core.Store }

func (l lone) Ask(ctx context.Context, q *store.Question) error {
	err := l.Store.Ask(ctx, q)
	q.Result.Source = core.SourceLocal
	return err
}

// TestOutage: without the store, requests are answered as the service promises.
func TestOutage(t *testing.T) {
	working := memstore.New(memstore.Config{})
	if w := client(t, down{working})("ann"); w.Code != 503 || w.Header().Get("Retry-After") != "5" {
		t.Errorf("FailClosed: %d %v", w.Code, w.Header())
	}
	if w := client(t, lone{working})("ann"); w.Code != 200 {
		t.Errorf("FailLocal: %d", w.Code)
	}
}
