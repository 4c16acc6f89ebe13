package websocketmw

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A staying store is one that two servers of a test share: what one closes the other keeps.
type staying struct{ store.Noticer }

func (staying) CloseSlots(context.Context, string) error { return nil }

// Ten thousand sockets of one server are drained, and each client comes to another server as
// soon as its socket has ended. Though the service is full all the time, none is refused there,
// and they do not come at once.
func TestDrainedSocketsMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sockets, drain, steps = 10_000, 100 * time.Second, 100
		shop := &staying{memstore.New(memstore.Config{})}
		var refused, moved atomic.Int64
		var arrivals [steps + 1]atomic.Int64
		guard := func(c Config) *Guard {
			c.Rules = []nethttp.Rule{{Slots: newSlots(t, shop, "service", sockets), Key: keyfuncs.Everyone(), Service: true}}
			g, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		to := guard(Config{})
		start := time.Now()
		from := guard(Config{Drain: drain, Notify: func(_ *Socket, e Event) {
			if e.Kind != EventClosed {
				return
			}
			arrivals[int(time.Since(start)*steps/drain)].Add(1)
			if to.Check(upgradeRequest()).Status() == 0 {
				moved.Add(1)
			} else {
				refused.Add(1)
			}
		}})
		for range sockets {
			v := from.Check(upgradeRequest())
			if v.Status() != 0 {
				t.Fatal(v.Status())
			}
			serve(v)
		}
		if v := to.Check(upgradeRequest()); v.Status() != 503 {
			t.Fatalf("%d though the service is full", v.Status())
		}
		if err := from.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if refused.Load() != 0 || moved.Load() != sockets || to.Len() != sockets {
			t.Errorf("%d moved, %d refused", moved.Load(), refused.Load())
		}
		for i := range arrivals {
			if n := arrivals[i].Load(); n > sockets/steps+1 {
				t.Errorf("%d came in step %d of %d", n, i, steps)
			}
		}
		for _, s := range to.all() {
			s.life.End()
		}
	})
}
