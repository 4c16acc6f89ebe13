package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
)

// A guest is a socket that notes what is asked of it.
type guest struct {
	Member

	since time.Time

	mu   sync.Mutex
	told []string
}

func (g *guest) tell(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = append(g.told, what)
}

func (g *guest) heard() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.told
}

func (g *guest) Since() time.Time          { return g.since }
func (*guest) Context() context.Context    { return context.Background() }
func (*guest) Ended() bool                 { return false }
func (g *guest) Close(_ int, why string)   { g.tell("closed " + why) }
func (g *guest) Evicted(_ int, why string) { g.tell("evicted " + why) }
func (g *guest) Surplus()                  { g.tell("surplus") }
func (g *guest) Lost()                     { g.tell("lost") }

// A world is a fleet with one board, on a store of its own.
type world struct {
	*Fleet

	slots *core.Slots
}

func newWorld(t *testing.T, s core.SlotStore, c Config) world {
	t.Helper()
	slots, err := core.NewSlots(s, "user", 1000)
	if err != nil {
		t.Fatal(err)
	}
	c.Boards = []*core.Slots{slots}
	return world{New(c), slots}
}

// begins starts a handshake of a key.
func (w world) begins(key string) *Handshake {
	h := w.Begin()
	w.Claim(&h, []core.Claim{{Slots: w.slots, Key: key}})
	return &h
}

// holds returns a socket for a handshake, which is not yet added.
func (w world) holds(t *testing.T, h *Handshake) *guest {
	t.Helper()
	slot, err := w.slots.Acquire(t.Context(), h.place.topics[0].Reveal())
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{since: time.Now()}
	g.Begin(g, slot, h, false)
	return g
}

// comes adds a socket.
func (w world) comes(t *testing.T, key string) *guest {
	t.Helper()
	h := w.begins(key)
	defer w.End(h)
	g := w.holds(t, h)
	if !w.Add(&g.Member) {
		t.Fatal("not added")
	}
	return g
}

func (w world) leaves(g *guest) {
	g.Slot().Release()
	w.Remove(&g.Member)
}

func newStore() *memstore.Store { return memstore.New(memstore.Config{}) }

// A ban is kept only as long as a handshake may be meant, and then the last of a key.
func TestBansAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newStore(), Config{})
		ban := func(keys ...string) {
			for _, key := range keys {
				if _, err := w.CloseAll(t.Context(), "user", key, 4001, "banned"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		check := func(want int) {
			t.Helper()
			if n := w.Bans(); n != want {
				t.Errorf("%d bans, not %d", n, want)
			}
		}
		first := w.begins("x")
		ban("a", "b", "a")
		second := w.begins("x")
		ban("b", "c")
		w.End(second)
		check(3)
		third := w.begins("x")
		ban("d")
		w.End(first)
		check(1)
		w.End(third)
		check(0)
		ban("e")
		check(0)
	})
}

// Age is counted as of the notice, however late a server hears of it.
func TestOldestIsTheOldestWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newStore()
		one, two := newWorld(t, shared, Config{}), newWorld(t, shared, Config{})
		one.comes(t, "ann")
		time.Sleep(time.Second)
		two.comes(t, "ann")
		time.Sleep(time.Minute)
		early := one.offer(one.boards[0], store.Heard{Topic: "ann"})
		time.Sleep(3 * time.Second)
		late := two.offer(two.boards[0], store.Heard{Topic: "ann", Age: 3 * time.Second})
		if early.Age-late.Age != 1_000_000 {
			t.Errorf("%v, %v", early, late)
		}
		if a := two.find(two.boards[0], store.Heard{Topic: "ann", Age: 3 * time.Second}, order{}); a.Open != 1 || a.Peers[0].Age != 60_000 {
			t.Errorf("%+v", a)
		}
		if a := two.find(two.boards[0], store.Heard{Topic: "ann", Age: time.Hour}, order{}); a.Open != 0 {
			t.Errorf("%d are meant that did not exist", a.Open)
		}
	})
}

// When the last socket has left, nothing is kept and nothing heard.
func TestNothingIsKept(t *testing.T) {
	w := newWorld(t, newStore(), Config{TellsLost: true, Shed: true})
	for range 2 {
		a, b := w.comes(t, "ann"), w.comes(t, "ann")
		if !w.Listens() || w.Len() != 2 || len(w.boards[0].all) != 1 {
			t.Errorf("%d sockets, listens: %v", w.Len(), w.Listens())
		}
		w.leaves(b)
		w.leaves(a)
		if w.Listens() || w.Len() != 0 || len(w.boards[0].all) != 0 || len(w.losses) != 0 || w.surplus.done != nil {
			t.Errorf("%d sockets, listens: %v, %v, %v", w.Len(), w.Listens(), w.boards[0].all, w.losses)
		}
	}
}

// A fleet listens while there is a socket or a handshake, whichever ends last.
func TestRestsWithoutSockets(t *testing.T) {
	w := newWorld(t, newStore(), Config{})
	check := func(when string, want bool) {
		t.Helper()
		if w.Listens() != want {
			t.Errorf("%s: listens: %v", when, !want)
		}
	}
	check("at first", false)
	refused, other := w.begins("ann"), w.begins("bob")
	w.End(refused)
	check("a handshake is left", true)
	w.End(other)
	check("all were refused", false)

	g := w.comes(t, "ann")
	check("a socket is left", true)
	refused = w.begins("ann")
	w.leaves(g)
	check("the last socket has ended, a handshake is left", true)
	w.End(refused)
	check("it was refused", false)
}

// together calls functions at the same time, and waits for them.
func together(all ...func()) {
	var ready, done sync.WaitGroup
	ready.Add(len(all))
	for _, f := range all {
		done.Go(func() {
			ready.Done()
			ready.Wait()
			f()
		})
	}
	done.Wait()
}

const (
	rounds = 2000
	crowd  = 8 // sockets that come at the same time
)

// No socket slips past Drain: what was admitted is there when Drain returns, and when all have left
// the fleet is empty.
func TestAddAgainstDrain(t *testing.T) {
	refused := 0
	for range rounds {
		w := newWorld(t, newStore(), Config{})
		var found []*Member
		var added [crowd]bool
		comes := []func(){func() {
			w.Drain()
			found = w.All()
		}}
		for i := range crowd {
			g := w.holds(t, w.begins("ann"))
			comes = append(comes, func() { added[i] = w.Add(&g.Member) })
		}
		together(comes...)
		n := 0
		for _, yes := range added {
			if yes {
				n++
			}
		}
		if refused += crowd - n; len(found) != n {
			t.Fatalf("%d sockets were found, and %d admitted", len(found), n)
		}
		for _, m := range found {
			w.Remove(m)
		}
		<-w.Empty()
	}
	if refused == 0 || refused == rounds*crowd {
		t.Errorf("%d of %d were refused: nothing happened at the same time", refused, rounds*crowd)
	}
}

// No socket whose handshake began before slips past CloseAll, and each is closed, once.
func TestAddAgainstCloseAll(t *testing.T) {
	found := 0
	for range rounds {
		w := newWorld(t, newStore(), Config{})
		var shakes [crowd]*Handshake
		var guests [crowd]*guest
		comes := []func(){func() {
			p, err := w.CloseAll(t.Context(), "user", "ann", 4001, "banned")
			if found += p.Open; err != nil {
				t.Error(err)
			}
		}}
		for i := range crowd {
			shakes[i] = w.begins("ann")
			guests[i] = w.holds(t, shakes[i])
			comes = append(comes, func() { w.Add(&guests[i].Member) })
		}
		together(comes...)
		for i, g := range guests {
			if told := g.heard(); len(told) != 1 || told[0] != "closed banned" {
				t.Fatalf("socket %d heard %v", i, told)
			}
			w.End(shakes[i])
		}
		if w.Bans() != 0 {
			t.Fatal("a ban is kept")
		}
	}
	if found == 0 || found == rounds*crowd {
		t.Errorf("%d of %d were found: nothing happened at the same time", found, rounds*crowd)
	}
}

// Of many that ask for the place of one socket, one gets it, also in shadow mode, where the socket
// stays. The socket may be found too many at the same time: if that is known first, nobody gets its place.
// Its slot is released once, and is offered to nobody.
func TestSurplusAgainstEviction(t *testing.T) {
	for i := range rounds {
		s := &shedding{Store: newStore()}
		w := newWorld(t, s, Config{ObserveOnly: i%2 == 0})
		for range 50 { // to be looked through
			w.comes(t, "ann")
		}
		g := w.comes(t, "ann")
		var got [crowd]func()
		all := []func(){func() { w.surplus.shed(&g.Member) }}
		for i := range crowd {
			all = append(all, func() { got[i] = w.evict(w.boards[0], "ann", order{Evicts: offer{Number: 51}, Reason: "now"}) })
		}
		together(all...)
		evictions := 0
		for _, free := range got {
			if free != nil {
				evictions++
				free()
			}
		}
		if told := g.heard(); evictions > 1 || s.released.Load() != 1 || len(told) != 1+evictions {
			t.Fatalf("%d evictions, %d releases, %v", evictions, s.released.Load(), told)
		}
		if held, err := w.slots.Count(t.Context(), "ann"); held != 50 || err != nil {
			t.Fatal(held, err)
		}
		w.Settled = 0
		if again := w.offer(w.boards[0], store.Heard{Topic: "ann"}); again.Number != 1 {
			t.Fatalf("socket %d is offered", again.Number)
		}
	}
}

// Who has given up his slot, and is still open, is offered to nobody and evicted for nobody: that would
// free none.
func TestSlotlessAreNotOffered(t *testing.T) {
	for name, gives := range map[string]func(w world, g *guest){
		"shed": func(w world, g *guest) { w.surplus.shed(&g.Member) },
		"took no place": func(w world, g *guest) {
			one := core.Must(w.slots.With(1))
			g.place.evicts = &eviction{0, core.Claim{Slots: one, Key: "ann"}, order{Do: doEvict, Evicts: offer{Guard: "gone"}}}
			w.takePlace(&g.Member)
		},
		"ends": func(w world, g *guest) { w.Release(&g.Member) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &shedding{Store: newStore()}, Config{ObserveOnly: true})
			w.Settled = 0
			first, _ := w.comes(t, "ann"), w.comes(t, "ann")
			gives(w, first)
			if held, err := w.slots.Count(t.Context(), "ann"); held != 1 || err != nil {
				t.Fatal(held, err)
			}
			if o := w.offer(w.boards[0], store.Heard{Topic: "ann"}); o.Number != 2 {
				t.Errorf("socket %d is offered", o.Number)
			}
			if w.evict(w.boards[0], "ann", order{Evicts: offer{Number: 1}}) != nil {
				t.Error("it is evicted")
			}
		})
	}
}

// CloseAll finds a socket that is being evicted, whose server's reply may still be under way. Nobody else
// is offered it.
func TestCloseAllFindsWhoIsBeingEvicted(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		w := newWorld(t, newStore(), Config{ObserveOnly: shadow})
		w.Settled = 0
		first, _ := w.comes(t, "ann"), w.comes(t, "ann")
		free := w.evict(w.boards[0], "ann", order{Evicts: offer{Number: 1}, Reason: "now"})
		if p, err := w.CloseAll(t.Context(), "user", "ann", 4001, "banned"); err != nil || p.Open != 2 {
			t.Errorf("%d are closed, %v", p.Open, err)
		}
		if told := first.heard(); len(told) != 1 || told[0] != "closed banned" {
			t.Errorf("the one that is being evicted heard %v", told)
		}
		if o := w.offer(w.boards[0], store.Heard{Topic: "ann"}); o.Number != 2 {
			t.Errorf("socket %d is offered", o.Number)
		}
		free()
		w.Remove(&first.Member)
		if n := w.boards[0].all["ann"].Len(); n != 1 {
			t.Errorf("%d are on the board", n)
		}
	}
}

// What is suspected when nobody looks is looked at: also what comes when a look ends, or is evicted
// meanwhile. No suspicion is lost, and none is left when the fleet drains.
func TestSuspectAgainstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shedding{Store: newStore()}
		w := newWorld(t, s, Config{Shed: true})
		var all []*guest
		for range 50 {
			g := w.comes(t, "ann")
			all = append(all, g)
			w.mu.Lock()
			w.surplus.suspect(&g.Member)
			w.mu.Unlock()
			time.Sleep(surplusDelay / 3)
		}
		time.Sleep(time.Hour)
		for i, g := range all {
			if told := g.heard(); len(told) != 1 {
				t.Errorf("socket %d heard %v", i, told)
			}
		}
		w.mu.Lock()
		for _, g := range all {
			w.surplus.suspect(&g.Member)
		}
		w.mu.Unlock()
		w.Drain()
		synctest.Wait()
		if w.surplus.looking || len(all[0].heard()) > 1 {
			t.Error("somebody looks while the fleet drains")
		}
		for _, g := range all {
			w.Remove(&g.Member)
		}
	})
}

// While the store is away, only sockets that are open are kept to be looked at, however many come and go.
func TestEndedAreNotSuspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shedding{Store: newStore(), away: true}
		w := newWorld(t, s, Config{Shed: true})
		stays := w.comes(t, "ann")
		most := 0
		for i := range 1000 {
			g := w.comes(t, "ann")
			time.Sleep(time.Duration(i) * time.Millisecond) // also while the goroutine looks
			w.leaves(g)
			w.mu.Lock()
			most = max(most, w.surplus.suspects.Len())
			w.mu.Unlock()
		}
		if most > 1 {
			t.Errorf("%d are suspected, and 1 is open", most)
		}
		s.back()
		time.Sleep(time.Minute)
		if told := stays.heard(); len(told) != 1 {
			t.Errorf("the socket that stays heard %v", told)
		}
		w.leaves(stays)
	})
}

// A shedding store takes every slot for one too many, and counts those that are released. While it is
// away, slots are granted without it.
type shedding struct {
	*memstore.Store

	released atomic.Int64

	mu   sync.Mutex
	away bool
}

func (s *shedding) isAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

func (s *shedding) back() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}

func (s *shedding) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	g, err := s.Store.AcquireSlots(ctx, claims)
	if err == nil {
		g.Hold = &shedHold{g.Hold, s}
		if s.isAway() {
			g.Source = store.SourceLocal
		}
	}
	return g, err
}

type shedHold struct {
	store.Hold

	s *shedding
}

func (h *shedHold) Release() {
	h.s.released.Add(1)
	h.Hold.Release()
}

func (h *shedHold) Shed(context.Context) (bool, error) {
	if h.s.isAway() {
		return false, core.ErrUnavailable
	}
	h.Release()
	return true, nil
}
