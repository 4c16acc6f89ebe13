package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// An office is a server that answers all processes after some time.
type office struct {
	mu      sync.Mutex
	server  *model
	latency time.Duration // there and back, at most
	calls   int           // about slots
}

// asked returns how many calls about slots there were.
func (o *office) asked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls
}

// A clerk is what one process sees of an office. After its death, nothing arrives.
type clerk struct {
	*office

	dead bool
}

func (c *clerk) do(f func()) error {
	time.Sleep(rand.N(c.latency / 2))
	c.mu.Lock()
	dead := c.dead
	if !dead {
		f()
	}
	c.mu.Unlock()
	if dead {
		return errCut
	}
	time.Sleep(rand.N(c.latency / 2))
	return nil
}

func (c *clerk) die() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
}

func (*clerk) Shard(string) int { return 0 }

func (c *clerk) Run(_ context.Context, _ int, ops []*Op) {
	err := c.do(func() {
		c.server.now = time.Now().UnixMicro()
		for _, op := range ops {
			op.Reply = c.server.state(op.Key, op)
			c.calls++
		}
	})
	for _, op := range ops {
		op.Err = err
	}
}

func (c *clerk) Beat(_ context.Context, b *Beat) error {
	return c.do(func() { c.server.beat(time.Now().UnixMicro(), b) })
}

func (*clerk) Servers(context.Context) string { return "" }

// A waitingRoom is a store of slots over a keeper, for one claim at a time, as that of package
// remote is.
type waitingRoom struct {
	store.SlotStore

	k *Keeper
}

func (*waitingRoom) Shared() bool              { return true }
func (*waitingRoom) Observer() *store.Observer { return nil }

func (r *waitingRoom) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	c := claims[0]
	full := func(held int64, due int) (store.Grant, error) {
		return store.Grant{}, &store.FullError{Occupancy: store.Occupancy{Held: held, Limit: c.Limit}, Again: Again(due)}
	}
	if held, due, is := r.k.Full(c.Name, c.Key, c.Limit, c.Waiting > 0); is {
		return full(held, due)
	}
	a, err := r.k.Ask(ctx, time.Now().Add(time.Second), Request{c.Name, c.Key, c.Limit, c.Limit, c.Waiting})
	if err == nil && a.Hold == nil {
		return full(a.Held, a.Due)
	}
	return store.Grant{Hold: a.Hold, Occupancies: []store.Occupancy{{Held: a.Held, Limit: c.Limit}}}, err
}

// A team is the callers of a process who wait for slots, hold them, and come again.
type team struct {
	clerk   *clerk
	keeper  *Keeper
	granted int
	end     context.CancelFunc
}

// A shift is teams at the same slots.
type shift struct {
	t     *testing.T
	all   sync.WaitGroup
	limit int64
	hold  time.Duration

	mu    sync.Mutex
	held  map[*clerk]int64
	teams []*team
	*office
}

func newShift(t *testing.T, limit int64, hold time.Duration) *shift {
	return &shift{t: t, limit: limit, hold: hold, held: make(map[*clerk]int64),
		office: &office{server: newModel(), latency: time.Millisecond}}
}

// add adds a team of so many.
func (s *shift) add(callers int) *team {
	ctx, end := context.WithCancel(s.t.Context())
	m := &team{clerk: &clerk{office: s.office}, end: end}
	s.teams = append(s.teams, m)
	k := New(m.clerk, Config{TTL: simTTL, Timeout: simTimeout, Shards: 1})
	slots, err := core.NewSlots(&waitingRoom{k: k}, "ws", s.limit)
	if err != nil {
		s.t.Fatal(err)
	}
	for range callers {
		s.all.Go(func() {
			for ctx.Err() == nil {
				slot, err := slots.AcquireWait(ctx, "key", callers)
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				s.take(m)
				time.Sleep(s.hold)
				s.give(m)
				slot.Release()
			}
		})
	}
	m.keeper = k
	return m
}

func (s *shift) take(m *team) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.granted++
	s.held[m.clerk]++
	var n int64
	for _, held := range s.held {
		n += held
	}
	if n > s.limit {
		s.t.Errorf("%d of %d are held", n, s.limit)
	}
}

func (s *shift) give(m *team) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[m.clerk]--
}

// counts returns how many slots each team is granted within a time.
func (s *shift) counts(within time.Duration) (all []int) {
	read := func() (all []int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range s.teams {
			all = append(all, m.granted)
		}
		return all
	}
	before := read()
	time.Sleep(within)
	for i, n := range read() {
		all = append(all, n-before[i])
	}
	return all
}

func (s *shift) close() {
	for _, m := range s.teams {
		m.end()
	}
	s.all.Wait()
	for _, m := range s.teams {
		if err := m.keeper.Close(context.Background(), "ws"); err != nil && !m.clerk.dead {
			s.t.Error(err)
		}
	}
}

// Processes whose callers wait for the same slots are granted equal shares of them, however long
// they hold them, and nothing is left idle for long. Who has fewer callers than its share leaves
// the rest to others. Alone, a process is granted as much, with at most two calls for each slot.
func TestSharesOfThoseWhoWait(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		limit   int64
		callers []int
		hold    time.Duration
		shares  []int // in per cent
		busy    int   // of what would be granted if no slot were ever idle, in per cent
	}{
		{10, []int{50}, 10 * ms, []int{100}, 85},
		{10, []int{50, 50}, 10 * ms, []int{50, 50}, 85},
		{10, []int{50, 50}, 100 * ms, []int{50, 50}, 90},
		{10, []int{50, 50}, 500 * ms, []int{50, 50}, 90},
		{10, []int{10, 50}, 10 * ms, []int{50, 50}, 85},
		{10, []int{50, 5}, 10 * ms, []int{50, 50}, 85},
		{10, []int{50, 2}, 10 * ms, []int{80, 20}, 85},
		{10, []int{50, 50, 50}, 10 * ms, []int{33, 33, 33}, 80},
		{10, []int{50, 50, 50}, 500 * ms, []int{33, 33, 33}, 85},
		{1, []int{10, 10}, 10 * ms, []int{50, 50}, 30},
		{1, []int{10, 10}, 100 * ms, []int{50, 50}, 75},
		{2, []int{50, 50, 50, 50, 50}, 100 * ms, []int{20, 20, 20, 20, 20}, 75},
	} {
		t.Run(fmt.Sprintf("%d slots, held for %v, callers %v", c.limit, c.hold, c.callers), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newShift(t, c.limit, c.hold)
				for _, n := range c.callers {
					s.add(n)
					time.Sleep(s.hold / 3)
				}
				time.Sleep(3 * time.Second)
				calls := s.asked()
				counts := s.counts(20 * time.Second)
				calls = s.asked() - calls
				all := 0
				for _, n := range counts {
					all += n
				}
				for i, n := range counts {
					if got := 100 * n / all; got < c.shares[i]-2 || got > c.shares[i]+2 {
						t.Errorf("team %d has %d %% of %v, not %d", i, got, counts, c.shares[i])
					}
				}
				if most := int(20*time.Second/c.hold) * int(c.limit); 100*all < c.busy*most {
					t.Errorf("%d of %d were granted", all, most)
				}
				if alone := len(c.callers) == 1; alone && calls > 2*all { // a release and an acquire
					t.Errorf("%d calls for %d slots", calls, all)
				}
				if perSecond := (calls - 2*all) / 20 / len(c.callers); perSecond > 80 {
					t.Errorf("a team asks %d times a second in vain", perSecond)
				}
				s.close()
			})
		})
	}
}

// holding returns how many slots a team holds.
func (s *shift) holding(m *team) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[m.clerk]
}

// marks returns how many processes are marked as waiting.
func (s *shift) marks() (n int) {
	s.office.mu.Lock()
	defer s.office.mu.Unlock()
	for _, f := range s.server.keys["key"] {
		if f.Mark != (Mark{}) {
			n++
		}
	}
	return n
}

// What is kept for a process that waits is granted to others half a second after it has died, or
// has given up.
func TestNothingIsKeptForWhoWaitsNoMore(t *testing.T) {
	for name, leave := range map[string]func(*shift, *team){
		"dies":     func(_ *shift, m *team) { m.clerk.die() },
		"gives up": func(_ *shift, m *team) { m.end() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newShift(t, 10, 2*time.Second)
				works := s.add(20)
				time.Sleep(time.Second)
				waits := s.add(20)
				time.Sleep(450 * time.Millisecond)
				if n := s.marks(); n != 1 {
					t.Errorf("%d marks of one that waits", n)
				}
				leave(s, waits)
				time.Sleep(600 * time.Millisecond)
				if n := s.holding(works); n != 10 {
					t.Errorf("%d of 10 are held", n)
				}
				works.end()
				time.Sleep(5 * time.Second)
				if n := s.marks(); n > 0 && name != "dies" {
					t.Errorf("%d marks are left", n)
				}
				s.close()
			})
		})
	}
}

// What is kept for a process that waits is granted to callers that do not wait. Those who do have
// room for an equal share, and are told when to ask again; the first to be short of its share soon.
func TestWhoDoesNotWaitIsGrantedAllThereIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const limit = 5
		o := &office{server: newModel(), latency: time.Millisecond}
		k := New(&clerk{office: o}, Config{TTL: simTTL, Timeout: simTimeout, Shards: 1})
		now := time.Now().UnixMicro()
		o.server.keys["key"] = map[string]Field{"other": {"other", 0, 1, Mark{now + 100_000, now - 1, limit}}}
		ask := func(waiting int) Answer {
			a, err := k.Ask(t.Context(), time.Now().Add(time.Second), Request{"ws", "key", limit, limit, waiting})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		for _, c := range []struct {
			waiting int
			granted bool
			due     int
		}{
			{2, true, 0},
			{2, true, 0},  // two of five are its share
			{2, false, 2}, // the other waits for its turn for longer
			{0, true, 0},
			{0, true, 0},
			{1, false, 0}, // it has more than its share
			{0, true, 0},
			{0, false, 0},
		} {
			if a := ask(c.waiting); (a.Hold != nil) != c.granted || a.Due != c.due {
				t.Errorf("%+v: %+v", c, a)
			}
		}
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}

// A caller waits no longer than its context, also if it began the op. The slot that the op is granted then goes back.
func TestContextEndsTheWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		openNames(t, k, "ws")
		hold := make(chan struct{})
		s.locked(func() { s.hold = hold })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start := time.Now()
		h, _, err := k.Acquire(ctx, time.Now().Add(simTTL/2), "ws", "key", 1, 1)
		if took := time.Since(start); took > time.Millisecond || h != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v after %v", h, err, took)
		}
		s.locked(func() { s.hold = nil })
		close(hold)
		time.Sleep(simTTL)
		if h, _, err := k.Acquire(t.Context(), time.Now().Add(simTTL/2), "ws", "key", 1, 1); h == nil || err != nil {
			t.Errorf("the slot is not free: %v", err)
		}
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}

// Of several that share an op, those that have left take no slot from the others.
func TestWhoLeftNeedsNoSlot(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		openNames(t, k, "ws")
		s.locked(func() { s.server.state("key", &Op{ID: "other", Seq: 1, Held: 1, Limit: 9}) })
		acquire := func(ctx context.Context, limit int64) bool {
			h, _, err := k.Acquire(ctx, time.Now().Add(simTTL/2), "ws", "key", limit, limit)
			return h != nil && err == nil
		}
		first, second := make(chan struct{}), make(chan struct{})
		s.locked(func() { s.hold = first })
		go acquire(t.Context(), 1) // is refused, after the next two have come
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		go acquire(ctx, 2)
		synctest.Wait()
		granted := make(chan bool)
		go func() { granted <- acquire(t.Context(), 2) }()
		synctest.Wait()
		s.locked(func() { s.hold = second })
		close(first)
		synctest.Wait()
		leave()
		synctest.Wait()
		s.locked(func() { s.hold = nil })
		close(second)
		if !<-granted {
			t.Error("refused, though one of two slots is free")
		}
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}

// What was taken and given back while the server is away is forgotten: an outage needs no memory for each key.
func TestKeysOfAnOutageAreForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		openNames(t, k, "ws")
		s.set(true, nil)
		held, _ := k.Take("ws", "held", 9, 9, true)
		time.Sleep(2 * simTTL)
		const kept = 10 // of 10,000
		most := 0
		for i := range 10_000 {
			h, _ := k.Take("ws", strconv.Itoa(i), 1, 1, true)
			if i%1000 != 0 {
				h.Release()
			}
			k.mu.Lock()
			most = max(most, len(k.current.shards[0].all))
			k.mu.Unlock()
		}
		if most > 100 {
			t.Errorf("%d entries for %d keys", most, 10+1+kept)
		}
		s.set(false, nil)
		time.Sleep(simTTL)
		id := k.incarnation()
		s.locked(func() {
			for i := range kept {
				if key := strconv.Itoa(1000 * i); s.server.keys[key][id].Count != 1 {
					t.Errorf("the slot of %s is not stated", key)
				}
			}
		})
		held.Release()
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}
