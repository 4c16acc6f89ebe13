package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A gate is what several processes share over Redis: a rate, and a slot for which requests wait.
type gate struct {
	rate  *core.Limiter
	slots *core.Slots
	guard *nethttp.Guard
}

const gateRate = 100

func newGate(addr string) (*gate, error) {
	store, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, redisstore.Config{
		Timeout: 20 * time.Second, SlotTTL: 3 * time.Second, SlotTimeout: time.Second, RefusalTTL: -1,
	})
	if err != nil {
		return nil, err
	}
	g := &gate{
		rate:  core.Must(core.New(store, "rate", core.SlidingLog(core.PerHour(gateRate)))),
		slots: core.Must(core.NewSlots(store, "running", 1)),
	}
	g.guard, err = nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{
			{Limiter: g.rate, Key: keyfuncs.Everyone()},
			{Slots: g.slots, Key: keyfuncs.Everyone(), Queue: 100},
		},
		Wait: time.Hour,
	})
	return g, err
}

// waiting is a process in which requests wait for the slot of another. It says when all are charged.
func waiting(args []string) error {
	g, err := newGate(args[0])
	if err != nil {
		return err
	}
	for range 10 {
		go func() { _ = g.guard.Check(request("GET", "/")) }()
	}
	<-time.After(time.Hour)
	return nil
}

// A process that is killed between the charge and its refund over-counts, by what it had charged,
// and holds and admits nothing.
func TestKilledBetweenChargeAndSlot(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g, err := newGate(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	used := func() int64 {
		d, err := g.rate.Peek(t.Context(), keyOf(t, keyfuncs.Everyone()))
		if err != nil {
			t.Fatal(err)
		}
		return gateRate - d.Remaining
	}
	first := g.guard.Check(request("GET", "/"))
	if first.Status() != 0 || used() != 1 {
		t.Fatalf("status %d, %d used", first.Status(), used())
	}
	p := proctest.Start(t, "waiting", server.Addr())
	for deadline := time.Now().Add(time.Minute); used() < 11; {
		if time.Now().After(deadline) {
			t.Fatalf("%d are used", used())
		}
		<-time.After(10 * time.Millisecond)
	}
	p.Kill()
	<-p.Exited()
	first.End(nethttp.Outcome{Status: 200})
	for i := range 3 { // the slot is free, and those who died for it stay charged
		v := g.guard.Check(request("GET", "/"))
		if v.Status() != 0 {
			t.Errorf("status %d: %v", v.Status(), v.Err)
		}
		if n := used(); n != int64(12+i) {
			t.Errorf("%d are used, want %d", n, 12+i)
		}
		if n, err := g.slots.Count(t.Context(), keyOf(t, keyfuncs.Everyone())); err != nil || n != 1 {
			t.Errorf("%d slots are held: %v", n, err)
		}
		v.End(nethttp.Outcome{Status: 200})
	}
}

func keyOf(t *testing.T, f keyfuncs.Func) string {
	t.Helper()
	key, err := f(request("GET", "/"))
	if err != nil {
		t.Fatal(fmt.Errorf("no key: %w", err))
	}
	return key
}
