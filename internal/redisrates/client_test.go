package redisrates

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// A fake answers in the place of a server: that it admits all that is asked, about keys without state.
type fake struct {
	mu     sync.Mutex
	behave func(ctx context.Context) error // nil: it answers
	refuse bool                            // questions
	full   bool                            // so commands that write fail
	calls  [][]string                      // the names of each
}

func (f *fake) be(behave func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behave = behave
}

func (f *fake) sent() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// silent is a server that does not answer.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// slow is one that takes so long.
func slow(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

func failing(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func (f *fake) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fake) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := f.process(ctx, cmd); err != nil {
				cmd.SetErr(err)
			}
		}
		return nil
	}
}

func (f *fake) ProcessHook(redis.ProcessHook) redis.ProcessHook { return f.process }

func (f *fake) process(ctx context.Context, cmd redis.Cmder) error {
	if cmd.Name() == "del" {
		return nil
	}
	if tried, ok := cmd.(*redis.Cmd); ok { // the commands of the scripts
		return f.try(ctx, tried)
	}
	words := cmd.Args()
	var names []string
	for _, w := range words[3 : 3+words[2].(int)] {
		b, _ := w.(*argument).MarshalBinary()
		names = append(names, string(b))
	}
	f.mu.Lock()
	f.calls = append(f.calls, names)
	behave, answer := f.behave, "\x07"
	if f.refuse {
		answer = "\x00" + string(appendLevel(nil, time.Now().UnixMicro()+step.MaxSpan/8))
	}
	f.mu.Unlock()
	if behave != nil {
		if err := behave(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
	}
	now := time.Now().UnixMicro()
	cmd.(once).SetVal(string(appendWord(nil, now)) + strings.Repeat(answer, len(names)))
	return nil
}

// try answers whether the commands of the scripts work.
func (f *fake) try(ctx context.Context, cmd *redis.Cmd) error {
	f.mu.Lock()
	behave, full := f.behave, f.full
	f.mu.Unlock()
	if behave != nil {
		if err := behave(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
	}
	cmd.SetVal("")
	if full {
		cmd.SetVal("SET (OOM command not allowed)")
	}
	return nil
}

func appendLevel(b []byte, x int64) []byte { return fmt.Appendf(b, "%016d", x) }

// inBubble runs a test in a bubble with a store over a fake, and one policy.
func inBubble(t *testing.T, c Config, run func(t *testing.T, f *fake, s *Decider, p *step.Policy)) {
	synctest.Test(t, func(t *testing.T) {
		f := new(fake)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
		defer client.Close()
		client.AddHook(f)
		if c.RefusalTTL == 0 {
			c.RefusalTTL = -1
		}
		s, err := New(client, c)
		if err != nil {
			t.Fatal(err)
		}
		run(t, f, s, &s.limiter(t, "api", bucket(1000, 24*time.Hour))[0])
		time.Sleep(2 * time.Second) // calls outlive callers
	})
}

// ask asks for a unit, and returns what decided.
func (d *Decider) askFor(ctx context.Context, p *step.Policy, key string) (step.Source, error) {
	c := []step.Cell{cell(p, key, 1)}
	_, err := d.Ask(ctx, step.Allow, c)
	return c[0].Source, err
}

// Nobody waits longer than the Timeout, or than the own deadline: alone, in flight with others, or in the queue.
func TestNobodyWaitsBeyondTheDeadline(t *testing.T) {
	for _, own := range []time.Duration{0, 10 * time.Millisecond, 99 * time.Millisecond} {
		for _, callers := range []int{1, 2, 3, 300} {
			t.Run(fmt.Sprint(own, callers), func(t *testing.T) {
				inBubble(t, Config{}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
					f.be(silent)
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							time.Sleep(time.Duration(i%7) * time.Millisecond)
							start, ctx, want := time.Now(), t.Context(), 100*time.Millisecond
							if own > 0 {
								var cancel func()
								ctx, cancel = context.WithTimeout(ctx, own)
								defer cancel()
								want = own
							}
							source, err := s.askFor(ctx, p, fmt.Sprint(i))
							if took := time.Since(start); took > want+time.Millisecond {
								t.Errorf("it took %v", took)
							}
							if own == 0 && (err != nil || source != step.SourceLocal) || own > 0 && err != nil && !errors.Is(err, context.DeadlineExceeded) {
								t.Error(source, err)
							}
						})
					}
					all.Wait()
				})
			})
		}
	}
}

// stopFor makes a store believe that its process was stopped for so long.
func (d *Decider) stopFor(span time.Duration) {
	d.line.pauses.mu.Lock()
	defer d.line.pauses.mu.Unlock()
	d.line.pauses.lastLook = d.line.pauses.lastLook.Add(-span)
}

// A process that was stopped while it waited charges once more. It waits for that no longer than for a Timeout and the
// time of the stop, and not beyond the deadline of the caller. What gives units back or reports them is sent once, also
// if it shares a call with charges.
func TestStoppedWhileItWaited(t *testing.T) {
	const stop = 30 * time.Millisecond
	for _, own := range []time.Duration{0, 5 * time.Millisecond, 95 * time.Millisecond, 110 * time.Millisecond} {
		for _, callers := range []int{1, 2, 3, 60} {
			t.Run(fmt.Sprint(own, callers), func(t *testing.T) {
				inBubble(t, Config{Failure: outage.FailClosed}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
					f.be(silent)
					time.AfterFunc(60*time.Millisecond, func() { s.stopFor(stop) })
					longest := 100*time.Millisecond + stop + s.line.pauses.interval
					if own > 0 {
						longest = min(longest, own)
					}
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							ctx := t.Context()
							if own > 0 {
								deadline, cancel := context.WithTimeout(ctx, own)
								defer cancel()
								ctx = deadline
							}
							mode, n := step.Allow, int64(1)
							switch i % 3 {
							case 1:
								mode, n = step.Settle, -1
							case 2:
								mode = step.Settle
							}
							c := cell(p, fmt.Sprint(i), n)
							if c.Units = n; n < 0 {
								c.Instant, c.Source = time.Now().UnixMicro(), step.SourceStore
							}
							start := time.Now()
							_, err := s.Ask(ctx, mode, []step.Cell{c})
							took := time.Since(start)
							most := longest
							if mode == step.Settle { // whatever the caller's deadline
								most = 100*time.Millisecond + stop + s.line.pauses.interval
							}
							if err == nil || took > most {
								t.Errorf("mode %d of %d took %v: %v", mode, n, took, err)
							}
						})
					}
					all.Wait()
					time.Sleep(time.Second)
					sent := make(map[string]int)
					for _, names := range f.sent() {
						for _, name := range names {
							sent[name]++
						}
					}
					for name, times := range sent {
						i := 0
						fmt.Sscanf(name, "headgate:{=%d}", &i)
						most := 1
						if i%3 == 0 { // a charge
							most = 2
						}
						if times > most {
							t.Errorf("caller %d was sent %d times", i, times)
						}
					}
					if first := sent[string(s.script.names.AppendTag(nil, "0"))+suffix(p)]; own == 0 && callers < 3 && first != 2 {
						t.Errorf("the charge was sent %d times", first)
					}
				})
			})
		}
	}
}

// Questions that come while two calls are in flight share the next, in their order; those whose callers gave up are not sent.
func TestQuestionsShareCalls(t *testing.T) {
	inBubble(t, Config{Failure: outage.FailClosed}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.be(slow(10 * time.Millisecond))
		var all sync.WaitGroup
		for i := range 102 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.Sleep(time.Duration(i) * time.Microsecond)
				if i%10 == 5 {
					time.AfterFunc(time.Millisecond, cancel)
				}
				if _, err := s.askFor(ctx, p, fmt.Sprintf("%03d", i)); (i%10 == 5) != errors.Is(err, context.Canceled) {
					t.Error(i, err)
				}
			})
		}
		all.Wait()
		calls := f.sent()
		var names []string
		for _, c := range calls[2:] {
			names = append(names, c...)
		}
		if len(calls) > 5 || len(names) != 90 || !slices.IsSorted(names) {
			t.Errorf("%d calls, %q", len(calls), names)
		}
	})
}

func TestCallsAreBounded(t *testing.T) {
	inBubble(t, Config{Failure: outage.FailClosed, Timeout: time.Second}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		logs := s.limiter(t, "log", logOf(step.MaxLog, time.Hour))
		f.be(slow(time.Millisecond))
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				q := p
				if i%2 == 0 {
					q = &logs[0]
				}
				if _, err := s.askFor(t.Context(), q, fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, c := range f.sent() {
			weight := 0
			for _, name := range c {
				weight += logs[0].Attachment.(*scriptPolicy).weight
				if strings.Contains(name, ":api:") {
					weight += 1 - logs[0].Attachment.(*scriptPolicy).weight
				}
			}
			if weight > maxWeight {
				t.Errorf("a call of %d questions weighs %d", len(c), weight)
			}
		}
	})
}

// A cancelled caller in the queue leaves at once, and one that is alone when the answer is there.
func TestCancelled(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.be(slow(50 * time.Millisecond))
		var all sync.WaitGroup
		for i, want := range []time.Duration{50, 50, 5, 5} {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Microsecond)
				ctx, cancel := context.WithCancel(t.Context())
				start := time.Now()
				time.AfterFunc(5*time.Millisecond, cancel)
				_, err := s.askFor(ctx, p, fmt.Sprint(i))
				if took := time.Since(start); took != want*time.Millisecond || (want == 5) != errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v after %v", i, err, took)
				}
			})
		}
		all.Wait()
	})
}

// While a server is silent, refuses connections or is full, it is soon not asked any more, but by one real question at a
// time. What that was answered counts. It ends when a probe was answered, whatever the answer, and the server writes.
func TestBreaker(t *testing.T) {
	full := failing(proto("OOM command not allowed when used memory > 'maxmemory'."))
	for name, behave := range map[string]func(context.Context) error{"silent": silent, "refused": failing(errors.New("connection refused")), "full": full} {
		t.Run(name, func(t *testing.T) {
			var changes []error
			changed := func(err error) { changes = append(changes, err) }
			inBubble(t, Config{Changed: changed}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
				f.be(behave)
				start := time.Now()
				for s.Away() == nil {
					if source, err := s.askFor(t.Context(), p, "k"); err != nil || source != step.SourceLocal {
						t.Fatal(source, err)
					}
				}
				if took := time.Since(start); took > 400*time.Millisecond || len(changes) != 1 || changes[0] == nil {
					t.Errorf("away after %v, told %v", took, changes)
				}
				before := len(f.sent())
				for range 2000 { // two seconds
					time.Sleep(time.Millisecond)
					asked := time.Now()
					source, err := s.askFor(t.Context(), p, "k")
					if took := time.Since(asked); err != nil || source != step.SourceLocal || took > 100*time.Millisecond {
						t.Fatal(source, err, took)
					}
				}
				if probes := len(f.sent()) - before; probes < 4 || probes > 10 {
					t.Errorf("%d probes in two seconds", probes)
				}
				f.be(nil)
				f.refuse = true
				f.full = true
				for range 3 {
					time.Sleep(maxPause * 5 / 4)
					if source, err := s.askFor(t.Context(), p, "k"); err != nil || source != step.SourceStore {
						t.Fatal(source, err)
					}
					if synctest.Wait(); s.Away() == nil || !strings.Contains(s.Away().Error(), "OOM") {
						t.Fatal(s.Away())
					}
					if source, err := s.askFor(t.Context(), p, "k"); err != nil || source != step.SourceLocal {
						t.Fatal(source, err)
					}
				}
				time.Sleep(maxPause * 5 / 4)
				f.full = false
				c := []step.Cell{cell(p, "k", 1)}
				if allowed, err := s.Ask(t.Context(), step.Allow, c); allowed || err != nil || c[0].Source != step.SourceStore {
					t.Fatal(allowed, err, c)
				}
				if synctest.Wait(); s.Away() != nil {
					t.Fatal(s.Away())
				}
				if len(changes) != 2 || changes[1] != nil {
					t.Errorf("told %v", changes)
				}
			})
		})
	}
}

// A server that was away is back if it answers that a hash slot is elsewhere: it decides about the others.
func TestProbeOfAHashSlotElsewhere(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.be(failing(errors.New("connection refused")))
		for s.line.servers.first.breaker.away() == nil {
			_, _ = s.askFor(t.Context(), p, "k")
		}
		time.Sleep(maxPause)
		f.be(failing(proto("MOVED 3999 127.0.0.1:6381")))
		if source, err := s.askFor(t.Context(), p, "elsewhere"); err != nil || source != step.SourceLocal {
			t.Error(source, err)
		}
		synctest.Wait()
		f.be(nil)
		if source, err := s.askFor(t.Context(), p, "k"); err != nil || source != step.SourceStore {
			t.Error(source, err)
		}
	})
}

// A proto is an error that a server replied.
type proto string

func (e proto) Error() string { return string(e) }
func (proto) RedisError()     {}

// However a probe ends, another follows: also if its caller has left, or there was no connection to be had.
func TestProbesGoOn(t *testing.T) {
	inBubble(t, Config{Failure: outage.FailOpen}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		f.be(failing(errors.New("connection refused")))
		for s.Away() == nil {
			s.askFor(t.Context(), p, "k")
		}
		for _, behave := range []func(context.Context) error{silent, failing(redis.ErrPoolTimeout), failing(redis.ErrClosed), slow(20 * time.Millisecond)} {
			f.be(behave)
			time.Sleep(maxPause * 5 / 4)
			before := len(f.sent())
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			s.askFor(ctx, p, "k")
			cancel()
			if len(f.sent()) != before+1 {
				t.Error("no probe")
			}
			if source, _ := s.askFor(t.Context(), p, "k"); source != step.SourceOpen && source != step.SourceStore {
				t.Error(source)
			}
			time.Sleep(200 * time.Millisecond)
		}
		synctest.Wait()
		if err := s.Away(); err != nil { // the last probe was answered, although its caller had left
			t.Error(err)
		}
	})
}

// Single failures, slow calls, and callers that cannot wait do not make a server away.
func TestBreakerForgives(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
		for i := range 300 {
			f.be(nil)
			if i%3 > 0 {
				f.be(failing(errors.New("cut off")))
			}
			s.askFor(t.Context(), p, "k")
		}
		f.be(slow(50 * time.Millisecond))
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%30)*time.Millisecond)
				defer cancel()
				s.askFor(ctx, p, fmt.Sprint(i))
			})
		}
		all.Wait()
		if err := s.Away(); err != nil {
			t.Error(err)
		}
	})
}

// A server that counts alone admits a charge above its share as the whole share, and gives back no more than that.
func TestRefundAboveTheShare(t *testing.T) {
	inBubble(t, Config{Failure: outage.FailLocal, Servers: 4}, func(t *testing.T, f *fake, s *Decider, _ *step.Policy) {
		f.be(failing(errors.New("connection refused")))
		p := &s.limiter(t, "api", bucket(8, 8*time.Second))[0]
		large := s.charge(t, p, "k", 8)
		time.Sleep(9 * time.Second) // it has refilled
		for i, want := range []int64{0, 0, 1, 1} {
			if i == 3 {
				large.Units = -8
				if _, err := s.Ask(t.Context(), step.Settle, []step.Cell{large}); err != nil {
					t.Error(err)
				}
			}
			if got := s.charge(t, p, "k", 1); got.Shortfall != want {
				t.Errorf("charge %d: %+v", i, got)
			}
		}
	})
}

// A crowd is no outage: nobody is admitted without a question because too many wait.
func TestTooManyWait(t *testing.T) {
	for _, failure := range []outage.Failure{outage.FailLocal, outage.FailOpen, outage.FailClosed} {
		inBubble(t, Config{Failure: failure}, func(t *testing.T, f *fake, s *Decider, p *step.Policy) {
			s.line.servers.first.queue = make([]*waiter, maxWaiting)
			if source, err := s.askFor(t.Context(), p, "k"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("failure %d: decided by %v, %v", failure, source, err)
			}
			s.line.servers.first.queue = nil
			if source, err := s.askFor(t.Context(), p, "k"); err != nil || source != step.SourceStore || s.Away() != nil {
				t.Errorf("failure %d: decided by %v, %v", failure, source, err)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	month := step.Numbers{Kind: step.Calendar, Limit: 8, Period: step.Month}
	for failure, want := range map[outage.Failure]step.Source{outage.FailLocal: step.SourceLocal, outage.FailOpen: step.SourceOpen, outage.FailClosed: step.SourceNone} {
		testFailure(t, failure, want, logOf(8, time.Hour))
		testFailure(t, failure, want, month)
	}
}

func testFailure(t *testing.T, failure outage.Failure, want step.Source, numbers step.Numbers) {
	inBubble(t, Config{Failure: failure, Servers: 4}, func(t *testing.T, f *fake, s *Decider, _ *step.Policy) {
		f.be(failing(errors.New("connection refused")))
		p := &s.limiter(t, "api", numbers)[0]
		var made []step.Cell
		for range 8 {
			c := []step.Cell{cell(p, "k", 1)}
			allowed, err := s.Ask(t.Context(), step.Allow, c)
			if failure == outage.FailClosed && !errors.Is(err, store.ErrUnavailable) || failure != outage.FailClosed && (err != nil || c[0].Source != want) {
				t.Fatal(failure, err, c)
			}
			if allowed {
				made = append(made, c[0])
			}
		}
		if n := map[outage.Failure]int{outage.FailLocal: 2, outage.FailOpen: 8}[failure]; len(made) != n {
			t.Errorf("%v: %d admitted, not %d", failure, len(made), n)
		}
		f.be(nil)
		calls := len(f.sent())
		for _, c := range made { // goes where it was charged
			c.Units = -1
			if _, err := s.Ask(t.Context(), step.Settle, []step.Cell{c}); err != nil {
				t.Error(err)
			}
		}
		if n := len(f.sent()) - calls; n > 0 {
			t.Errorf("%d calls", n)
		}
		f.be(failing(errors.New("connection refused")))
		report, charged := []step.Cell{cell(p, "k", 3)}, []step.Cell{{Policy: p, Units: -1, Instant: 1, Source: step.SourceStore}}
		report[0].Units = 3
		if _, err := s.Ask(t.Context(), step.Settle, report); errors.Is(err, store.ErrUnavailable) != (failure == outage.FailClosed) || report[0].Source != want {
			t.Error(failure, err, report)
		}
		if failure == outage.FailLocal && report[0].Shortfall != 1 { // 2 had been given back
			t.Errorf("%d short", report[0].Shortfall)
		}
		if _, err := s.Ask(t.Context(), step.Settle, charged); !errors.Is(err, store.ErrUnavailable) {
			t.Error(failure, err)
		}
	})
}

func TestFaultsAreReportedTogether(t *testing.T) {
	_, err := New(redis.NewClient(&redis.Options{}), Config{Prefix: "{", Secret: []byte("short"), Timeout: 1, Failure: 7, Servers: -1})
	if n := strings.Count(fmt.Sprint(err), "\n"); n != 5 {
		t.Errorf("%d lines: %v", n+1, err)
	}
	var none *redis.Client
	for _, client := range []redis.UniversalClient{nil, none, redis.NewRing(&redis.RingOptions{}), redis.NewClusterClient(&redis.ClusterOptions{})} {
		if _, err := New(client, Config{}); err == nil {
			t.Errorf("%T is no fault", client)
		}
	}
}

// A share of a policy that cannot be is a fault when it is prepared.
func TestSharesThatCannotBe(t *testing.T) {
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true})
	s, err := New(client, Config{Servers: 1000})
	if err != nil {
		t.Fatal(err)
	}
	p, err := step.New("l", "l", bucket(1, 1<<48*time.Microsecond))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare([]step.Policy{p}); err == nil || !strings.Contains(err.Error(), "FailLocal") {
		t.Error(err)
	}
}
