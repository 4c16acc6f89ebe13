package keeper

import (
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

const simBeat = simTTL / beatsInTTL

// A tester is a keeper on a stage, for one name.
type tester struct {
	*Keeper
	*stage

	t *testing.T
}

// alone runs a test with one keeper.
func alone(t *testing.T, f func(k *tester)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		s, k := newStage()
		f(&tester{k, s, t})
		s.set(false, nil)
		s.locked(func() { s.unsent = false })
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}

// acquire returns nil if it gets no slot within the time.
func (k *tester) acquire(key string, limit int64, within time.Duration) *Hold {
	h, _, _ := k.Acquire(k.t.Context(), time.Now().Add(within), "ws", key, limit)
	return h
}

// acquires takes a slot that is there.
func (k *tester) acquires(key string, limit int64) *Hold {
	k.t.Helper()
	h := k.acquire(key, limit, simTTL)
	if h == nil {
		k.t.Fatalf("no slot of %s", key)
	}
	return h
}

// stated returns what the server has of the key, by incarnation.
func (k *tester) stated(key string) (counts map[string]int64) {
	counts = make(map[string]int64)
	k.locked(func() {
		for id, f := range k.server.keys[key] {
			counts[id] = f.Count
		}
	})
	return counts
}

func (k *tester) expect(what string, counts, want map[string]int64) {
	k.t.Helper()
	if !maps.Equal(counts, want) {
		k.t.Errorf("%s: the server has %v, want %v", what, counts, want)
	}
}

// An incarnation is buried only after all that it has stated has been moved to the next:
// before that, others would drop what is still held.
func TestMovesBeforeItBuries(t *testing.T) {
	alone(t, func(k *tester) {
		k.acquires("first", 1)
		k.acquires("second", 1)
		time.Sleep(simTTL)
		old := k.incarnation()
		k.locked(func() {
			delete(k.server.scores, old)
			k.unsent = true
		})
		time.Sleep(2 * simTTL)
		id := k.incarnation()
		if id == old {
			t.Fatal("no other incarnation")
		}
		if n := k.tombstones(old); n > 0 {
			t.Errorf("%d tombstones of what has not moved", n)
		}
		k.expect("before", k.stated("first"), map[string]int64{old: 1})
		k.locked(func() { k.unsent = false })
		time.Sleep(simTTL)
		if n := k.tombstones(old); n != 1 {
			t.Errorf("%d tombstones of what has moved", n)
		}
		for _, key := range []string{"first", "second"} {
			k.expect("after", k.stated(key), map[string]int64{id: 1})
		}
	})
}

// Nothing of the dead is dropped if the list of them is older than a beat, or was
// replaced by one that does not have them.
func TestDeadAreForgotten(t *testing.T) {
	alone(t, func(k *tester) {
		const limit = 1
		others := map[string]int64{"other": limit}
		for _, key := range []string{"late", "replaced", "dead"} {
			k.server.state(key, &Op{ID: "other", Seq: 1, Held: limit})
		}
		k.acquires("registers", 1)
		dead := func(dead bool) {
			k.locked(func() {
				if k.server.scores["other"] = 1 << 60; dead {
					k.server.scores["other"] = -k.server.scores["#clock"]
				}
			})
		}
		dead(true)
		time.Sleep(simTTL)
		silent := make(chan struct{})
		k.set(false, silent)
		time.Sleep(simBeat * 3 / 2)
		if k.acquire("late", limit, simBeat/2) != nil {
			t.Error("granted what the dead of an old list hold")
		}
		k.expect("late", k.stated("late"), others)
		dead(false)
		k.set(false, nil)
		close(silent)
		time.Sleep(simTTL)
		if k.acquire("replaced", limit, simBeat) != nil {
			t.Error("granted what the living hold")
		}
		k.expect("replaced", k.stated("replaced"), others)
		dead(true)
		time.Sleep(simTTL)
		k.acquires("dead", limit)
		k.expect("dead", k.stated("dead"), map[string]int64{k.incarnation(): limit})
	})
}

// A process that was silent for more than a TTL takes another incarnation if the server
// may have forgotten that the old one was declared dead: others may still know, and
// drop it.
func TestSilenceBeforeALoss(t *testing.T) {
	for _, test := range []struct {
		name    string
		silence time.Duration
		lose    func(k *tester, earlier *model)
		renewed bool
	}{
		{"the clock has gone back", simTTL * 3 / 2, func(k *tester, earlier *model) { k.server = earlier }, true},
		{"the clock has gone back, a short silence", simBeat, func(k *tester, earlier *model) { k.server = earlier }, false},
		{"other servers", simTTL * 3 / 2, func(k *tester, _ *model) { k.servers = "two" }, true},
		{"other servers, a short silence", simBeat, func(k *tester, _ *model) { k.servers = "two" }, false},
		{"the same servers", simTTL * 3 / 2, func(*tester, *model) {}, false},
		{"other servers, known later", simTTL * 3 / 2, func(k *tester, _ *model) {
			k.servers = ""
			time.AfterFunc(2*simBeat, func() { k.locked(func() { k.servers = "two" }) })
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			alone(t, func(k *tester) {
				h := k.acquires("key", 1)
				time.Sleep(2*simTTL + simBeat/2) // between two beats
				var earlier *model
				k.locked(func() { earlier = k.server.clone() })
				time.Sleep(simBeat)
				id := k.incarnation()
				k.set(true, nil)
				time.Sleep(test.silence)
				k.locked(func() { test.lose(k, earlier) })
				k.set(false, nil)
				time.Sleep(2 * simTTL)
				if renewed := k.incarnation() != id; renewed != test.renewed {
					t.Errorf("another incarnation: %v, want %v", renewed, test.renewed)
				}
				if n := k.tombstones(id); (n > 0) != test.renewed {
					t.Errorf("%d tombstones of the first", n)
				}
				k.expect("in the end", k.stated("key"), map[string]int64{k.incarnation(): 1})
				select {
				case <-h.Lost():
					t.Error("the slot was lost")
				default:
				}
			})
		})
	}
}

// What was granted to an incarnation that is dead by now does not count: others have
// dropped it.
func TestGrantsOfTheDead(t *testing.T) {
	alone(t, func(k *tester) {
		const limit = 1
		k.acquires("registers", 1)
		time.Sleep(simTTL)
		id := k.incarnation()
		late := make(chan struct{})
		k.locked(func() { k.late = late })
		got := make(chan *Hold)
		go func() { got <- k.acquire("key", limit, time.Hour) }()
		synctest.Wait()
		k.expect("on the way", k.stated("key"), map[string]int64{id: 1})
		k.locked(func() {
			k.server.scores[id] = -k.server.scores["#clock"]
			k.server.scores["other"] = 1 << 60
			r := k.server.state("key", &Op{ID: "other", Seq: 1, Want: 1, Limit: limit, Drop: []string{id}})
			if r.Granted != 1 {
				t.Errorf("the other has got %d", r.Granted)
			}
		})
		time.Sleep(simTTL)
		if k.incarnation() == id {
			t.Fatal("no other incarnation")
		}
		k.locked(func() { k.late = nil })
		close(late)
		if <-got != nil {
			t.Error("granted what another holds")
		}
		counts := k.stated("key")
		if counts[k.incarnation()] == 0 { // a zero may be kept
			delete(counts, k.incarnation())
		}
		k.expect("in the end", counts, map[string]int64{"other": 1})
	})
}

// What could not be sent is stated as soon as something can be sent again, even if
// nothing of it has changed: it was to find out whether the server has lost it.
func TestUnsentIsStatedLater(t *testing.T) {
	const keys = 100 // the sweep does not reach them all meanwhile
	alone(t, func(k *tester) {
		for i := range keys {
			k.acquires(strconv.Itoa(i), 1)
		}
		k.locked(func() { k.unsent = true })
		time.Sleep(4 * simBeat) // all have been stated twice, were it not for that
		k.locked(func() {
			k.unsent = false
			for i := keys / 2; i < keys; i++ {
				delete(k.server.keys, strconv.Itoa(i))
			}
		})
		time.Sleep(simBeat)
		for i := range keys {
			k.expect(strconv.Itoa(i), k.stated(strconv.Itoa(i)), map[string]int64{k.incarnation(): 1})
		}
	})
}
