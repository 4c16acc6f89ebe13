package lease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/storetest"
)

func leased(t *testing.T, next core.Store, c lease.Config) *lease.Store {
	t.Helper()
	s, err := lease.New(next, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Of what the suite wants of a store, leases leave out what it wants of the numbers: they
// are those of the store's last answer.
var withoutLeases = map[string]string{
	"DecidesAsTheStepsDo": "compares every number with what the store would say",
}

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T, o *core.Observer) core.Store {
			return leased(t, memstore.New(memstore.Config{Observer: o}), lease.Config{})
		},
		Now:     func() int64 { return time.Now().UnixMicro() },
		Advance: time.Sleep,
		Around: func(t *testing.T, body func(*testing.T)) {
			for name, why := range withoutLeases {
				if strings.HasSuffix(t.Name(), "/"+name) {
					t.Skip(why)
				}
			}
			bubble.Test(t, body)
		},
	})
}

// Without leases, here since it is closed, a Store adds nothing to the one below.
func TestPassesOn(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T, o *core.Observer) core.Store {
			s := leased(t, memstore.New(memstore.Config{Observer: o}), lease.Config{})
			if err := s.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			return s
		},
		Now:     func() int64 { return time.Now().UnixMicro() },
		Advance: time.Sleep,
		Around:  bubble.Test,
	})
}
