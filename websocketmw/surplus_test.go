package websocketmw

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A crowd is a guard with many sockets, in a bubble.
type crowd struct {
	t     *testing.T
	store *counter
	guard *Guard
	open  []nethttp.Verdict
	conns []net.Conn // which would be forgotten

	mu   sync.Mutex
	shed []time.Time // or aged
}

func inCrowd(t *testing.T, config Config, f func(c *crowd)) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		c := &crowd{t: t, store: &counter{Noticer: memstore.New(memstore.Config{}), doubt: make(chan struct{})}}
		var err error
		config.Rules = []nethttp.Rule{{Slots: newSlots(t, c.store, "ws", 10_000), Key: keyfuncs.Everyone()}}
		config.Notify = func(_ *Socket, e Event) {
			if e.Kind == EventShed || e.Kind == EventAged {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.shed = append(c.shed, time.Now())
			}
		}
		c.guard, err = New(config)
		if err != nil {
			t.Fatal(err)
		}
		f(c)
		for _, v := range c.open {
			socketOf(v).life.End()
		}
		synctest.Wait() // others may have begun to end some
		if _, granted, released := c.store.counts(); granted != released {
			t.Errorf("%d slots granted, %d released", granted, released)
		}
		if c.guard.Len() > 0 {
			t.Error("something is left")
		}
	})
}

// opens makes sockets, each a moment after the other.
func (c *crowd) opens(n int, source core.Source) {
	c.store.source = source
	for range n {
		v := c.guard.Check(upgradeRequest())
		if v.Status() != 0 {
			c.t.Fatal(v.Status())
		}
		v.Serve(newOnIdle(nil), upgradeRequest(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _ := take(w)
			c.conns = append(c.conns, conn)
		}))
		time.Sleep(time.Millisecond)
		c.open = append(c.open, v)
	}
}

// isClosing reports whether the guard closes the socket of a verdict.
func isClosing(v nethttp.Verdict) bool {
	_, _, closing := socketOf(v).life.Closing()
	return closing
}

// gone returns how many sockets were shed, and how often the store was asked.
func (c *crowd) gone(after time.Duration) (gone, asked int) {
	time.Sleep(after)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return len(c.shed), c.store.sheds
}

const (
	surplusSpread = 10 * time.Second // in which all suspects are looked at
	surplusRetry  = 5 * time.Second  // until those are looked at again for which the store had no answer

	aLook = time.Second + surplusSpread + time.Second
	aWait = 2*surplusRetry + aLook
)

// After a doubt, as many sockets are closed as are too many, the newest first, and not all at
// once.
func TestShedsAfterADoubt(t *testing.T) {
	inCrowd(t, Config{OnExcess: Shed}, func(c *crowd) {
		const sockets, surplus = 1000, 400
		c.opens(sockets, core.SourceStore)
		if gone, asked := c.gone(time.Hour); gone+asked > 0 {
			t.Errorf("%d are closed, %d asked for, though all is well", gone, asked)
		}
		c.store.doubts(surplus)
		if gone, asked := c.gone(aLook); gone != surplus || asked != sockets {
			t.Errorf("%d are closed, %d asked for", gone, asked)
		}
		for i, v := range c.open {
			code, reason, closing := socketOf(v).life.Closing()
			if closing != (i >= sockets-surplus) {
				t.Fatalf("socket %d is closed: %v", i, closing)
			} else if closing && (code != 1013 || !strings.Contains(reason, "try again later")) {
				t.Fatalf("%d %s", code, reason)
			}
		}
		if d := c.shed[surplus-1].Sub(c.shed[0]); d < surplusSpread*surplus/sockets*9/10 {
			t.Errorf("all were closed within %v", d)
		}
		c.store.doubts(0)
		if gone, asked := c.gone(aLook); gone != surplus || asked != 2*sockets-surplus {
			t.Errorf("after another doubt: %d are closed, %d asked for", gone, asked)
		}
	})
}

func TestKeepClosesNothing(t *testing.T) {
	inCrowd(t, Config{}, func(c *crowd) {
		c.opens(10, core.SourceStore)
		c.opens(10, core.SourceLocal)
		c.store.doubts(5)
		if gone, asked := c.gone(time.Hour); gone+asked > 0 {
			t.Errorf("%d are closed, %d asked for", gone, asked)
		}
	})
}

// Sockets that were admitted without the store are looked at when it is back, and only
// these.
func TestShedsWhatWasAdmittedWithoutTheStore(t *testing.T) {
	for _, source := range []core.Source{core.SourceLocal, core.SourceOpen} {
		inCrowd(t, Config{OnExcess: Shed}, func(c *crowd) {
			c.opens(30, core.SourceStore)
			c.store.unknown = 1 << 20
			c.opens(20, source)
			gone, asked := c.gone(time.Hour)
			if gone > 0 {
				t.Errorf("%d are closed without an answer", gone)
			}
			if most := int(time.Hour/(surplusRetry/2)) * 2; asked > most {
				t.Errorf("the store was asked %d times in an hour of silence", asked)
			}
			c.store.mu.Lock()
			c.store.unknown, c.store.surplus, c.store.sheds = 0, 7, 0
			c.store.mu.Unlock()
			if gone, asked := c.gone(aWait); gone != 7 || asked != 20 {
				t.Errorf("%d are closed, %d asked for", gone, asked)
			}
			for i, v := range c.open[:30] {
				if isClosing(v) {
					t.Errorf("socket %d is closed", i)
				}
			}
		})
	}
}

// A key about which the store never has an answer does not keep others from being looked at.
func TestShedsPastAnUnknown(t *testing.T) {
	inCrowd(t, Config{OnExcess: Shed}, func(c *crowd) {
		c.opens(20, core.SourceStore)
		c.store.unknown = 3
		c.store.doubts(20)
		if gone, _ := c.gone(4 * aWait); gone != 20 {
			t.Errorf("%d are closed", gone)
		}
	})
}

// Shutdown ends the looking.
func TestShutdownEndsTheLooking(t *testing.T) {
	inCrowd(t, Config{OnExcess: Shed}, func(c *crowd) {
		c.store.unknown = 1 << 20
		c.opens(5, core.SourceLocal)
		c.gone(aWait)
		_, before := c.gone(0)
		if err := c.guard.Shutdown(c.t.Context()); err != nil {
			t.Error(err)
		}
		if _, asked := c.gone(aWait); asked > before+1 {
			t.Errorf("asked %d times, %d before", asked, before)
		}
		if s := c.guard.Check(upgradeRequest()).Status(); s != http.StatusServiceUnavailable {
			t.Error(s)
		}
	})
}
