package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// Two processes share a Redis: the near one announces, and the far one holds a slot of "key" and
// listens.
type twoProcesses struct {
	server    *redistest.Server
	near, far *Store
	gate      sync.RWMutex // while it is locked, far reads no posts

	mu    sync.Mutex
	after map[any]func() // what is to be done when a script has been run the next time
	heard []time.Time    // when what far has heard was announced, by its clock
}

func newTwoProcesses(t *testing.T) *twoProcesses {
	t.Helper()
	p := &twoProcesses{server: redistest.Start(t), after: make(map[any]func())}
	for _, s := range []**Store{&p.near, &p.far} {
		*s = open(t, Config{SlotTimeout: patient, SlotTTL: 4 * patient}, p.server.Addr())
		(*s).Client().AddHook(watcher{p})
	}
	t.Cleanup(acquires(t, newSlots(t, p.far, "ws", 5), "key").Release)
	t.Cleanup(p.far.Listen("ws", p.listen))
	if heard := p.hears(t, func() { p.announce(t, patient) }); len(heard) != 1 { // and Redis knows the scripts
		t.Fatal(heard)
	}
	return p
}

func (p *twoProcesses) listen(h store.Heard) store.Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, time.Now().Add(-h.Age))
	return store.Answer{Text: "far"}
}

// then does something when a script has been run the next time.
func (p *twoProcesses) then(s script, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after[s.sha] = do
}

// A watcher is the hook of twoProcesses.
type watcher struct{ *twoProcesses }

func (watcher) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w watcher) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		words := cmd.Args()
		if len(words) < 2 || words[0] != evalSHA {
			return next(ctx, cmd)
		}
		if words[1] == postsScript.sha {
			w.gate.RLock()
			defer w.gate.RUnlock()
		}
		err := next(ctx, cmd)
		w.mu.Lock()
		do := w.after[words[1]]
		delete(w.after, words[1])
		w.mu.Unlock()
		if do != nil {
			do()
		}
		return err
	}
}

func (watcher) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// hears waits until far has heard something, and returns what it has heard since the call.
func (p *twoProcesses) hears(t *testing.T, announce func()) (since []time.Time) {
	t.Helper()
	p.mu.Lock()
	before := len(p.heard)
	p.mu.Unlock()
	announce()
	eventually(t, "notices to be heard", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		since = p.heard[before:]
		return len(since) > 0
	})
	return since
}

func (p *twoProcesses) announce(t *testing.T, timeout time.Duration) (answers int, silent []int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	silent, err := p.near.Announce(ctx, store.Notice{Name: "ws", Key: "key", Text: "text", All: true}, func(string) bool {
		answers++
		return false
	})
	if err != nil {
		t.Error(err)
	}
	return answers, silent
}

// A notice that Redis loses before it is answered is announced again, as of the first time. What
// the holder had stated is lost with it, but it has not ended.
func TestNoticeThatIsLost(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(*redistest.Server){
		"emptied":   (*redistest.Server).Flush,
		"restarted": func(s *redistest.Server) { s.Kill(); s.Restart() },
	} {
		for when, script := range map[string]script{"before it is heard": postScript, "with the reply": replyScript} {
			t.Run(how+", "+when, func(t *testing.T) {
				t.Parallel()
				p := newTwoProcesses(t)
				lost := make(chan time.Time, 1)
				p.gate.Lock()
				p.then(replyScript, func() { lose(p.server); lost <- time.Now() })
				p.then(postScript, func() {
					defer p.gate.Unlock()
					if script == postScript {
						p.then(replyScript, func() {})
						lose(p.server)
						lost <- time.Now()
					}
				})
				start := time.Now()
				var answers int
				var silent []int64
				heard := p.hears(t, func() { answers, silent = p.announce(t, patient) })
				if answers != 1 || len(silent) != 0 {
					t.Errorf("%d answers, %d silent", answers, len(silent))
				}
				end := <-lost // long after the start if Redis had to be restarted
				for _, announced := range heard {
					if announced.Before(start) || how == "restarted" && announced.After(end) {
						t.Errorf("announced %v after the start, and lost %v after it", announced.Sub(start), end.Sub(start))
					}
				}
			})
		}
	}
}

// Who holds slots is silent if the notice is lost, and cannot be announced again.
func TestNoticeThatStaysLost(t *testing.T) {
	t.Parallel()
	p := newTwoProcesses(t)
	p.gate.Lock()
	defer p.gate.Unlock()
	p.then(postScript, p.server.Kill)
	if answers, silent := p.announce(t, time.Second); answers != 0 || !slices.Equal(silent, []int64{1}) {
		t.Errorf("%d answers, silent %d", answers, silent)
	}
}

// What waits for the answer is done when that is stored, or cannot be.
func TestThenIsAfterTheReply(t *testing.T) {
	t.Parallel()
	p := newTwoProcesses(t)
	for _, lost := range []bool{false, true} {
		replied := make(chan bool, 1)
		stop := p.far.Listen("ws", func(store.Heard) store.Answer {
			return store.Answer{Text: "x", Then: func() {
				keys, err := p.server.Do("KEYS", "headgate:{slots}:replies:*")
				replied <- err == nil && len(keys.([]any)) > 0
			}}
		})
		p.server.Flush() // the replies before
		if lost {
			p.then(postsScript, p.server.Kill)
		}
		if _, silent := p.announce(t, time.Second); !lost && len(silent) > 0 {
			t.Errorf("silent: %d", silent)
		}
		if <-replied == lost {
			t.Errorf("lost %v: done as if not", lost)
		}
		stop()
	}
}

// However much is announced, what is lasting reaches a process that was away, and is as old as it
// is.
func TestManyNotices(t *testing.T) {
	t.Parallel()
	p := newTwoProcesses(t)
	const lasting = 3 * postsAtOnce
	var last time.Time // when far began to read them
	post := func(post remote.Post) {
		if err := p.near.backend.Post(t.Context(), post); err != nil {
			t.Fatal(err)
		}
	}
	p.gate.Lock()
	heard := p.hears(t, func() {
		defer p.gate.Unlock()
		for i := range lasting {
			post(remote.Post{Text: fmt.Sprintf(`{"name":"ws","id":"%d"}`, i), Lasting: true})
		}
		for i := range remote.MaxPassing + postsAtOnce {
			post(remote.Post{Text: fmt.Sprint(i)})
		}
		last = time.Now()
	})
	eventually(t, "all lasting notices", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		heard = p.heard[1:]
		return len(heard) >= lasting
	})
	if len(heard) != lasting {
		t.Errorf("%d were heard", len(heard))
	}
	for i, at := range heard {
		if at.After(last) {
			t.Fatalf("notice %d was heard as if it had been announced %v later", i, at.Sub(last))
		}
	}
	if n, err := p.server.Do("ZCARD", "headgate:{slots}:passing"); err != nil || n != int64(remote.MaxPassing) {
		t.Errorf("%v passing posts are kept: %v", n, err)
	}
}

// Of lasting notices no more are taken than can be kept.
func TestTooManyNotices(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{}, server.Addr())
	n := store.Notice{Name: "ws", Key: "key", All: true}
	if _, err := s.Announce(t.Context(), n, nil); err != nil {
		t.Fatal(err)
	}
	fill := fmt.Sprintf("local t = redis.call('TIME') for i = 2, %d do redis.call('ZADD', 'headgate:{slots}:notices', t[1] * 1000000 + i, i) end", remote.MaxPosts)
	if _, err := server.Do("EVAL", fill, "0"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Announce(t.Context(), n, nil); !errors.Is(err, core.ErrUnavailable) {
		t.Error(err)
	}
	if n, err := server.Do("ZCOUNT", "headgate:{slots}:notices", "0", "+inf"); err != nil || n != int64(remote.MaxPosts) {
		t.Errorf("%v are kept: %v", n, err)
	}
}
