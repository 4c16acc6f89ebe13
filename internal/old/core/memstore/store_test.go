package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/storetest"
)

func TestStore(t *testing.T) {
	for name, newStore := range map[string]func(memstore.Config) *memstore.Store{
		"New": memstore.New, "HotAtOnce": memstore.HotAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				New:     func(_ *testing.T, o *core.Observer) core.Store { return newStore(memstore.Config{Observer: o}) },
				Now:     func() int64 { return time.Now().UnixMicro() },
				Advance: time.Sleep,
				Around:  synctest.Test,
			})
		})
	}
}

// A struct that embeds a store is one.
func TestEmbedded(t *testing.T) {
	type layer struct{ core.Store }
	storetest.Run(t, storetest.Harness{
		New: func(_ *testing.T, o *core.Observer) core.Store {
			return &layer{memstore.New(memstore.Config{Observer: o})}
		},
		Now:        func() int64 { return time.Now().UnixMicro() },
		Advance:    time.Sleep,
		Around:     synctest.Test,
		Operations: 200,
	})
}
