package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// FuzzReply: whatever a server answers, it is an answer or an error.
func FuzzReply(f *testing.F) {
	s := away(f, Config{})
	var cs []store.Charge
	for i, p := range somePolicies(5, 10) {
		cs = append(cs, store.Charge{Limiter: newLimiter(f, s, fmt.Sprint(i), p).Prepared(), Key: "k", N: 1})
	}
	word := string(step.AppendWord(nil, 1_700_000_000_000_000))
	for _, text := range []string{
		"", word, word[1:], word + "\x00", word + "\x03", word + "\x08\x00\x05error", word + "\x08\xff\xffx", word + "\x08\x00\x00",
		word + strings.Repeat("\x03", 5), word + "\x07" + strings.Repeat(word, 4) + strings.Repeat("\x03", 4),
		word + "\x07" + word, word + "\xff",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := newReply(text)
		if err != nil {
			return
		}
		q := &question{Question: store.Question{Charges: cs}}
		if err := r.result(s.backend, q); err == nil && q.Result.Len() != len(cs) {
			t.Errorf("%q: %d readings", text, q.Result.Len())
		}
		r, _ = newReply(text)
		if units, err := r.uncovered(1); units < 0 || err != nil && units != 0 {
			t.Errorf("%q: %d units, %v", text, units, err)
		}
	})
}

func TestShortRepliesAreErrors(t *testing.T) {
	s := away(t, Config{})
	cs := []store.Charge{{Limiter: newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1))).Prepared(), Key: "k", N: 1}}
	word := string(step.AppendWord(nil, 1))
	whole := word + "\x03" + word + word
	for n := range len(whole) {
		r, err := newReply(whole[:n])
		if err == nil {
			err = r.result(s.backend, &question{Question: store.Question{Charges: cs}})
		}
		if !errors.Is(err, errReply) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// Questions about one key name it once, so that each finds what those before it wrote.
func TestQuestionsShareKeys(t *testing.T) {
	s := away(t, Config{})
	two := newLimiter(t, s, "two", somePolicies(2, 10)...).Prepared()
	plan := newLimiter(t, s, "two", somePolicies(1, 20)...).Prepared()
	var batch []*question
	for i := range 48 {
		batch = append(batch,
			&question{Question: store.Question{Charges: []store.Charge{{Limiter: two, Key: fmt.Sprint(i % 32), N: 1}}}},
			&question{Question: store.Question{Charges: []store.Charge{{Limiter: plan, Key: fmt.Sprint(i % 32), N: 1}}}})
	}
	c := s.backend.newCall(batch)
	want := make(map[string]bool)
	rest := string(c.questions[scripted+1:])
	for _, q := range batch {
		names := s.backend.values(nil, &q.Charges[0])
		for _, p := range s.backend.prepared(q.Charges[0].Limiter).policies {
			want[names[p.value]] = true
			if got := c.keys[rest[5]-1]; got != names[p.value] {
				t.Errorf("a cell about %q has the key %q", names[p.value], got)
			}
			rest = rest[cellLength(rest):]
		}
	}
	if len(c.keys) != 64 || len(want) != 64 {
		t.Errorf("%d keys for %d cells", len(c.keys), len(want))
	}
}

// As many different policies as one call may bring.
func TestManyPoliciesInOneCall(t *testing.T) {
	s := open(t, Config{Failure: FailClosed}, redistest.Start(t).Addr())
	var cs []core.Charge
	for i := range int64(8) {
		var ps []core.Policy
		for j := range int64(8) {
			ps = append(ps, core.FixedWindow(per(100+8*i+j, 400*day)).Named(fmt.Sprint(j)))
		}
		cs = append(cs, core.Charge{Limiter: newLimiter(t, s, fmt.Sprint(i), ps...), Key: "k", N: 1})
	}
	for n := range int64(3) {
		d, err := core.AllowAll(t.Context(), cs...)
		if err != nil || !d.Allowed || d.Len() != 64 {
			t.Fatalf("%v: %s", err, describe(&d))
		}
		for i := range d.Len() {
			if a := d.Answer(i); a.Limit != int64(100+i) || a.Remaining != a.Limit-n-1 {
				t.Errorf("%d: %+v", i, a)
			}
		}
	}
}
