package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

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
	store, err := redisstore.Open("redis://"+addr, redisstore.Config{
		Timeout: 20 * time.Second, SlotTTL: 3 * time.Second, SlotTimeout: time.Second, RefusalTTL: -1,
	})
	if err != nil {
		return nil, err
	}
	g := &gate{
		rate:  core.NewLimiter(store, "rate", core.SlidingLog(gateRate, time.Hour)),
		slots: core.NewSlots(store, "running", 1),
	}
	g.guard, err = nethttp.New(nethttp.Config{
		Rates:       []nethttp.Rate{{Limiter: g.rate, Key: keyfuncs.Everyone()}},
		Concurrency: []nethttp.Concurrency{{Slots: g.slots, Key: keyfuncs.Everyone(), Queue: 100, MaxWait: time.Hour}},
	})
	return g, err
}

// enter asks the guard, and returns the status when it has answered, or 0 when the request is handled. It is handled
// until leave is called.
func (g *gate) enter() (status int, leave func()) {
	handled, answered, left := make(chan struct{}), make(chan int, 1), make(chan struct{})
	go func() {
		w := httptest.NewRecorder()
		g.guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(handled)
			<-left
		})).ServeHTTP(w, request("GET", "/"))
		answered <- w.Code
	}()
	select {
	case <-handled:
		return 0, func() { close(left); <-answered }
	case status = <-answered:
		return status, func() {}
	}
}

// waiting is a process in which requests wait for the slot of another. It says when all are charged.
func waiting(args []string) error {
	g, err := newGate(args[0])
	if err != nil {
		return err
	}
	for range 10 {
		go g.enter()
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
	status, leave := g.enter()
	if status != 0 || used() != 1 {
		t.Fatalf("status %d, %d used", status, used())
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
	leave()
	for i := range 3 { // the slot is free, and those who died for it stay charged
		status, leave := g.enter()
		if status != 0 {
			t.Errorf("status %d", status)
		}
		if n := used(); n != int64(12+i) {
			t.Errorf("%d are used, want %d", n, 12+i)
		}
		if n, err := g.slots.Count(t.Context(), keyOf(t, keyfuncs.Everyone())); err != nil || n != 1 {
			t.Errorf("%d slots are held: %v", n, err)
		}
		leave()
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
