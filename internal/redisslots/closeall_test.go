package redisslots

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

// A trigger does something once, before the n-th call of a client after it was armed.
type trigger struct {
	mu   sync.Mutex
	left int // 0 and less: it is not armed
	do   func()
}

func (s *trigger) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left--; s.left == 0 {
		s.do()
	}
}

// A marked notes that a server has answered the first call of an announcement: it has its mark.
type marked struct{ atomic.Bool }

func (*marked) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *marked) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && ctx.Value(announcing{}) != nil {
			m.Store(true)
		}
		return err
	}
}

func (*marked) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *trigger) arm(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = n
}

func (*trigger) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *trigger) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.next()
		return next(ctx, cmd)
	}
}

func (s *trigger) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.next()
		return next(ctx, cmds)
	}
}

// Whenever Redis is killed, emptied or failed over while all of a key are closed, in whichever step of whichever of three
// processes: who announces it is told so, or all have closed. What was lost before it was announced may be closed a little
// later: all hear of it at their next look.
func TestNoFalseSuccess(t *testing.T) {
	config := brief(30 * time.Second) // nobody is taken for dead: that is not awaited
	config.Timeout = time.Second
	steps := 5
	if *rounds > 1 {
		steps = 14
	}
	for what, trouble := range map[string]func(*redistest.Server){
		"killed":  func(server *redistest.Server) { server.Kill(); server.Restart() },
		"flushed": (*redistest.Server).Flush,
		"failed over": func(server *redistest.Server) { // to a replica that lacks what was written last
			server.Kill()
			server.Restart()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for where := range 2 { // who announces it, or another
				for n := 1; n <= steps; n++ {
					server := redistest.Start(t)
					all := []*member{join(t, config, server.Addr()), join(t, config, server.Addr()), join(t, config, server.Addr())}
					all[1].take(t, "anna")
					if what == "failed over" {
						if _, err := server.Do("SAVE"); err != nil {
							t.Fatal(err)
						}
					}
					all[2].take(t, "anna")
					var mark marked
					all[0].client.AddHook(&mark)
					var early atomic.Bool // it was lost before it was announced
					s := &trigger{do: func() { early.Store(!mark.Load()); trouble(server) }}
					all[where].client.AddHook(s)
					s.arm(n)
					got, silent, err := all[0].closeAll(t, "anna", true)
					left := all[1].holds("anna") + all[2].holds("anna")
					if err == nil && len(silent) == 0 && left > 0 && !early.Load() {
						t.Errorf("step %d of process %d: success, %d closed, and %d are left", n, where, got, left)
					}
					until(t, fmt.Sprintf("step %d of process %d: it is announced again", n, where), patient, func() bool {
						if err != nil || len(silent) > 0 { // as the caller is told to
							_, silent, err = all[0].closeAll(t, "anna", true)
						}
						return err == nil && len(silent) == 0
					})
					until(t, fmt.Sprintf("step %d of process %d: all are closed", n, where), patient, func() bool {
						return all[1].holds("anna")+all[2].holds("anna") == 0
					})
					s.arm(0)
					for _, m := range all {
						_ = m.client.Close()
					}
					server.Kill()
				}
			}
		})
	}
}

// Who closes all sockets of a key need not hold any, nor need anybody else, for a process that was killed to be taken for
// dead.
func TestCloseAllOfTheKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	killed, closer := join(t, brief(time.Second), server.Addr()), join(t, brief(time.Second), server.Addr())
	killed.take(t, "anna")
	if err := killed.client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, silent, err := closer.closeAll(t, "anna", true); err != nil || len(silent) > 0 {
		t.Error(silent, "are awaited for ever", err)
	}
}
