package keeper

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
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
	bubble.Test(t, func(t *testing.T) {
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
	h, _, _ := k.Acquire(k.t.Context(), time.Now().Add(within), "ws", key, limit, limit)
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

// Nothing of the dead is dropped if the list of them is older than two beats, or was
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
		time.Sleep(simBeat * 5 / 2)
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

// What the dead hold is granted although the answer to the last beat is missing: an earlier
// one has told of them.
func TestDeadAreKnownWithoutABeat(t *testing.T) {
	for _, late := range []time.Duration{simBeat / 50, simBeat / 2, simBeat * 9 / 10} {
		t.Run(late.String(), func(t *testing.T) {
			alone(t, func(k *tester) {
				k.server.state("key", &Op{ID: "other", Seq: 1, Held: 1})
				k.acquires("registers", 1)
				k.locked(func() { k.server.scores["other"] = -k.server.scores["#clock"] })
				time.Sleep(simTTL + simBeat/2)
				silent := make(chan struct{})
				k.set(false, silent)
				time.Sleep(simBeat/2 + late)
				if k.acquire("key", 1, simBeat/20) == nil {
					t.Error("refused for what the dead hold")
				}
				k.set(false, nil)
				close(silent)
			})
		})
	}
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

// A process that finds itself dead when it reaches the server again has its slots counted
// at once: also if its first statements fail, it does not wait for the next beat.
func TestRestatesAtOnce(t *testing.T) {
	for failures := range 4 {
		for phase := range 10 {
			t.Run(fmt.Sprintf("%d failures, phase %d", failures, phase), func(t *testing.T) {
				alone(t, func(k *tester) {
					h := k.acquires("key", 1)
					time.Sleep(simTTL)
					id := k.incarnation()
					k.set(true, nil)
					k.locked(func() {
						k.server.scores[id] = -k.server.scores["#clock"]
						k.failing = failures
					})
					time.Sleep(2*simTTL + time.Duration(phase)*simBeat/10)
					k.set(false, nil)
					start := time.Now()
					<-h.Lost()
					for k.stated("key")[k.incarnation()] == 0 {
						time.Sleep(time.Millisecond)
					}
					// A fifteenth until the next beat, and 1, 2 and 4 eighths of that between tries.
					if d := time.Since(start); d > simTTL/8+time.Millisecond {
						t.Errorf("stated after %v", d)
					}
				})
			})
		}
	}
}

// Statements that fail again and again while beats are answered are tried eight times in a
// beat: the first pauses are short. While beats fail, nothing is stated.
func TestRetriesAreBounded(t *testing.T) {
	alone(t, func(k *tester) {
		k.acquires("key", 1)
		time.Sleep(simTTL)
		const plenty = 1 << 20
		k.locked(func() { k.failing = plenty })
		k.acquire("another", 1, simTTL) // fails
		time.Sleep(10 * simTTL)
		k.locked(func() {
			if n := plenty - k.failing; n > 11*beatsInTTL*8 {
				t.Errorf("%d tries in 10 TTLs", n)
			}
			k.failing, k.away = plenty, true
		})
		time.Sleep(10 * simTTL)
		k.locked(func() {
			if n := plenty - k.failing; n > 8 {
				t.Errorf("%d tries in 10 TTLs without beats", n)
			}
			k.failing = 0
		})
	})
}

// Death counts from the last beat, which may be a beat ago when a pause begins: a pause of
// two thirds of a TTL may lose slots, a shorter one does not, and one of a TTL does.
func TestPauseThatLosesSlots(t *testing.T) {
	const phases = 20
	const slack = 20 * time.Millisecond // for messages on their way
	for _, test := range []struct {
		pause       time.Duration
		some, every bool
	}{
		{simTTL*2/3 - slack, false, false},
		{simTTL*2/3 + simBeat/phases + slack, true, false},
		{simTTL - simBeat/phases - slack, true, false},
		{simTTL + slack, true, true},
	} {
		t.Run(test.pause.String(), func(t *testing.T) {
			lost := 0
			for phase := range time.Duration(phases) {
				paused(t, simTTL+phase*simBeat/phases, test.pause, func(_ *process, h *Hold) {
					time.Sleep(test.pause + simTTL)
					select {
					case <-h.Lost():
						lost++
					default:
					}
				})
			}
			if (lost > 0) != test.some || (lost == phases) != test.every {
				t.Errorf("lost in %d of %d phases", lost, phases)
			}
		})
	}
}

// Others have the slots of a process that is not heard of any more after two thirds of a
// TTL at the earliest, and, if they ask, soon after a TTL.
func TestWhenTheDeadAreFree(t *testing.T) {
	const slack = 20 * time.Millisecond
	for phase := range time.Duration(20) {
		paused(t, simTTL+phase*simBeat/20, 3*simTTL, func(other *process, _ *Hold) {
			start := time.Now()
			for other.takes("key") == nil {
				time.Sleep(time.Millisecond)
			}
			if d := time.Since(start); d < simTTL*2/3-slack || d > simTTL+deadFor+refusedFor+slack {
				t.Errorf("free after %v", d)
			}
			time.Sleep(3 * simTTL)
		})
	}
}

// takes asks for the only slot of a key.
func (p *process) takes(key string) *Hold {
	h, _, _ := p.k.Acquire(p.w.t.Context(), time.Now().Add(simTimeout), "ws", key, 1, 1)
	return h
}

// paused runs a test with two processes, of which one holds the only slot of a key and is
// paused after a while.
func paused(t *testing.T, after, pause time.Duration, f func(other *process, h *Hold)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "calm", "")
		w.quiet, w.latency = true, time.Millisecond
		p, other := w.process(), w.process()
		h := p.takes("key")
		if h == nil || other.takes("another") == nil {
			t.Fatal("no slot")
		}
		time.Sleep(after)
		resumed := make(chan struct{})
		p.set(func() { p.resumed = resumed })
		time.AfterFunc(pause, func() {
			p.set(func() { p.resumed = nil })
			close(resumed)
		})
		f(other, h)
		for _, one := range []*process{p, other} {
			one.set(func() { one.crashed = true })
		}
		time.Sleep(2 * simTTL)
		w.all.Wait()
	})
}

// A refusal is cached from when it was asked for: the server may have answered long before
// the answer arrived.
func TestRefusalsAreAsOldAsTheQuestion(t *testing.T) {
	alone(t, func(k *tester) {
		const limit = 1
		k.server.state("key", &Op{ID: "other", Seq: 1, Held: limit})
		k.acquires("registers", 1)
		time.Sleep(simTTL)
		late := make(chan struct{})
		k.locked(func() { k.late = late })
		time.AfterFunc(refusedFor*2/3, func() { close(late) })
		if k.acquire("key", limit, simTTL) != nil {
			t.Fatal("granted what another holds")
		}
		k.locked(func() { k.late = nil })
		time.Sleep(refusedFor / 2)
		if _, _, full := k.Full("ws", "key", limit, false); full {
			t.Error("the refusal is still cached")
		}
	})
}

// A zero is kept only while an op of its key may still be on its way, and then deleted with
// the next beat.
func TestZerosAreDeleted(t *testing.T) {
	alone(t, func(k *tester) {
		const others = 600 // the sweep comes to a key in a time of its own
		for i := range others {
			k.acquires(strconv.Itoa(i), 1)
		}
		clean, unclean := k.acquires("clean", 1), k.acquires("unclean", 1)
		time.Sleep(simTTL)
		synctest.Wait() // the beat of this instant is over
		k.locked(func() { k.failing = 1 })
		if k.acquire("unclean", 2, simTTL) != nil {
			t.Fatal("granted without the server")
		}
		failed := time.Now()
		clean.Release()
		unclean.Release()
		time.Sleep(2 * simBeat)
		k.expect("clean", k.stated("clean"), map[string]int64{})
		zero := map[string]int64{k.incarnation(): 0}
		k.expect("unclean", k.stated("unclean"), zero)
		time.Sleep(time.Until(failed.Add(sweepTTLs*simTTL - time.Millisecond)))
		k.expect("before the sweep's time is over", k.stated("unclean"), zero)
		time.Sleep(2 * simBeat)
		k.expect("after that", k.stated("unclean"), map[string]int64{})
		if n := k.entriesLeft(); n > others {
			t.Errorf("%d keys are remembered", n)
		}
	})
}
