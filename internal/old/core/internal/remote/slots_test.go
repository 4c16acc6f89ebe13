package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/keeper"
	"github.com/headgate/headgate/internal/old/core/store"
)

const slotTTL, slotTimeout = 15 * time.Second, 2 * time.Second

// A registry is a slot backend that is not Redis. The first of its servers has the beats; each
// may be away.
type registry struct {
	*database

	NoticeBackend // nobody announces anything

	lock  sync.Mutex
	away  map[*Server]network
	beats network                     // what becomes of beats beside that
	held  map[string]map[string]int64 // by key and incarnation
	alive map[string]bool
}

func newRegistry(servers int) *registry {
	return &registry{
		database: newDatabase(servers, clock), away: make(map[*Server]network),
		held: make(map[string]map[string]int64), alive: make(map[string]bool),
	}
}

func (r *registry) set(f func()) {
	r.lock.Lock()
	defer r.lock.Unlock()
	f()
}

// call makes a call to a server over its network, and another.
func (r *registry) call(ctx context.Context, server *Server, of func() network, do func()) error {
	var ns []network
	r.set(func() { ns = []network{r.away[server], of()} })
	for _, n := range ns {
		if n == nil {
			continue
		}
		if _, err := n(ctx); err != nil {
			return err
		}
	}
	r.set(do)
	return nil
}

func (*registry) Shards() int                      { return 1 }
func (*registry) Shard(string) int                 { return 0 }
func (*registry) Histories(context.Context) string { return "" }
func (r *registry) BeatRoute() (*Server, int)      { return r.servers[0], 0 }

func (r *registry) Beat(ctx context.Context, b *keeper.Beat) error {
	return r.call(ctx, r.servers[0], func() network { return r.beats }, func() {
		b.State = keeper.Live
		if b.ID == "" {
			b.State = keeper.None
			r.alive[b.New] = true
		}
	})
}

func (r *registry) State(ctx context.Context, ops []*keeper.Op) error {
	server, _ := r.Route(ops[0].Key)
	err := r.call(ctx, server, func() network { return nil }, func() {
		for _, op := range ops {
			others := int64(0)
			for id, n := range r.held[op.Key] {
				if id != op.ID {
					others += n
				}
			}
			granted := max(min(op.Want, op.Limit-others-op.Held), 0)
			if r.held[op.Key] == nil {
				r.held[op.Key] = make(map[string]int64)
			}
			r.held[op.Key][op.ID] = op.Held + granted
			op.Reply = keeper.Reply{Granted: granted, Others: others}
			op.Reply.Found = keeper.Field{}
		}
	})
	for _, op := range ops {
		op.Err = err
	}
	return err
}

func (r *registry) ProbeSlots(ctx context.Context, part int) error {
	ctx, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	return r.call(ctx, r.servers[part], func() network { return nil }, func() {})
}

func (*registry) ProbeBeats(ctx context.Context, beat func(context.Context) error) error {
	return beat(ctx)
}

func (*registry) Stated(context.Context, string, string) ([]keeper.Field, []string, error) {
	return nil, nil, nil
}

func (r *registry) count(key string) (n int64) {
	r.set(func() {
		for _, held := range r.held[key] {
			n += held
		}
	})
	return n
}

var denied network = func(context.Context) (bool, error) { return false, errors.New("NOPERM") }

// A failureOfSlots is what a Failure grants of 200, where the limit is 3.
type failureOfSlots struct {
	failure Failure
	servers int
	granted int
	source  store.Source
}

var slotFailures = []failureOfSlots{{Open, 0, 200, store.SourceOpen}, {Local, 0, 3, store.SourceLocal}, {Local, 3, 1, store.SourceLocal}, {Closed, 0, 0, 0}}

// A process that starts while the server is away, or while only its beats fail, does what Failure
// says; the breaker opens once, closes once, and two beats later what was granted is stated.
func TestSlotsOfAStartWithoutTheServer(t *testing.T) {
	for how, n := range map[string]struct {
		server, beats network
		longest       time.Duration // until it is known to be away
	}{
		"closed":                  {server: lost, longest: time.Second / 2},
		"silent":                  {server: silent, longest: 8 * time.Second},
		"beats are not permitted": {beats: denied, longest: time.Second / 2},
		"beats are silent":        {beats: silent, longest: 8 * time.Second},
	} {
		for _, f := range slotFailures {
			t.Run(fmt.Sprint(how, f.failure, f.servers), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := newRegistry(1)
					r.away[r.servers[0]], r.beats = n.server, n.beats
					var told []error
					o := &core.Observer{Changed: func(reason error) { r.set(func() { told = append(told, reason) }) }}
					s := NewSlots(r, Config{Observer: o}, SlotConfig{Failure: f.failure, Servers: f.servers, Timeout: slotTimeout, TTL: slotTTL})
					defer end(t, s)
					held := f.takes(t, s, "a", 200)
					begun := time.Now()
					for !StateOf(r.Servers(), s).Away {
						time.Sleep(50 * time.Millisecond)
						held = append(held, f.takes(t, s, "a", 1)...)
						if time.Since(begun) > n.longest {
							t.Fatalf("not known to be away after %v", n.longest)
						}
					}
					if got := len(held); got != f.granted && f.failure != Open {
						t.Errorf("%d granted, want %d", got, f.granted)
					}
					start := time.Now()
					f.takes(t, s, "b", 200)
					if took := time.Since(start); took > 0 {
						t.Errorf("what is away is waited for: %v", took)
					}
					time.Sleep(time.Minute)
					if st := StateOf(r.Servers(), s); !st.Away || st.Reason == nil {
						t.Errorf("%+v", st)
					}
					r.set(func() { r.away, r.beats = nil, nil })
					time.Sleep(slotTTL * 2 / 3) // two beats
					if n := r.count("a"); n != int64(len(held)) {
						t.Errorf("%d are counted, %d are held", n, len(held))
					}
					if st := StateOf(r.Servers(), s); st.Away || st.Reason != nil {
						t.Errorf("%+v", st)
					}
					r.set(func() {
						if len(told) != 2 || told[0] == nil || told[1] != nil {
							t.Errorf("told of %v", told)
						}
					})
					g, err := s.AcquireSlots(t.Context(), []store.Claim{{Name: "ws", Key: "c", Limit: 3}})
					if err != nil || g.Source != store.SourceStore {
						t.Errorf("granted by %v, %v", g.Source, err)
					}
				})
			})
		}
	}
}

// takes asks so many times for a slot of three, and returns those that it gets. What is refused is
// refused as Failure says.
func (f failureOfSlots) takes(t *testing.T, s *Slots, key string, times int) (held []store.Hold) {
	t.Helper()
	for range times {
		g, err := s.AcquireSlots(t.Context(), []store.Claim{{Name: "ws", Key: key, Limit: 3}})
		switch {
		case err == nil:
			held = append(held, g.Hold)
			if g.Source != f.source {
				t.Fatalf("granted by %v", g.Source)
			}
		case f.failure == Closed && errors.Is(err, store.ErrUnavailable):
		case f.failure == Local && errors.As(err, new(*store.FullError)):
		default:
			t.Fatal(err)
		}
	}
	return held
}

func end(t *testing.T, s *Slots) {
	t.Helper()
	if err := s.CloseSlots(t.Context(), "ws"); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Minute) // probes end
}

// Who gives up while slots are closed says nothing of the server.
func TestBeatsThatAreGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRegistry(1)
		r.beats = silent
		s := NewSlots(r, Config{}, SlotConfig{Timeout: slotTimeout, TTL: slotTTL})
		for range 2 * MaxFailures {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if err := (transport{s}).Beat(ctx, &keeper.Beat{}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if st := StateOf(r.Servers(), s); st.Away {
			t.Errorf("%+v", st)
		}
	})
}

// A key that this process fills does not keep Failure from deciding once beats fail, although
// nothing else is known to.
func TestSlotsOfAFullKeyWithoutBeats(t *testing.T) {
	for _, f := range slotFailures {
		t.Run(fmt.Sprint(f.failure, f.servers), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRegistry(1)
				s := NewSlots(r, Config{}, SlotConfig{Failure: f.failure, Servers: f.servers, Timeout: slotTimeout, TTL: slotTTL})
				defer end(t, s)
				byStore := f
				byStore.source = store.SourceStore
				byStore.takes(t, s, "a", 3)
				r.set(func() { r.beats = denied })
				time.Sleep(slotTTL * 2 / 3)
				want := 0
				if f.failure == Open {
					want = 200
				}
				if got := len(f.takes(t, s, "a", 200)); got != want {
					t.Errorf("%d granted, want %d", got, want)
				}
				r.set(func() { r.beats = nil })
				time.Sleep(slotTTL * 2 / 3)
				if n := r.count("a"); n != int64(3+want) {
					t.Errorf("%d are counted, want %d", n, 3+want)
				}
			})
		})
	}
}

// While the server that has the beats is away, others are asked for as long as the last beat
// counts: a TTL. Then Failure decides for all keys, at once.
func TestSlotsWithoutTheServerOfBeats(t *testing.T) {
	for how, n := range map[string]network{"closed": lost, "silent": silent} {
		for _, f := range slotFailures {
			t.Run(fmt.Sprint(how, f.failure, f.servers), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					r := newRegistry(2)
					s := NewSlots(r, Config{}, SlotConfig{Failure: f.failure, Servers: f.servers, Timeout: slotTimeout, TTL: slotTTL})
					defer end(t, s)
					byStore := f
					byStore.source = store.SourceStore
					key := func(server, i int) string { return string(rune('b'-server)) + fmt.Sprint(i) } // 'a' is odd
					byStore.takes(t, s, key(1, 0), 1)
					r.set(func() { r.away[r.servers[0]] = n })
					began := time.Now()
					i := 0
					for ; time.Since(began) < slotTTL-2*time.Second; time.Sleep(100 * time.Millisecond) {
						i++
						byStore.takes(t, s, key(1, i), 1)
					}
					if st := StateOf(r.Servers(), s); !st.Away || st.Reason == nil {
						t.Errorf("%+v", st)
					}
					time.Sleep(slotTTL)
					start := time.Now()
					if got := len(f.takes(t, s, key(1, i+1), 200)); got != f.granted {
						t.Errorf("%d granted of the other server, want %d", got, f.granted)
					}
					if got := len(f.takes(t, s, key(0, 1), 200)); got != f.granted {
						t.Errorf("%d granted of the server that is away, want %d", got, f.granted)
					}
					if took := time.Since(start); took > 0 {
						t.Errorf("that took %v", took)
					}
					r.set(func() { r.away = nil })
					time.Sleep(slotTTL * 2 / 3)
					for server := range 2 {
						if got, want := r.count(key(server, 1+i*server)), int64(f.granted); got != want {
							t.Errorf("server %d counts %d, want %d", server, got, want)
						}
					}
					byStore.takes(t, s, key(1, i+2), 1)
				})
			})
		}
	}
}
