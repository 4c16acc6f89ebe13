package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/internal/reference"
	"github.com/headgate/headgate/core/internal/remote"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/norace"
	"github.com/headgate/headgate/internal/redistest"
)

// Questions that are sent together are answered as if one after the other: each sees
// what those before it have charged, whatever their limiters and modes.
func TestMergedQuestionsAreAnsweredInOrder(t *testing.T) {
	norace.Test(t)
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	w := newWalk(t, 7, s, clock)
	ref := reference.New(clock.now)
	var admitted []store.Settlement // to settle

	draw := func() *question {
		q := new(question)
		switch x := w.rng.IntN(10); {
		case x == 0 && len(admitted) > 0:
			i := w.rng.IntN(len(admitted))
			t := admitted[i]
			admitted = slices.Delete(admitted, i, i+1)
			q.Mode, q.At, q.Actual = remote.Settle, t.At, t.Actual
			q.Charges = []store.Charge{t.Charge}
			return q
		case x == 1:
			q.Mode = remote.Peek
		case x == 2:
			q.Mode = remote.Deny
		}
		for range 1 + w.rng.IntN(3) {
			c, _ := w.charge()
			l := s.bare(t, c.Limiter)
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
				t.Fatal(q.Err)
			}
			if q.Mode == remote.Settle {
				own := []store.Settlement{{Charge: q.Charges[0], At: q.At, Source: core.SourceStore, Actual: q.Actual}}
				ref.Settle(context.Background(), own)
				if got, want := q.Uncovered, own[0].Uncovered; got != want {
					t.Fatalf("round %d, question %d of %d: %d units uncovered, want %d", round, i, len(batch), got, want)
				}
				continue
			}
			want := decide(ref, q)
			if got, want := fmt.Sprintf("%+v", readings(q.Result)), fmt.Sprintf("%+v", readings(want)); got != want {
				t.Fatalf("round %d, question %d of %d: %s\ngot  %s\nwant %s", round, i, len(batch), w.about(q.Charges), got, want)
			}
			if q.Mode == remote.Ask && q.Result.Allowed {
				c := q.Charges[0]
				admitted = append(admitted, store.Settlement{Charge: c, At: q.Result.At, Source: core.SourceStore, Actual: w.rng.Int64N(2 * min(c.N, 1<<40))})
			}
		}
	}
}

// Those of one limiter, with few keys: a question sees what those before it wrote.
func TestAlikeQuestionsAreAnsweredInOrder(t *testing.T) {
	norace.Test(t)
	s := open(t, Config{}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	w := newWalk(t, 8, s, clock)
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
			l := s.bare(t, first.Limiter)
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

// decide asks the reference a question.
func decide(ref *reference.Store, q *question) (r store.Result) {
	switch q.Mode {
	case remote.Peek:
		_ = ref.PeekAll(context.Background(), q.Charges, &r)
	case remote.Deny:
		_ = ref.DenyAll(context.Background(), q.Charges, &r)
	default:
		_ = ref.DecideAll(context.Background(), q.Charges, &r)
	}
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
