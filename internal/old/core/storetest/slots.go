package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A SlotHarness gives the suite of [RunSlots] access to a store.
type SlotHarness struct {
	// New returns a function that makes stores which share their counts, like stores of several
	// processes, and at first hold nothing. For a store of one process, it returns the same store
	// each time. They have that observer, or none if it is nil. New may register cleanups with t.
	New func(t *testing.T, o *core.Observer) (join func() core.SlotStore)

	// Eventually waits until holds returns true, and fails the test if it never does. Nil
	// means that each store sees at once what the others do.
	Eventually func(t *testing.T, what string, holds func() bool)

	// Around runs the body of each test. Nil means to call the body.
	Around func(t *testing.T, body func(t *testing.T))
}

// RunSlots tests the contract of [store.SlotStore]. The death of a process and the loss of data by
// a server are left to each store's own tests.
func RunSlots(t *testing.T, h SlotHarness) {
	t.Helper()
	if h.Around == nil {
		h.Around = func(t *testing.T, body func(t *testing.T)) { t.Helper(); body(t) }
	}
	if h.Eventually == nil {
		h.Eventually = func(t *testing.T, what string, holds func() bool) {
			t.Helper()
			if !holds() {
				t.Fatal("never: " + what)
			}
		}
	}
	for _, test := range []struct {
		name string
		body func(*slotSuite)
	}{
		{"NoMoreThanTheLimit", (*slotSuite).limit},
		{"NoMoreUnderConcurrency", (*slotSuite).exact},
		{"SeveralAllOrNothing", (*slotSuite).allOrNothing},
		{"SeveralUnderConcurrency", (*slotSuite).exactForSeveral},
		{"CountsAsAListDoes", (*slotSuite).walk},
		{"ReleasedOnce", (*slotSuite).releasedOnce},
		{"SharedIsTrue", (*slotSuite).shared},
		{"LimitsDiffer", (*slotSuite).limits},
		{"KeysAndNamesAreKeptApart", (*slotSuite).names},
		{"CloseGivesBack", (*slotSuite).closing},
		{"CloseWhileOthersAcquire", (*slotSuite).closingAtWork},
		{"CancelledHoldsNothing", (*slotSuite).cancelled},
		{"OneMore", (*slotSuite).oneMore},
		{"NoticesAreHeard", (*slotSuite).notices},
		{"NoticesNobodyHears", (*slotSuite).silence},
		{"ReportsSlots", (*slotSuite).reports},
		{"ObserverThatPanicsHoldsNothing", (*slotSuite).panics},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Around(t, func(t *testing.T) {
				test.body(&slotSuite{T: t, SlotHarness: h, join: h.New(t, nil)})
			})
		})
	}
}

// A slotSuite is one running test.
type slotSuite struct {
	*testing.T
	SlotHarness

	join func() core.SlotStore
}

func (s *slotSuite) slots(store core.SlotStore, name string, limit int64) *core.Slots {
	s.Helper()
	slots, err := core.NewSlots(store, name, limit)
	if err != nil {
		s.Fatal(err)
	}
	return slots
}

func (s *slotSuite) acquire(slots *core.Slots, key string) *core.Slot {
	s.Helper()
	slot, err := slots.Acquire(s.Context(), key)
	if err != nil {
		s.Fatal(err)
	}
	return slot
}

// full fails the test unless the key is full.
func (s *slotSuite) full(slots *core.Slots, key string) core.FullError {
	s.Helper()
	_, err := slots.Acquire(s.Context(), key)
	var full *core.FullError
	if !errors.Is(err, core.ErrFull) || !errors.As(err, &full) {
		s.Fatalf("a full key gives %v", err)
	}
	return *full
}

func (s *slotSuite) count(slots *core.Slots, key string) int64 {
	s.Helper()
	n, err := slots.Count(s.Context(), key)
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// counts waits until the key holds that many slots.
func (s *slotSuite) counts(slots *core.Slots, key string, want int64) {
	s.Helper()
	s.Eventually(s.T, "the slots to be counted right", func() bool { return s.count(slots, key) == want })
}

func (s *slotSuite) limit() {
	a, b := s.slots(s.join(), "ws", 3), s.slots(s.join(), "ws", 3)
	var held []*core.Slot
	for i, slots := range []*core.Slots{a, b, a} {
		slot := s.acquire(slots, "key")
		want := core.Occupancy{Slots: "ws", Limit: 3, Held: int64(i + 1)}
		if o := slot.Occupancies(); len(o) != 1 || o[0] != want || slot.Source() != core.SourceStore {
			s.Errorf("slot %d was granted with %v by %v, want %v", i+1, o, slot.Source(), want)
		}
		held = append(held, slot)
	}
	for _, slots := range []*core.Slots{a, b} {
		want := core.Occupancy{Slots: "ws", Limit: 3, Held: 3}
		if full := s.full(slots, "key"); full.Occupancy != want || full.Claim != 0 {
			s.Errorf("refused with %+v, want %v", full, want)
		}
		s.counts(slots, "key", 3)
	}
	if n := s.count(a, "another"); n != 0 {
		s.Errorf("%d slots are held of an unused key", n)
	}
	held[0].Release() // of a
	s.counts(b, "key", 2)
	s.Eventually(s.T, "b to take what a has released", func() bool {
		slot, err := b.Acquire(s.Context(), "key")
		if err == nil {
			held = append(held, slot)
		}
		return err == nil
	})
	for _, slot := range held {
		slot.Release()
	}
	s.counts(a, "key", 0)
	s.counts(b, "key", 0)
}

func (s *slotSuite) exact() {
	const limit = 7
	var held, granted atomic.Int64
	var wg sync.WaitGroup
	fleet := []*core.Slots{s.slots(s.join(), "ws", limit), s.slots(s.join(), "ws", limit), s.slots(s.join(), "ws", limit)}
	for i := range 60 {
		slots := fleet[i%len(fleet)]
		wg.Go(func() {
			for range 20 {
				slot, err := slots.Acquire(s.Context(), "key")
				if errors.Is(err, core.ErrFull) {
					continue
				}
				if err != nil {
					s.Error(err)
					return
				}
				granted.Add(1)
				if n := held.Add(1); n > limit {
					s.Errorf("%d slots of %d are held", n, limit)
				}
				held.Add(-1)
				slot.Release()
			}
		})
	}
	wg.Wait()
	if granted.Load() < limit {
		s.Errorf("%d were granted", granted.Load())
	}
	for _, slots := range fleet {
		s.counts(slots, "key", 0)
	}
}

func (s *slotSuite) allOrNothing() {
	store := s.join()
	user, address, all := s.slots(store, "user", 1), s.slots(store, "address", 5), s.slots(store, "all", 2)
	claims := func(key string) []core.Claim {
		return []core.Claim{{Slots: address, Key: "campus"}, {Slots: user, Key: key}, {Slots: all}}
	}
	first, err := core.AcquireAll(s.Context(), claims("ann")...)
	if err != nil {
		s.Fatal(err)
	}
	want := []core.Occupancy{{Slots: "address", Limit: 5, Held: 1}, {Slots: "user", Limit: 1, Held: 1}, {Slots: "all", Limit: 2, Held: 1}}
	for i, o := range first.Occupancies() {
		if o != want[i] {
			s.Errorf("claim %d was granted with %v, want %v", i, o, want[i])
		}
	}
	counts := func(address_, ann, bob, all_ int64) {
		s.Helper()
		s.counts(address, "campus", address_)
		s.counts(user, "ann", ann)
		s.counts(user, "bob", bob)
		s.counts(all, "", all_)
	}
	var full *core.FullError
	if _, err := core.AcquireAll(s.Context(), claims("ann")...); !errors.As(err, &full) || full.Claim != 1 || full.Slots != "user" {
		s.Errorf("the second of ann: %+v, want the user's slots to refuse", err)
	}
	counts(1, 1, 0, 1)
	second, err := core.AcquireAll(s.Context(), claims("bob")...)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := core.AcquireAll(s.Context(), claims("cleo")...); !errors.As(err, &full) || full.Claim != 2 {
		s.Errorf("a third: %+v, want all slots to be taken", err)
	}
	counts(2, 1, 1, 2)
	first.Release()
	second.Release()
	counts(0, 0, 0, 0)
}

func (s *slotSuite) exactForSeveral() {
	const limit = 4
	var wg sync.WaitGroup
	var held atomic.Int64
	for range 2 {
		store := s.join()
		a, b := s.slots(store, "a", limit), s.slots(store, "b", limit+2)
		for i := range 20 {
			claims := []core.Claim{{Slots: a, Key: "x"}, {Slots: b, Key: "y"}}
			if i%2 == 0 {
				claims[0], claims[1] = claims[1], claims[0]
			}
			wg.Go(func() {
				for range 10 {
					slot, err := core.AcquireAll(s.Context(), claims...)
					if err != nil && !errors.Is(err, core.ErrFull) {
						s.Error(err)
						return
					}
					if err == nil {
						if n := held.Add(1); n > limit {
							s.Errorf("%d slots of %d are held", n, limit)
						}
						held.Add(-1)
						slot.Release()
					}
				}
			})
		}
	}
	wg.Wait()
	store := s.join()
	s.counts(s.slots(store, "a", limit), "x", 0)
	s.counts(s.slots(store, "b", limit), "y", 0)
}

// walk acquires and releases randomly, and compares the counts with a list of the slots.
func (s *slotSuite) walk() {
	const limit, keys = 4, 3
	rng := rand.New(rand.NewPCG(1, 2))
	fleet := []*core.Slots{s.slots(s.join(), "ws", limit), s.slots(s.join(), "ws", limit)}
	var held [keys][]*core.Slot
	name := func(k int) string { return string(rune('a' + k)) }
	for range 300 {
		k, slots := rng.IntN(keys), fleet[rng.IntN(len(fleet))]
		n := len(held[k])
		if n > 0 && rng.IntN(5) < 2 {
			i := rng.IntN(n)
			held[k][i].Release()
			held[k][i] = held[k][n-1]
			held[k] = held[k][:n-1]
			for _, slots := range fleet {
				s.counts(slots, name(k), int64(n-1))
			}
			continue
		}
		if n == limit {
			s.full(slots, name(k))
			continue
		}
		// A store may cache for a moment that the key was full.
		s.Eventually(s.T, "a free slot to be granted", func() bool {
			slot, err := slots.Acquire(s.Context(), name(k))
			if err != nil {
				if !errors.Is(err, core.ErrFull) {
					s.Fatal(err)
				}
				return false
			}
			if o := slot.Occupancies()[0]; o.Held != int64(n+1) || o.Remaining() != int64(limit-n-1) {
				s.Errorf("%v after %d", o, n)
			}
			held[k] = append(held[k], slot)
			return true
		})
	}
}

// shared checks that a store which shares its counts with another says so.
func (s *slotSuite) shared() {
	a, b := s.join(), s.join()
	if a.Shared() != (a != b) || b.Shared() != a.Shared() {
		s.Errorf("Shared is %v and %v of stores of which it is %v that they are the same", a.Shared(), b.Shared(), a == b)
	}
	if slot := s.acquire(s.slots(a, "ws", 1), "key"); !a.Shared() && slot.Lost() != nil {
		s.Error("a store that is not shared may lose slots")
	}
}

func (s *slotSuite) releasedOnce() {
	slots := s.slots(s.join(), "ws", 2)
	first := s.acquire(slots, "key")
	s.acquire(slots, "key")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(first.Release)
	}
	wg.Wait()
	s.acquire(slots, "key")
	s.full(slots, "key")
	s.counts(slots, "key", 2)
}

func (s *slotSuite) limits() {
	store := s.join()
	slots := s.slots(store, "plan", 1)
	pro, err := slots.With(3)
	if err != nil {
		s.Fatal(err)
	}
	s.acquire(slots, "key")
	s.full(slots, "key")
	s.acquire(pro, "key")
	s.acquire(pro, "key")
	if full := s.full(pro, "key"); full.Held != 3 || full.Limit != 3 {
		s.Errorf("%+v", full)
	}
	if full := s.full(slots, "key"); full.Held != 3 || full.Limit != 1 {
		s.Errorf("the smaller plan, of which more is held: %+v", full)
	}
	s.full(s.slots(store, "none", 0), "key")

	endless := s.slots(store, "endless", core.NoLimit)
	for range 100 {
		s.acquire(endless, "key")
	}
	s.counts(endless, "key", 100)
}

func (s *slotSuite) names() {
	store := s.join()
	for _, name := range []string{"a", "a:b", "b", "a/b", "{a}", "~"} {
		slots := s.slots(store, name, 1)
		for _, key := range []string{
			"", "a", "b", "a:b", ":a", "{", "}", "{a}", "\x00", "\xff\xfe", "~7b", strings.Repeat("k", 10_000), strings.Repeat("k", 10_001),
		} {
			s.acquire(slots, key)
			s.full(slots, key)
		}
	}
	// Names of slots and of limiters are different things.
	if limits, ok := store.(core.Store); ok {
		l, err := core.New(limits, "a", core.TokenBucket(core.PerHour(1), 1))
		if err != nil {
			s.Fatal(err)
		}
		if d, err := l.Allow(s.Context(), "a"); err != nil || !d.Allowed {
			s.Errorf("a limiter with the name of slots: %v %v", d, err)
		}
	}
}

func (s *slotSuite) closing() {
	store := s.join()
	ws, other := s.slots(store, "ws", 2), s.slots(store, "other", 1)
	first := s.acquire(ws, "key")
	s.acquire(ws, "key")
	s.acquire(other, "key")
	for range 2 {
		if err := ws.Close(s.Context()); err != nil {
			s.Fatal(err)
		}
	}
	if _, err := ws.Acquire(s.Context(), "key"); !errors.Is(err, core.ErrClosed) {
		s.Errorf("closed slots give %v", err)
	}
	elsewhere := s.slots(s.join(), "ws", 2)
	s.counts(elsewhere, "key", 0)
	s.full(other, "key") // another name's stay

	// Slots of the same name, made again, and a release of an earlier one.
	again := s.slots(store, "ws", 2)
	s.acquire(again, "key")
	s.acquire(again, "key")
	first.Release()
	s.full(again, "key")
	s.full(elsewhere, "key")
	if err := again.Close(s.Context()); err != nil {
		s.Fatal(err)
	}
	if err := other.Close(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.counts(elsewhere, "key", 0)
	s.counts(s.slots(s.join(), "other", 1), "key", 0)
}

func (s *slotSuite) closingAtWork() {
	store := s.join()
	ws := s.slots(store, "ws", core.NoLimit)
	begun := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for {
				switch _, err := ws.Acquire(s.Context(), "key"); {
				case errors.Is(err, core.ErrClosed):
					return
				case err != nil:
					s.Error(err)
					return
				}
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	<-begun
	if err := ws.Close(s.Context()); err != nil {
		s.Error(err)
	}
	wg.Wait()
	s.counts(s.slots(s.join(), "ws", 1), "key", 0)
}

// cancelled: a cancelled call holds nothing, whatever the store was doing.
func (s *slotSuite) cancelled() {
	slots := s.slots(s.join(), "ws", 3)
	for range 20 {
		ctx, cancel := context.WithCancel(s.Context())
		var wg sync.WaitGroup
		wg.Go(cancel)
		slot, err := slots.Acquire(ctx, "key")
		wg.Wait()
		if err == nil {
			slot.Release()
		}
	}
	s.counts(slots, "key", 0)
	s.counts(s.slots(s.join(), "ws", 3), "key", 0)
}

// A listener notes what it hears.
type listener struct {
	mu    sync.Mutex
	heard []store.Heard
	then  int // how often what waits for an answer was done
}

func (l *listener) listen(answer string) func(store.Heard) store.Answer {
	return func(h store.Heard) store.Answer {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.heard = append(l.heard, h)
		return store.Answer{Text: answer, Then: l.done}
	}
}

func (l *listener) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.then++
}

// owed returns how many answers nothing was done for.
func (l *listener) owed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.heard) - l.then
}

func (l *listener) all() []store.Heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.heard)
}

// noticers returns two stores, or skips the test if they send no notices.
func (s *slotSuite) noticers() (a, b store.Noticer) {
	s.Helper()
	a, ok := s.join().(store.Noticer)
	b, _ = s.join().(store.Noticer)
	if !ok {
		s.Skip("the store is no store.Noticer")
	}
	return a, b
}

// announce announces a notice, and returns the answers in order.
func (s *slotSuite) announce(ctx context.Context, from store.Noticer, n store.Notice) (answers []string, silent []int64) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	silent, err := from.Announce(ctx, n, func(answer string) bool {
		answers = append(answers, answer)
		return false
	})
	if err != nil {
		s.Error(err)
	}
	slices.Sort(answers)
	return answers, silent
}

// Whoever holds slots of a key hears notices about it, once, and is answered for.
func (s *slotSuite) notices() {
	a, b := s.noticers()
	const key = "a key \xff\n of {bytes}"
	slots := []*core.Slots{s.slots(a, "ws", 5), s.slots(b, "ws", 5)}
	ears := make([]listener, 2)
	for i, one := range []store.Noticer{a, b} {
		defer s.acquire(slots[i], key).Release()
		defer one.Listen("ws", ears[i].listen(string(rune('a'+i))))()
		defer one.Listen("other", func(store.Heard) store.Answer {
			s.Error("a notice about other slots is heard")
			return store.Answer{}
		})()
	}
	n := store.Notice{Name: "ws", Key: key, Text: "text \xfe\n"}
	answers, silent := s.announce(s.Context(), a, n)
	if strings.Join(answers, "") != "ab" || len(silent) > 0 {
		s.Errorf("answers %q, %d silent", answers, len(silent))
	}
	for i := range ears {
		if all := ears[i].all(); len(all) != 1 || all[0].Topic != a.Topic("ws", key) || all[0].Text != n.Text || all[0].Age < 0 {
			s.Errorf("store %d heard %q", i, all)
		}
	}
	if a.Topic("ws", key) != b.Topic("ws", key) || a.Topic("ws", key) == a.Topic("ws", "another") {
		s.Error("topics do not stand for keys")
	}
	// One answer may be enough. This process is the first.
	asked := 0
	if _, err := b.Announce(s.Context(), n, func(string) bool { asked++; return true }); err != nil || asked != 1 {
		s.Errorf("%d answers were passed on after one was enough: %v", asked, err)
	}
	// Who holds nothing of the key hears what is for all.
	n.Key, n.All = "nobody's", true
	s.announce(s.Context(), a, n)
	s.Eventually(s.T, "a notice to be heard by all", func() bool {
		all := ears[1].all()
		return all[len(all)-1].Topic == b.Topic("ws", "nobody's")
	})
	// Each answer gets its due, whether anybody wanted it or not.
	for i := range ears {
		s.Eventually(s.T, "what waits for the answers", func() bool { return ears[i].owed() == 0 })
	}
}

// Nobody hears a notice who has stopped listening; who holds slots is silent then.
func (s *slotSuite) silence() {
	a, b := s.noticers()
	if !a.Shared() {
		return
	}
	slots := s.slots(b, "ws", 5)
	defer s.acquire(slots, "key").Release()
	last := s.acquire(slots, "key")
	var ear listener
	stop := b.Listen("ws", ear.listen("answer"))
	stop()
	stop()
	s.counts(s.slots(a, "ws", 5), "key", 2)
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	if answers, silent := s.announce(ctx, a, store.Notice{Name: "ws", Key: "key"}); len(answers) > 0 || len(silent) != 1 || silent[0] != 2 {
		s.Errorf("answers %q, silent %d", answers, silent)
	}
	// Who has released everything is not waited for.
	last.Release()
	s.counts(s.slots(a, "ws", 5), "key", 1)
	if err := slots.Close(s.Context()); err != nil {
		s.Fatal(err)
	}
	if answers, silent := s.announce(s.Context(), a, store.Notice{Name: "ws", Key: "key"}); len(answers) > 0 || len(silent) > 0 {
		s.Errorf("answers %q, silent %d after the end", answers, silent)
	}
}

// One slot above the limit is granted to those who ask for one more, at a time, and none under
// a limit of 0. Others see that the key is full.
func (s *slotSuite) oneMore() {
	a, b := s.slots(s.join(), "ws", 2), s.slots(s.join(), "ws", 2)
	more := func(slots *core.Slots) (*core.Slot, error) {
		return core.AcquireAll(s.Context(), core.Claim{Slots: slots, Key: "key", OneMore: true})
	}
	var held []*core.Slot
	for i, slots := range []*core.Slots{a, b, b} {
		slot, err := more(slots)
		if err != nil {
			s.Fatal(i, err)
		}
		if o := slot.Occupancies()[0]; o.Held != int64(i+1) || o.Limit != 2 {
			s.Errorf("slot %d was granted with %v", i+1, o)
		}
		held = append(held, slot)
	}
	for _, slots := range []*core.Slots{a, b} {
		if _, err := more(slots); !errors.Is(err, core.ErrFull) {
			s.Errorf("two above the limit: %v", err)
		}
	}
	held[0].Release()
	s.counts(b, "key", 2)
	s.full(a, "key")
	held[1].Release()
	s.counts(a, "key", 1)
	s.Eventually(s.T, "a slot below the limit", func() bool {
		slot, err := a.Acquire(s.Context(), "key")
		if err == nil {
			held[0] = slot
		}
		return err == nil
	})
	s.full(b, "key")
	held[0].Release()
	held[2].Release()
	if none, err := a.With(0); err != nil {
		s.Fatal(err)
	} else if _, err := more(none); !errors.Is(err, core.ErrFull) {
		s.Errorf("under a limit of 0: %v", err)
	}
}
