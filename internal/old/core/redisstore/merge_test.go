package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
	"github.com/headgate/headgate/internal/redistest"
)

// Questions that are sent together are answered as if one after the other: each sees
// what those before it have charged, whatever their limiters and modes.
func TestMergedQuestionsAreAnsweredInOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	w := newWalk(t, s, clock, "")
	ref := reference.New(clock.now)
	var admitted []store.Charge // to settle

	draw := func() *question {
		q := new(question)
		switch x := w.rng.IntN(10); {
		case x == 0 && len(admitted) > 0:
			i := w.rng.IntN(len(admitted))
			q.Mode, q.Charges = store.Settle, []store.Charge{admitted[i]}
			admitted = slices.Delete(admitted, i, i+1)
			return q
		case x == 1:
			q.Mode = store.Peek
		case x == 2:
			q.Mode = store.Refuse
		}
		for range 1 + w.rng.IntN(3) {
			c, _ := w.charge()
			l := c.Limiter.Prepared()
			same := func(d store.Charge) bool { return c.Key == d.Key && l.Spec().Name == d.Limiter.Spec().Name }
			if !slices.ContainsFunc(q.Charges, same) {
				q.Charges = append(q.Charges, store.Charge{Limiter: l, Key: c.Key, N: min(c.N, l.Spec().Most())})
			}
		}
		return q
	}
	all, keys := w.among, w.keys
	for round := range 2000 {
		w.tick()
		w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		w.among, w.keys = all[:1+w.rng.IntN(3)], keys[:1+w.rng.IntN(3)]
		var batch []*question
		for range 1 + w.rng.IntN(8) {
			batch = append(batch, draw())
		}
		s.ask(t, batch)
		for i, q := range batch {
			if q.Err != nil {
				t.Fatalf("round %d, question %d of %d, mode %d: %s%v", round, i, len(batch), q.Mode, w.about(q.Charges), q.Err)
			}
			if q.Mode == store.Settle {
				own := slices.Clone(q.Charges)
				own[0].Uncovered = 0
				asking.Settle(context.Background(), ref, own...)
				if got, want := q.Charges[0].Uncovered, own[0].Uncovered; got != want {
					t.Fatalf("round %d, question %d of %d: %d units uncovered, want %d", round, i, len(batch), got, want)
				}
				continue
			}
			want := decide(ref, q)
			if got, want := fmt.Sprintf("%+v", readings(q.Result)), fmt.Sprintf("%+v", readings(want)); got != want {
				t.Fatalf("round %d, question %d of %d: %s\ngot  %s\nwant %s", round, i, len(batch), w.about(q.Charges), got, want)
			}
			if q.Mode == store.Allow && q.Result.Allowed {
				c := q.Charges[0]
				admitted = append(admitted, asking.Settled(c, &q.Result, w.rng.Int64N(2*min(max(c.N, 1), 1<<40))))
			}
		}
	}
}

// Those of one limiter, with few keys: a question sees what those before it wrote.
func TestAlikeQuestionsAreAnsweredInOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	w := newWalk(t, s, clock, "")
	ref := reference.New(clock.now)
	among := w.among
	for round := range 3000 {
		w.tick()
		w.among = []int{among[w.rng.IntN(len(among))]}
		first, _ := w.charge()
		var batch []*question
		for range 1 + w.rng.IntN(8) {
			q := new(question)
			c, _ := w.charge()
			l := first.Limiter.Prepared()
			q.Charges = []store.Charge{{Limiter: l, Key: c.Key, N: min(c.N, l.Spec().Most())}}
			batch = append(batch, q)
		}
		s.ask(t, batch)
		for i, q := range batch {
			want := decide(ref, q)
			if got, want := fmt.Sprint(q.Err, readings(q.Result)), fmt.Sprint(nil, readings(want)); got != want {
				t.Fatalf("round %d, question %d of %d: %s\ngot  %s\nwant %s", round, i, len(batch), w.about(q.Charges), got, want)
			}
		}
	}
}

// A question under a plan whose log is read as a whole follows one under a plan that reads the
// beginning of the same long log.
func TestLongLogsAreReadAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	ref := reference.New(clock.now)
	long := newLimiter(t, s, "api", core.SlidingLog(per(100, time.Second)))
	for i, p := range []core.Policy{
		core.SlidingLog(per(10, 2*time.Second)),
		core.SlidingLog(per(10, 2*time.Second)).CountDenied(),
		core.SlidingLog(per(64, time.Second)),
		core.SlidingLog(per(64, time.Second)).CountDenied(),
	} {
		for _, mode := range []store.Mode{store.Allow, store.Peek, store.Refuse, store.Settle} {
			key := fmt.Sprint(i, mode)
			about := func(l *core.Limiter, n int64) []store.Charge {
				return []store.Charge{{Limiter: l.Prepared(), Key: key, N: n}}
			}
			fill := &question{Question: store.Question{Charges: about(long, 90)}}
			s.ask(t, []*question{fill})
			decide(ref, fill)
			clock.move(1000)

			first := &question{Question: store.Question{Mode: store.Peek, Charges: about(long, 1)}}
			second := &question{Question: store.Question{Mode: mode, Charges: about(with(t, long, p), 1)}}
			second.Charges[0].At = clock.now()
			s.ask(t, []*question{first, second})
			if first.Err != nil || second.Err != nil {
				t.Errorf("mode %d under %v: %v, %v", mode, p, first.Err, second.Err)
			} else if mode != store.Settle {
				if got, want := fmt.Sprint(readings(second.Result)), fmt.Sprint(readings(decide(ref, second))); got != want {
					t.Errorf("mode %d under %v: %s, want %s", mode, p, got, want)
				}
			}
		}
	}
}

// decide asks the reference a question.
func decide(ref *reference.Store, q *question) store.Result {
	r, _ := asking.Ask(context.Background(), ref, &store.Question{Mode: q.Mode, Charges: q.Charges, Extra: q.Extra})
	return r
}

// readings is everything that a result says.
func readings(r store.Result) (all []any) {
	all = append(all, r.At, r.Allowed, r.Extra, r.Source)
	for i := range r.Len() {
		all = append(all, r.Admitted(i), *r.Reading(i))
	}
	return all
}
