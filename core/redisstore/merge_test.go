package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
)

// Questions that are sent together are answered as if one after the other: each sees
// what those before it have charged, whatever their limiters and modes.
func TestMergedQuestionsAreAnsweredInOrder(t *testing.T) {
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	w := newWalk(t, 7, s, clock)
	ref := newReference(clock.now)
	var admitted []core.Settlement // to settle

	draw := func() *question {
		q := s.pools.question()
		q.progress.Store(sent)
		switch x := w.rng.IntN(10); {
		case x == 0 && len(admitted) > 0:
			i := w.rng.IntN(len(admitted))
			t := admitted[i]
			admitted = slices.Delete(admitted, i, i+1)
			q.mode, q.at, q.actual = modeSettle, t.At, t.Actual
			q.charges = []core.Charge{t.Charge}
			return q
		case x == 1:
			q.mode = modePeek
		case x == 2:
			q.mode = modeDeny
		}
		for range 1 + w.rng.IntN(3) {
			c, _ := w.charge()
			for _, cell := range c.Limiter.Cells() {
				c.N = min(c.N, cell.Step.Max())
			}
			same := func(d core.Charge) bool { return c.Key == d.Key && c.Limiter.Name() == d.Limiter.Name() }
			if !slices.ContainsFunc(q.charges, same) {
				q.charges = append(q.charges, c)
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
		s.sendBatch(context.Background(), &s.queues.first, batch, time.Now().Add(patient))
		for i, q := range batch {
			if q.err != nil {
				t.Fatal(q.err)
			}
			if q.mode == modeSettle {
				own := []core.Settlement{{Charge: q.charges[0], At: q.at, Source: core.SourceStore, Actual: q.actual}}
				ref.Settle(context.Background(), own)
				if got, want := q.uncovered, own[0].Uncovered; got != want {
					t.Fatalf("round %d, question %d of %d: %d units uncovered, want %d", round, i, len(batch), got, want)
				}
				continue
			}
			want := ref.decide(q.charges, q.mode)
			if got, want := fmt.Sprintf("%+v", readings(q.result)), fmt.Sprintf("%+v", readings(want)); got != want {
				t.Fatalf("round %d, question %d of %d: %s\ngot  %s\nwant %s", round, i, len(batch), w.about(q.charges), got, want)
			}
			if q.mode == modeAsk && q.result.Allowed {
				c := q.charges[0]
				admitted = append(admitted, core.Settlement{Charge: c, At: q.result.At, Source: core.SourceStore, Actual: w.rng.Int64N(2 * min(c.N, 1<<40))})
			}
		}
	}
}

// Those of one limiter that all ask are answered by a script of their own, and by the
// other where a key was kept in a way that it does not know.
func TestAlikeQuestionsAreAnsweredInOrder(t *testing.T) {
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	w := newWalk(t, 8, s, clock)
	ref := newReference(clock.now)
	among, flat := w.among, 0
	for round := range 3000 {
		w.tick()
		w.among = []int{among[w.rng.IntN(len(among))]}
		first, _ := w.charge()
		var batch []*question
		for range 1 + w.rng.IntN(8) {
			q := s.pools.question()
			q.progress.Store(sent)
			c, _ := w.charge()
			for _, cell := range first.Limiter.Cells() {
				c.N = min(c.N, cell.Step.Max())
			}
			q.charges = []core.Charge{{Limiter: first.Limiter, Key: c.Key, N: c.N}}
			batch = append(batch, q)
		}
		if flatNote(batch) != nil {
			flat++
		}
		s.sendBatch(context.Background(), &s.queues.first, batch, time.Now().Add(patient))
		for i, q := range batch {
			want := ref.decide(q.charges, q.mode)
			if got, want := fmt.Sprint(q.err, readings(q.result)), fmt.Sprint(nil, readings(want)); got != want {
				t.Fatalf("round %d, question %d of %d: %s\ngot  %s\nwant %s", round, i, len(batch), w.about(q.charges), got, want)
			}
		}
	}
	if flat < 2000 || flat == 3000 {
		t.Errorf("%d of 3000 calls were of the flat scripts", flat)
	}
}

// readings is everything that a result says.
func readings(r core.Result) (all []any) {
	all = append(all, r.At, r.Allowed, r.Source)
	for i := range r.Len() {
		ok, x := r.Reading(i)
		all = append(all, ok, x)
	}
	return all
}
