package keeper

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
)

var errNobody = errors.New("nobody answers")

// A stage is a transport on which beats and ops can be held up, or fail. Its server has one hash for
// each key, so names share no keys.
type stage struct {
	server *model

	mu      sync.Mutex
	away    bool
	wait    chan struct{}  // beats end when it is closed; nil: at once
	hold    chan struct{}  // ops start when it is closed; nil: at once
	late    chan struct{}  // ops are done, and answered when it is closed; nil: at once
	unsent  bool           // ops fail, and are known to have no effect
	failing int            // so many more runs fail
	loses   func(*Op) bool // the answers to such ops are lost; may be nil
	beats   []Beat         // all that have arrived
	servers string
}

func (*stage) Shard(string) int { return 0 }

func (s *stage) Servers(context.Context) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servers
}

func (s *stage) set(away bool, wait chan struct{}) {
	s.locked(func() { s.away, s.wait = away, wait })
}

func (s *stage) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// blocked waits until the channel that it reads is closed, or the context ends.
func (s *stage) blocked(ctx context.Context, channel *chan struct{}) error {
	s.mu.Lock()
	wait := *channel
	s.mu.Unlock()
	if wait == nil {
		return nil
	}
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *stage) Run(ctx context.Context, _ int, ops []*Op) {
	err := s.blocked(ctx, &s.hold)
	s.locked(func() {
		switch {
		case s.unsent:
			err = ErrUnsent
		case s.failing > 0:
			s.failing--
			err = errNobody
		case s.away:
			err = errNobody
		}
		for _, op := range ops {
			if op.Err = err; err == nil {
				op.Reply = s.server.state(op.Key, op)
				if s.loses != nil && s.loses(op) {
					op.Reply, op.Err = Reply{}, errNobody
				}
			}
		}
	})
	if late := s.blocked(ctx, &s.late); err == nil && late != nil {
		for _, op := range ops {
			op.Err = late
		}
	}
}

func (s *stage) Beat(ctx context.Context, b *Beat) error {
	if err := s.blocked(ctx, &s.wait); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errNobody
	}
	s.server.beat(time.Now().UnixMicro(), b)
	s.beats = append(s.beats, *b)
	return nil
}

func newStage() (*stage, *Keeper) {
	s := &stage{server: newModel(), servers: "one"}
	return s, New(s, Config{TTL: simTTL, Timeout: simTTL / 2, Shards: 1})
}

// What was held and released before anybody could be told is forgotten.
func TestReleasedBeforeTheFirstBeat(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		s.set(true, nil)
		for i := range 100 {
			h, _ := k.Take("ws", strconv.Itoa(i), 1, 1, true)
			h.Release()
		}
		held, _ := k.Take("ws", "held", 1, 1, true)
		k.mu.Lock()
		n, out := len(k.current.shards[0].all), len(k.current.shards[0].out)
		k.mu.Unlock()
		if n != 1 || out > 1 {
			t.Errorf("%d entries, %d of them to be stated", n, out)
		}
		s.set(false, nil)
		time.Sleep(simTTL)
		s.mu.Lock()
		if s.server.keys["held"] == nil || len(s.server.keys) != 1 {
			t.Errorf("the server has %v", s.server.keys)
		}
		s.mu.Unlock()
		held.Release()
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}

// Who closes a name while its acquire waits for a beat does not wait for what is never
// stated.
func TestCloseWhileAnAcquireWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		acquire := func(name string) error {
			_, _, err := k.Acquire(t.Context(), time.Now().Add(simTTL/2), name, "key of "+name, 1, 1)
			return err
		}
		if err := acquire("other"); err != nil {
			t.Fatal(err)
		}
		s.set(true, nil)
		time.Sleep(2 * simTTL)
		wait := make(chan struct{})
		s.set(false, wait)
		time.Sleep(simTTL / 10) // the next try is on its way
		got := make(chan error)
		go func() { got <- acquire("ws") }()
		synctest.Wait()
		closed := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { closed <- k.Close(ctx, "ws") }()
		synctest.Wait()
		close(wait)
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := k.Close(t.Context(), "other"); err != nil {
			t.Error(err)
		}
	})
}

// A Close that failed can be tried again: of the last name, which sends the tombstone, and
// of others, which wait for statements.
func TestCloseIsTriedAgain(t *testing.T) {
	for _, first := range []string{"a", "both"} {
		t.Run(first, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, k := newStage()
				for _, name := range []string{"a", "b"} {
					if _, _, err := k.Acquire(t.Context(), time.Now().Add(simTTL/2), name, "key of "+name, 1, 1); err != nil {
						t.Fatal(err)
					}
				}
				closes := func(name string) error {
					ctx, cancel := context.WithTimeout(t.Context(), simTTL/10)
					defer cancel()
					return k.Close(ctx, name)
				}
				s.set(true, nil)
				if err := closes("a"); err == nil {
					t.Error("closed without the server")
				}
				if first == "both" {
					if err := closes("b"); err == nil {
						t.Error("closed without the server")
					}
				}
				if err := closes("a"); err == nil {
					t.Error("closed without the server, the second time")
				}
				s.set(false, nil)
				time.Sleep(simTTL) // the next beat
				for _, name := range []string{"a", "b", "a", "b"} {
					if err := closes(name); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				for key, fields := range s.server.keys {
					for id, f := range fields {
						if f.Count > 0 && s.tombstones(id) == 0 {
							t.Errorf("%d of %s are held", f.Count, key)
						}
					}
				}
				if len(k.unclosed) > 0 {
					t.Errorf("%d names are still to be closed", len(k.unclosed))
				}
			})
		})
	}
}

// A refusal says that the key is full, even if slots were released while it was on its
// way.
func TestRefusalDuringARelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		const limit = 2
		acquire := func() (*Hold, int64, error) {
			return k.Acquire(t.Context(), time.Now().Add(simTTL/2), "ws", "key", limit, limit)
		}
		s.server.state("key", &Op{ID: "other", Seq: 1, Held: limit - 1})
		own, _, err := acquire()
		if own == nil || err != nil {
			t.Fatal(own, err)
		}
		time.Sleep(simTTL / 10) // the first beat is over
		hold := make(chan struct{})
		s.locked(func() { s.hold = hold })
		done := make(chan struct{})
		go func() {
			defer close(done)
			if h, held, err := acquire(); h != nil || held != limit || err != nil {
				t.Errorf("%v, %d of %d are held, %v", h, held, limit, err)
			}
		}()
		synctest.Wait()
		own.Release()
		close(hold)
		<-done
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}
