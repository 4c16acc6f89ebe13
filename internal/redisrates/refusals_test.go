package redisrates

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

// refusing is a store over a fake that refuses, and remembers that for a second.
func refusing(t *testing.T, run func(t *testing.T, f *fake, s *Decider, p *step.Policy)) {
	inBubble(t, Config{RefusalTTL: time.Second, Failure: outage.FailClosed}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.refuse = true
		run(t, f, s, p)
	})
}

// sources asks, and checks what decides.
func (d *Decider) want(t *testing.T, mode step.Mode, want step.Source, c step.Cell) step.Cell {
	t.Helper()
	cells := []step.Cell{c}
	if allowed, err := d.Ask(t.Context(), mode, cells); err != nil || allowed || cells[0].Source != want {
		t.Fatalf("%v, %v by the %v, not by the %v", allowed, err, cells[0].Source, want)
	}
	return cells[0]
}

// A refusal is remembered until its end, as old as it is, and for the same question only.
func TestRefusalsAreRemembered(t *testing.T) {
	refusing(t, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.be(slow(3 * time.Millisecond))
		first := s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
		time.Sleep(400 * time.Millisecond)
		again := s.want(t, step.Allow, step.SourceCache, cell(p, "k", 1))
		for _, spans := range [][2]int64{{first.RetryAfter, again.RetryAfter}, {first.ResetAfter, again.ResetAfter}, {again.Instant, first.Instant}} {
			if spans[0]-spans[1] != 400_000 {
				t.Errorf("%d, after 400 ms %d", spans[0], spans[1])
			}
		}
		s.want(t, step.Peek, step.SourceCache, cell(p, "k", 1))
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 2))
		s.want(t, step.Allow, step.SourceStore, cell(p, "l", 1))
		other := s.limiter(t, "api", bucket(999, 24*time.Hour))
		s.want(t, step.Allow, step.SourceStore, cell(&other[0], "k", 1))
		denied := fixed(5, 24*time.Hour)
		denied.CountDenied = true
		counted := s.limiter(t, "counted", denied)
		f.refuse = true
		for range 2 {
			s.want(t, step.Allow, step.SourceStore, cell(&counted[0], "k", 1))
		}
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1)) // that has written to a key of the same bucket
		time.Sleep(996 * time.Millisecond)                       // the Timeout of the memory counts from when it was sent
		s.want(t, step.Allow, step.SourceCache, cell(p, "k", 1))
		time.Sleep(time.Millisecond)
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
	})
}

// Whatever may have freed units is seen at once: settlements, resets, admitted charges, calls that failed.
func TestChangesEndRefusals(t *testing.T) {
	refusing(t, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		ask := func(mode step.Mode, c step.Cell) { _, _ = s.Ask(t.Context(), mode, []step.Cell{c}) }
		back := cell(p, "k", 1)
		back.Units, back.Instant, back.Source = -1, 1, step.SourceStore
		for name, change := range map[string]func(){
			"settled":  func() { ask(step.Settle, back) },
			"reset":    func() { ask(step.Reset, cell(p, "k", 0)) },
			"admitted": func() { f.refuse = false; ask(step.Allow, cell(p, "k", 2)); f.refuse = true },
			"shown":    func() { f.refuse = false; ask(step.Peek, cell(p, "k", 2)); f.refuse = true },
			"failed":   func() { f.be(silent); ask(step.Allow, cell(p, "k", 2)); f.be(nil) },
		} {
			s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
			s.want(t, step.Allow, step.SourceCache, cell(p, "k", 1))
			change()
			t.Log(name)
			s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
			change()
			time.Sleep(time.Second)
		}
	})
}

// What was sent before a change is not remembered after it, and nothing counts while units may be given back.
func TestChangesInFlight(t *testing.T) {
	refusing(t, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
		f.be(slow(10 * time.Millisecond))
		go func() {
			back := cell(p, "k", 1)
			back.Units, back.Instant, back.Source = -1, 1, step.SourceStore
			_, _ = s.Ask(t.Context(), step.Settle, []step.Cell{back})
		}()
		time.Sleep(5 * time.Millisecond)
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1)) // the one before was sent before the end
		s.want(t, step.Allow, step.SourceCache, cell(p, "k", 1))
		synctest.Wait()
	})
}

// A flood of one question that is refused makes no call and no garbage.
func TestRememberedRefusalsAllocateNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed}, server.Addr())
	ps := s.limiter(t, "api", fixed(1, 400*24*time.Hour), bucket(1, 400*24*time.Hour))
	all := cells(ps, "k", 1)
	for range 2 {
		if _, err := s.Ask(t.Context(), step.Allow, all); err != nil {
			t.Fatal(err)
		}
	}
	calls := server.Calls("evalsha", "eval")
	ctx := t.Context()
	n := testing.AllocsPerRun(1000, func() {
		if allowed, err := s.Ask(ctx, step.Allow, all); allowed || err != nil {
			t.Fatal(allowed, err)
		}
	})
	if n > 0 || server.Calls("evalsha", "eval") > calls || all[0].Source != step.SourceCache {
		t.Errorf("%v allocations, %d calls", n, server.Calls("evalsha", "eval")-calls)
	}
}

// A refusal of many units is remembered until one more is left.
func TestRefusalOfManyUnits(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: time.Minute}, server.Addr())
	p := &s.limiter(t, "api", bucket(100, 10*time.Second))[0]
	s.charge(t, p, "k", 100)
	first := s.charge(t, p, "k", 100)
	<-time.After(time.Duration(first.NextAfter) * time.Microsecond)
	if second := s.charge(t, p, "k", 100); first.Shortfall == 0 || second.Shortfall == 0 || second.Remaining <= first.Remaining {
		t.Errorf("%+v, and then %+v", first, second)
	}
}

// RetryAfter suffices, and is not too long, also if it comes from memory.
func TestRetryAfterIsExact(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed}, server.Addr())
	for i, m := range []step.Numbers{bucket(20, time.Second), fixed(1, 100*time.Millisecond), sliding(3, 100*time.Millisecond), logOf(2, 80*time.Millisecond), interval(50 * time.Millisecond)} {
		ps := s.limiter(t, fmt.Sprint("l", i), m)
		for range 15 {
			c := s.charge(t, &ps[0], "k", 1)
			if c.Shortfall == 0 {
				continue
			}
			if c.RetryAfter > m.Period*11/10 {
				t.Errorf("%+v: %d", m, c.RetryAfter)
			}
			<-time.After(time.Duration(c.RetryAfter)*time.Microsecond - time.Millisecond)
			if early := s.charge(t, &ps[0], "k", 1); early.Shortfall > 0 {
				<-time.After(time.Duration(early.RetryAfter) * time.Microsecond)
				if late := s.charge(t, &ps[0], "k", 1); late.Shortfall > 0 {
					t.Errorf("%+v: refused after RetryAfter: %+v, %+v", m, early, late)
				}
			}
		}
	}
}

// A question for no units is refused while a bucket is above its limit. It is admitted before one unit more is left, and
// must not be refused for longer.
func TestRefusalsOfChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, err := step.New("api", "api", bucket(4, time.Second))
		if err != nil {
			t.Fatal(err)
		}
		remembered := &refusals{start: time.Now(), ttl: time.Second}
		check := cell(&policy, "k", 0)
		found, _ := remembered.lookUp([]step.Cell{check})
		check.Shortfall = 1
		check.NextAfter, check.RetryAfter, check.ResetAfter = 750_000, 500_000, 1_500_000
		remembered.keep(found, []step.Cell{check})
		for _, refused := range []bool{true, false} {
			if _, got := remembered.lookUp([]step.Cell{cell(&policy, "k", 0)}); got != refused {
				t.Errorf("after %v it is refused: %v, not %v", time.Since(remembered.start), got, refused)
			}
			time.Sleep(500 * time.Millisecond)
		}
	})
}

// A charge that was not answered may have been made, also if this process has refused it then.
func TestLocalRefusalsEndRefusals(t *testing.T) {
	config := Config{RefusalTTL: time.Second, Failure: outage.FailLocal}
	inBubble(t, config, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.refuse = true
		f.be(silent)
		if used := s.charge(t, p, "k", p.Max()); used.Shortfall > 0 || used.Source != step.SourceLocal {
			t.Fatalf("%+v", used)
		}
		f.be(nil)
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
		s.want(t, step.Allow, step.SourceCache, cell(p, "k", 1))
		f.be(silent)
		s.want(t, step.Allow, step.SourceLocal, cell(p, "k", 2))
		f.be(nil)
		s.want(t, step.Allow, step.SourceStore, cell(p, "k", 1))
	})
}
