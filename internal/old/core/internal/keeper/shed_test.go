package keeper

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// sheds asks for all of the holds at once, and returns how many were given up.
func (k *tester) sheds(holds ...*Hold) int64 {
	var all sync.WaitGroup
	var n atomic.Int64
	for _, h := range holds {
		all.Go(func() {
			shed, err := h.Shed(k.t.Context())
			if err != nil {
				k.t.Error(err)
			}
			if shed {
				n.Add(1)
			}
		})
	}
	all.Wait()
	return n.Load()
}

// total returns how many slots of the key the server counts.
func (k *tester) total(key string) (n int64) {
	for _, count := range k.stated(key) {
		n += count
	}
	return n
}

// Several processes that find together that a key holds too many give up as many as are too
// many, not as many as each of them sees.
func TestShedsWhatIsTooMany(t *testing.T) {
	const limit, each = 4, 3
	alone(t, func(k *tester) {
		others := []*Keeper{New(k.stage, k.config), New(k.stage, k.config)}
		processes := []*tester{k, {others[0], k.stage, k.t}, {others[1], k.stage, k.t}}
		holds := make([][]*Hold, len(processes))
		for i, p := range processes {
			for range each {
				h, _ := p.Take("ws", "key", limit, limit, false) // without the server
				holds[i] = append(holds[i], h)
			}
		}
		time.Sleep(simTTL)
		if n := k.total("key"); n != 3*each {
			t.Errorf("%d are held", n)
		}
		var shed atomic.Int64
		var all sync.WaitGroup
		for i, p := range processes {
			all.Go(func() { shed.Add(p.sheds(holds[i]...)) })
		}
		all.Wait()
		if n := k.total("key"); n != limit || shed.Load() != 3*each-limit {
			t.Errorf("%d of %d are held, %d were shed", n, limit, shed.Load())
		}
		time.Sleep(simTTL)
		if n := k.total("key"); n != limit {
			t.Errorf("%d of %d are held in the end", n, limit)
		}
		for _, other := range others {
			if err := other.Close(k.t.Context(), "ws"); err != nil {
				t.Error(err)
			}
		}
	})
}

// Whether a slot is too many is a question of what the living hold, and of the largest limit
// under which the process holds slots of the key.
func TestWhatIsNotTooMany(t *testing.T) {
	alone(t, func(k *tester) {
		k.acquires("registers", 1)
		time.Sleep(simTTL)
		hold := func(key string, n int64) {
			k.locked(func() { k.server.state(key, &Op{ID: "other", Seq: k.since().Nanoseconds(), Held: n}) })
		}
		for _, test := range []struct {
			name   string
			limits []int64 // under which slots are granted, one after the other
			others int64   // what others hold then
			want   int64   // how many are shed
		}{
			{"full", []int64{3}, 2, 0},
			{"one more", []int64{3}, 3, 1},
			{"many more", []int64{3}, 30, 1},
			{"all of several", []int64{3, 3, 3}, 30, 3},
			{"some of several", []int64{3, 3, 3}, 2, 2},
			{"lowered", []int64{5, 5, 5, 5, 3}, 0, 0},
			{"raised", []int64{1, 5, 5}, 2, 0},
			{"raised, and more", []int64{1, 5, 5}, 3, 1},
			{"without a limit", []int64{1, 1 << 53}, 1 << 40, 0},
		} {
			var holds []*Hold
			for _, limit := range test.limits {
				if h := k.acquire(test.name, limit, simTTL); h != nil {
					holds = append(holds, h)
				}
			}
			hold(test.name, test.others)
			if n := k.sheds(holds...); n != test.want {
				t.Errorf("%s: %d were shed, want %d", test.name, n, test.want)
			}
			if n, want := k.stated(test.name)[k.incarnation()], int64(len(holds))-test.want; n != want {
				t.Errorf("%s: %d are stated, want %d", test.name, n, want)
			}
		}
		h := k.acquires("dead", 2)
		k.locked(func() {
			k.server.state("dead", &Op{ID: "dead", Seq: 1, Held: 2})
			k.server.scores["dead"] = -k.server.scores["#clock"]
		})
		time.Sleep(2 * deadFor)
		if n := k.sheds(h); n > 0 {
			t.Error("what the dead hold was counted")
		}
	})
}

// A slot is given up only if the server can have taken it: else it is held, and stated
// again.
func TestShedsWithoutAnAnswer(t *testing.T) {
	for _, test := range []struct {
		name  string
		fails func(k *tester)
		shed  bool
	}{
		{"unsent", func(k *tester) { k.locked(func() { k.unsent = true }) }, false},
		{"the question fails", func(k *tester) { k.locked(func() { k.failing = 1 }) }, false},
		{"the answer is lost", func(k *tester) {
			k.locked(func() { k.loses = func(op *Op) bool { return op.Want < 0 } })
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			alone(t, func(k *tester) {
				h := k.acquires("key", 1)
				time.Sleep(simTTL)
				synctest.Wait() // the beat of this instant is over
				k.locked(func() { k.server.state("key", &Op{ID: "other", Seq: 1, Held: 1}) })
				test.fails(k)
				shed, err := h.Shed(k.t.Context())
				if shed != test.shed || (err != nil) == test.shed {
					t.Errorf("%v, %v", shed, err)
				}
				k.set(false, nil)
				k.locked(func() { k.unsent, k.loses = false, nil })
				time.Sleep(simTTL)
				want := int64(1)
				if test.shed {
					want = 0
				}
				if n := k.stated("key")[k.incarnation()]; n != want {
					t.Errorf("%d are stated, want %d", n, want)
				}
				if !test.shed {
					if n := k.sheds(h); n != 1 {
						t.Errorf("tried again: %d were shed", n)
					}
				}
			})
		})
	}
}

// A caller who gives up early keeps its slot, unless it is being taken. After Close there is
// nothing to give up.
func TestShedOfACallerWhoGivesUp(t *testing.T) {
	alone(t, func(k *tester) {
		h := k.acquires("key", 1)
		time.Sleep(simTTL)
		k.locked(func() { k.server.state("key", &Op{ID: "other", Seq: 1, Held: 1}) })
		ctx, cancel := context.WithCancel(k.t.Context())
		silent := make(chan struct{})
		k.locked(func() { k.hold = silent })
		done := make(chan struct{})
		go k.acquire("key", 2, simTTL) // its op is the first
		synctest.Wait()
		go func() {
			defer close(done)
			if shed, err := h.Shed(ctx); shed || !errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", shed, err)
			}
		}()
		synctest.Wait()
		cancel()
		<-done
		k.locked(func() { k.hold = nil })
		close(silent)
		time.Sleep(simTTL)
		k.expect("given up waiting", k.stated("key"), map[string]int64{k.incarnation(): 1, "other": 1})
		if err := k.Close(k.t.Context(), "ws"); err != nil {
			t.Error(err)
		}
		if shed, err := h.Shed(k.t.Context()); shed || !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, %v", shed, err)
		}
	})
}

// Doubt is told once for each loss, and not otherwise.
func TestDoubt(t *testing.T) {
	alone(t, func(k *tester) {
		h := k.acquires("key", 1)
		doubt := func() bool {
			c := h.Doubt()
			time.Sleep(2 * simTTL)
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
		if doubt() {
			t.Error("nothing has happened")
		}
		for range 2 {
			time.AfterFunc(simTTL/10, func() { k.locked(func() { clear(k.server.keys) }) })
			if !doubt() {
				t.Error("the server has lost everything")
			}
			time.AfterFunc(simTTL/10, func() {
				k.locked(func() { k.server.scores[k.incarnation()] = -k.server.scores["#clock"] })
			})
			if !doubt() {
				t.Error("the process was declared dead")
			}
		}
		k.set(true, nil)
		if doubt() {
			t.Error("the server is away")
		}
		k.set(false, nil)
		if doubt() {
			t.Error("the server is back, and has lost nothing")
		}
	})
}

// Sheds do not count as acquires that wait: a program may shed all that it holds at once.
func TestShedsDoNotCrowdAcquires(t *testing.T) {
	alone(t, func(k *tester) {
		k.acquires("x", 5)
		var all sync.WaitGroup
		holds := make([]*Hold, maxWaiting)
		for i := range holds {
			holds[i], _ = k.Take("ws", strconv.Itoa(i), 1, 1, false)
		}
		time.Sleep(simTTL)
		hold := make(chan struct{})
		k.locked(func() { k.hold = hold })
		for _, h := range holds {
			all.Go(func() { _, _ = h.Shed(context.Background()) })
		}
		synctest.Wait()
		all.Go(func() {
			if _, _, err := k.Acquire(context.Background(), time.Now().Add(simTTL), "ws", "new", 5, 5); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(hold)
		k.locked(func() { k.hold = nil })
		all.Wait()
	})
}
