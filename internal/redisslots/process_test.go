package redisslots

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
)

// A listener counts the lines of a process.
type listener struct {
	*proctest.Process

	lines map[string]int
}

func start(t *testing.T, what string, args ...string) *listener {
	t.Helper()
	return &listener{proctest.Start(t, what, args...), make(map[string]int)}
}

func (p *listener) said(line string) int {
	for _, line := range p.Printed() {
		p.lines[line]++
	}
	return p.lines[line]
}

func (p *listener) faults() (all []string) {
	p.said("")
	for line := range p.lines {
		if strings.HasPrefix(line, "fault") {
			all = append(all, line)
		}
	}
	return all
}

// The slots of a process that is killed are free after two thirds of a TTL at the earliest, and soon after a TTL of
// another's beats.
func TestKilled(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := redistest.Start(t)
	s := open(t, brief(ttl), server.Addr())
	acquires(t, s, "another", 1)
	for range *rounds {
		p := start(t, "hold", server.Addr(), ttl.String())
		until(t, "holds", patient, func() bool { return p.said("holds") > 0 })
		if _, err := s.Acquire(t.Context(), claim("key", 3)); !errors.Is(err, slots.ErrFull) {
			t.Fatal(err)
		}
		<-time.After(rand.N(ttl))
		p.Kill()
		var g slots.Grant
		took := until(t, "free", patient, func() bool {
			var err error
			g, err = s.Acquire(t.Context(), claim("key", 3))
			return err == nil
		})
		if took < ttl*2/3-50*time.Millisecond || took > 2*ttl {
			t.Errorf("free after %v of a TTL of %v", took, ttl)
		}
		t.Logf("free %v after a kill", took)
		g.Release()
	}
}

// A pause shorter than two thirds of a TTL loses nothing. After a longer one, others have the slots and the process is told.
func TestStopped(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := redistest.Start(t)
	p := start(t, "hold", server.Addr(), ttl.String())
	until(t, "holds", patient, func() bool { return p.said("holds") > 0 })
	s := open(t, brief(ttl), server.Addr())
	acquires(t, s, "another", 1)
	p.Pause()
	<-time.After(ttl / 2)
	p.Resume()
	<-time.After(2 * ttl)
	if _, err := s.Acquire(t.Context(), claim("key", 3)); !errors.Is(err, slots.ErrFull) || p.said("lost") > 0 {
		t.Fatal("a short pause has lost slots", err)
	}
	p.Pause()
	t.Logf("free %v after a stop", until(t, "free", patient, func() bool { _, err := s.Acquire(t.Context(), claim("key", 3)); return err == nil }))
	p.Resume()
	t.Logf("told %v after the end of the stop", until(t, "told", patient, func() bool { return p.said("lost") > 0 }))
	until(t, "counted", ttl, func() bool { return isCounted(t, s, "key", 1+3) })
}

// forget strikes out what a process that was killed has held: nobody is granted that for some seconds.
func forget(t *testing.T, server *redistest.Server, name string) {
	t.Helper()
	for i := range churnKeys {
		set := fmt.Sprint("held:churn", i)
		members, err := server.Do("SMEMBERS", set)
		if err != nil {
			t.Fatal(err)
		}
		for _, member := range members.([]any) {
			if strings.HasPrefix(member.(string), name) {
				_, _ = server.Do("SREM", set, member.(string))
			}
		}
	}
}

// Processes that acquire and release, of which some are stopped and some killed, never hold more than the limit together,
// with default settings, also on a busy machine.
func TestChurn(t *testing.T) {
	t.Parallel()
	for range *burners {
		proctest.Start(t, "burn")
	}
	server := redistest.Start(t)
	var all []*listener
	granted := 0
	names := make(map[*listener]string)
	begin := func() *listener {
		name := fmt.Sprint(len(names), ":")
		p := start(t, "churn", server.Addr(), name)
		names[p] = name
		return p
	}
	for range 4 {
		all = append(all, begin())
	}
	for range 6 * *rounds {
		<-time.After(500 * time.Millisecond)
		i := rand.IntN(len(all))
		all[i].Pause()
		<-time.After(rand.N(time.Second)) // less than a TTL: it loses nothing
		all[i].Resume()
		if i = rand.IntN(len(all)); rand.IntN(2) == 0 {
			all[i].Kill()
			granted += all[i].said("granted")
			if faults := all[i].faults(); len(faults) > 0 {
				t.Errorf("%q", faults)
			}
			forget(t, server, names[all[i]])
			all[i] = begin()
		}
	}
	for _, p := range all {
		granted += p.said("granted")
		if faults := p.faults(); len(faults) > 0 {
			t.Errorf("%q", faults)
		}
	}
	t.Log(granted, "grants")
	if granted < 100 {
		t.Error("too few grants")
	}
}

// A process that was stopped for longer than its calls may take does not take its own pause for a silent Redis: it grants
// nothing by itself.
func TestPauseIsNoSilence(t *testing.T) {
	t.Parallel()
	pauses := []time.Duration{3 * time.Second}
	if *rounds > 1 {
		pauses = []time.Duration{2500 * time.Millisecond, 3 * time.Second, 5 * time.Second}
	}
	for _, pause := range pauses {
		server := redistest.Start(t)
		holder := open(t, defaults(), server.Addr())
		p := start(t, "retry", server.Addr())
		until(t, "granted", patient, func() bool { return p.said("store") > 1000 })
		p.Pause()
		stopped := time.Now()
		for i := range retryKeys {
			for range retryLimit {
				_, _ = holder.Acquire(t.Context(), claim(fmt.Sprint("k", i), retryLimit))
			}
		}
		<-time.After(time.Until(stopped.Add(pause)))
		before := p.said("local")
		p.Resume()
		<-time.After(1500 * time.Millisecond)
		if n := p.said("local") - before; n > 0 {
			t.Errorf("%d slots were granted by the process alone", n)
		}
	}
}

// A Redis that is really silent is noticed: the process grants its share after the time of a call, and at once from then
// on. It comes back to Redis soon after that answers, and both are told.
func TestSilence(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := brief(3 * time.Second)
	changes := make(chan error, 100)
	c.Timeout, c.Servers, c.Failure, c.Changed = 500*time.Millisecond, 2, outage.FailLocal, func(reason error) { changes <- reason }
	s := open(t, c, server.Addr())
	if g := acquires(t, s, "key", 4); g.Source != step.SourceStore || g.Held != 1 || g.Limit != 4 {
		t.Fatal(g)
	}
	server.Pause()
	begin := time.Now()
	g := acquires(t, s, "key", 4)
	if took := time.Since(begin); g.Source != step.SourceLocal || g.Limit != 2 || g.Held != 2 || took > patient {
		t.Fatal(g, took)
	}
	var full *slots.FullError
	if _, err := s.Acquire(t.Context(), claim("key", 4)); !errors.As(err, &full) || full.Source != step.SourceLocal || full.Limit != 2 {
		t.Error("more than its share", err)
	}
	until(t, "away", patient, func() bool { return s.Away() != nil })
	until(t, "grants at once", patient, func() bool {
		begin := time.Now()
		acquires(t, s, "another", 400).Release()
		return time.Since(begin) < 50*time.Millisecond
	})
	server.Resume()
	until(t, "back", patient, func() bool {
		g, err := s.Acquire(t.Context(), claim("another", 4))
		if err == nil {
			g.Release()
		}
		return err == nil && g.Source == step.SourceStore
	})
	until(t, "not away", patient, func() bool { return s.Away() == nil })
	if reason := <-changes; reason == nil {
		t.Error("told that Redis is back before it was away")
	}
	if reason := <-changes; reason != nil {
		t.Errorf("told that Redis is away twice: %v", reason)
	}
	until(t, "both are counted", patient, func() bool { return isCounted(t, open(t, c, server.Addr()), "key", 2) })
}

// Four TTLs without Redis, for all: nobody loses a slot, and afterwards all are counted.
func TestOutage(t *testing.T) {
	t.Parallel()
	const ttl = 600 * time.Millisecond
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	var all []*Registry
	var held []slots.Grant
	for i := range 3 {
		s := open(t, brief(ttl), proxy.Addr())
		all, held = append(all, s), append(held, acquires(t, s, "key", 3), acquires(t, s, fmt.Sprint(i), 1))
	}
	proxy.Blackhole()
	<-time.After(4 * ttl)
	proxy.Heal()
	<-time.After(3 * ttl)
	for _, g := range held {
		select {
		case <-g.Lost():
			t.Error("a slot was lost")
		default:
		}
	}
	if !isCounted(t, all[0], "key", 3) || !isCounted(t, all[0], "2", 1) {
		t.Error("slots are not counted")
	}
	if _, err := all[0].Acquire(t.Context(), claim("key", 3)); !errors.Is(err, slots.ErrFull) {
		t.Error(err)
	}
}

// A Redis that was emptied, or restarted empty, has everything again within three beats. Then Close leaves nothing.
func TestEmptied(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := redistest.Start(t)
	for _, empty := range []func(){server.Flush, func() { server.Kill(); <-time.After(ttl / 2); server.Restart() }} {
		s := open(t, brief(ttl), server.Addr())
		for i := range 500 {
			acquires(t, s, fmt.Sprint(i), 1)
		}
		empty()
		other := open(t, brief(ttl), server.Addr())
		took := until(t, "counted", 3*ttl/3+ttl/15, func() bool { return isCounted(t, other, "499", 1) && isCounted(t, other, "0", 1) })
		t.Logf("counted again %v after Redis was emptied", took)
		begin := time.Now()
		if err := s.Close(t.Context(), ""); err != nil {
			t.Error(err)
		}
		t.Logf("500 slots closed in %v", time.Since(begin))
		until(t, "all is free", ttl, func() bool {
			n := int64(0)
			for i := range 500 {
				held, _ := other.Count(t.Context(), "ws", fmt.Sprint(i))
				n += held
			}
			return n == 0
		})
		server.Flush()
	}
}
