package websocketmw

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

// closed returns how many sockets the guard has begun to close.
func (c *crowd) closed() (n int) {
	for _, v := range c.open {
		if isClosing(v) {
			n++
		}
	}
	return n
}

// Sockets that were opened together are not closed together: MaxAge is up to a tenth less.
func TestMaxAgeIsSpread(t *testing.T) {
	const sockets, parts = 1000, 10
	inCrowd(t, Config{MaxAge: 10 * time.Hour}, func(c *crowd) {
		start := time.Now()
		c.opens(sockets, core.SourceStore)
		time.Sleep(time.Until(start.Add(9 * time.Hour)))
		if n := c.closed(); n > 1 {
			t.Errorf("%d are closed too early", n)
		}
		before := 0
		for range parts {
			time.Sleep(time.Hour / parts)
			n := c.closed()
			if d := n - before; d < sockets/parts/2 || d > sockets/parts*2 {
				t.Errorf("%d of %d are closed within a tenth of the time", d, sockets)
			}
			before = n
		}
		time.Sleep(time.Second)
		if n := c.closed(); n != sockets {
			t.Errorf("%d are closed", n)
		}
	})
}

// Shutdown closes sockets over the time of Drain, the oldest first, and refuses new ones
// meanwhile.
func TestDrain(t *testing.T) {
	const sockets, drain = 100, time.Minute
	inCrowd(t, Config{Drain: drain}, func(c *crowd) {
		c.opens(sockets, core.SourceStore)
		done := make(chan error)
		start := time.Now()
		go func() { done <- c.guard.Shutdown(c.t.Context()) }()
		for i := range 10 {
			time.Sleep(time.Until(start.Add(drain/10*time.Duration(i) + drain/20)))
			if n, want := c.closed(), i*sockets/10+sockets/20; n < want || n > want+1 {
				t.Errorf("%d are closed after %v, want %d", n, time.Since(start), want)
			}
		}
		if !isClosing(c.open[0]) || isClosing(c.open[sockets-1]) {
			t.Error("the oldest is not the first")
		}
		v := c.guard.Check(upgradeRequest())
		h := make(http.Header)
		if v.SetFields(h); v.Status() != http.StatusServiceUnavailable || h.Get("Retry-After") == "" {
			t.Errorf("%d %v", v.Status(), h)
		}
		for _, v := range c.open {
			socketOf(v).life.End()
		}
		if err := <-done; err != nil || time.Since(start) > drain {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// What is over ends the draining: the context, or the last socket.
func TestDrainEnds(t *testing.T) {
	inCrowd(t, Config{Drain: time.Hour}, func(c *crowd) {
		c.opens(10, core.SourceStore)
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := c.guard.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if n := c.closed(); n != 10 {
			t.Errorf("%d are closed", n)
		}
	})
	inCrowd(t, Config{Drain: time.Hour}, func(c *crowd) {
		c.opens(10, core.SourceStore)
		done := make(chan error)
		go func() { done <- c.guard.Shutdown(c.t.Context()) }()
		synctest.Wait()
		start := time.Now()
		for _, v := range c.open {
			socketOf(v).life.End()
		}
		if err := <-done; err != nil || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
