package store_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest"
)

// An inner is a layer that embeds a store of its own type, with all its methods.
type inner struct{ *memstore.Store }

// TestLayersAreStores: whoever embeds a store, and overrides its one method or none, has a store.
func TestLayersAreStores(t *testing.T) {
	for name, layer := range map[string]func(below store.Store, m *memstore.Store) store.Store{
		"interface": func(below store.Store, _ *memstore.Store) store.Store { return struct{ store.Store }{below} },
		"struct":    func(_ store.Store, m *memstore.Store) store.Store { return &inner{m} },
		"two": func(below store.Store, _ *memstore.Store) store.Store {
			return struct{ store.Store }{struct{ store.Store }{below}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				New: func(_ *testing.T, o *core.Observer) core.Store {
					m := memstore.New(memstore.Config{Observer: o})
					return layer(m, m)
				},
				Now:        func() int64 { return time.Now().UnixMicro() },
				Advance:    time.Sleep,
				Around:     synctest.Test,
				Operations: 200,
			})
		})
	}
}
