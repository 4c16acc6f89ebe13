package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New:     func(*testing.T) core.Store { return memstore.New(memstore.Config{}) },
		Now:     func() int64 { return time.Now().UnixMicro() },
		Advance: time.Sleep,
		Around:  synctest.Test,
	})
}

func TestSlotStore(t *testing.T) {
	storetest.RunSlots(t, storetest.SlotHarness{
		New: func(*testing.T) func() core.SlotStore {
			s := memstore.New(memstore.Config{})
			return func() core.SlotStore { return s }
		},
	})
}
