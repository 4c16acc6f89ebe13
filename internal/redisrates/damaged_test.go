package redisrates

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

// sane reports what is wrong with the answer of a cell.
func sane(c *step.Cell) error {
	r := &c.Reading
	longest := 4 * int64(step.MaxSpan)
	for _, span := range []int64{r.NextAfter, r.ResetAfter, r.RetryAfter} {
		if span < 0 || span > longest && span != step.Never {
			return fmt.Errorf("a span of %d", span)
		}
	}
	if r.Remaining < 0 || r.Remaining > c.Policy.Capacity() || c.Shortfall < 0 {
		return fmt.Errorf("%d left of %d, %d short", r.Remaining, c.Policy.Capacity(), c.Shortfall)
	}
	return nil
}

// damage changes bytes of a value as a fault, or another program, may.
func damage(r *rand.Rand, value string) string {
	b := []byte(value)
	for range 1 + r.IntN(3) {
		words := len(b) / wordBytes
		switch kind := r.IntN(6); {
		case kind == 0 || len(b) == 0:
			b = append(b, make([]byte, r.IntN(2*wordBytes))...)
		case kind == 1:
			b = b[:r.IntN(len(b))]
		case kind == 2 || words < 2:
			b[r.IntN(len(b))] = byte(r.IntN(256))
		case kind == 3: // two words change places
			x, y := wordBytes*r.IntN(words), wordBytes*r.IntN(words)
			for i := range wordBytes {
				b[x+i], b[y+i] = b[y+i], b[x+i]
			}
		case kind == 4:
			appendWord(b[:wordBytes*r.IntN(words)], r.Int64N(1<<uint(1+r.IntN(56))))
		default:
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
	}
	return string(b)
}

// A question about a value that is damaged fails alone, or is answered as if the value were sound. It ends neither the
// process nor the call, and what is not a value of the policy is not overwritten.
func TestDamagedValues(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	failed, answered := 0, 0
	for i := range *questions / 20 {
		p, err := step.New("l", "p", randomNumbers(r, []int64{1 + r.Int64N(1_000_000), 60_000_000}))
		if err != nil {
			continue
		}
		ps := []step.Policy{p}
		if err := s.Prepare(ps); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint(i)
		name := string(s.script.names.AppendTag(nil, key)) + suffix(&p)
		for range 1 + r.IntN(3) {
			s.charge(t, &ps[0], key, 1)
		}
		value, _ := server.Do("GET", name)
		text, _ := value.(string)
		planted := damage(r, text)
		if _, err := server.Do("SET", name, planted); err != nil {
			t.Fatal(err)
		}
		bad := &question{cells: []step.Cell{cell(&ps[0], key, 1+r.Int64N(2))}}
		switch r.IntN(4) {
		case 0:
			bad.mode = step.Peek
		case 1:
			bad.mode = step.Settle
		case 2:
			bad.mode = step.Settle
			bad.cells[0].Units, bad.cells[0].Instant = -1, time.Now().UnixMicro()
		}
		good := []*question{{cells: []step.Cell{cell(&ps[0], key+"a", 1)}}, {cells: []step.Cell{cell(&ps[0], key+"b", 1)}}}
		if err, failure := s.script.run(time.Now().Add(patient), []*question{good[0], bad, good[1]}); err != nil || failure != nil {
			t.Fatalf("%+v, mode %d of %q: %v, %v", p.Numbers, bad.mode, planted, err, failure)
		}
		for _, q := range good {
			if q.err != nil || !q.allowed {
				t.Fatalf("%+v, beside %q: %v, %v", p.Numbers, planted, q.allowed, q.err)
			}
		}
		if bad.err == nil {
			answered++
			if err := sane(&bad.cells[0]); err != nil {
				t.Fatalf("%+v, mode %d of %q: %v", p.Numbers, bad.mode, planted, err)
			}
			continue
		}
		failed++
		if now, _ := server.Do("GET", name); errors.Is(bad.err, errForeign) && now != planted {
			t.Fatalf("%+v, mode %d: %q is overwritten with %q", p.Numbers, bad.mode, planted, now)
		}
	}
	t.Logf("%d failed, %d were answered", failed, answered)
}

// No reply ends the process, and what is read of one is sane or an error.
func FuzzReply(f *testing.F) {
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true})
	s, err := New(client, Config{})
	if err != nil {
		f.Fatal(err)
	}
	counted := func(m step.Numbers) step.Numbers {
		m.CountDenied = true
		return m
	}
	never := sliding(10, time.Minute)
	never.NeverOver = true
	first := fixed(10, time.Minute)
	first.FromFirst = true
	ps := s.limiter(f, "api",
		bucket(10, time.Minute), fixed(10, time.Minute), counted(fixed(10, time.Minute)), fixed(1<<40, time.Second), first,
		sliding(10, time.Minute), never, counted(sliding(10, time.Minute)), logOf(10, time.Minute), counted(logOf(10, time.Minute)), interval(time.Minute))
	now := string(appendWord(nil, 1_700_000_000_000_000))
	start := appendWord(nil, 1_699_999_998_000_000)
	f.Add(byte(0), byte(0), now+"\x03"+"0000000000000012")
	f.Add(byte(3), byte(0), now+"\x03"+string(start)+string(words(3, 3)))
	f.Add(byte(5), byte(0), now+"\x00"+string(start)+string(words(9, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 5)))
	f.Add(byte(5), byte(0), now+"\x00"+string(start)+string(words(99, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 5)))
	f.Add(byte(8), byte(1), now+"\x02"+string(words(10, 1_699_999_990_000_000, 1_699_999_999_000_000, 1_699_999_990_000_000)))
	f.Add(byte(9), byte(2), now+"\x00"+string(words(10, 10, 1_699_999_999_000_000, 1_699_999_990_000_000, 1_699_999_991_000_000)))
	f.Fuzz(func(t *testing.T, which, mode byte, text string) {
		q := &question{mode: step.Mode(mode % 3), cells: []step.Cell{cell(&ps[int(which)%len(ps)], "k", 1+int64(mode/16))}}
		if mode&8 > 0 && q.mode == step.Settle {
			q.cells[0].Units, q.cells[0].Instant = -1, 1_700_000_000_000_000
		}
		if err := s.script.readReply([]*question{q}, text); err != nil || q.err != nil {
			return
		}
		if err := sane(&q.cells[0]); err != nil {
			t.Errorf("%+v: %v, %+v", q.cells[0].Policy.Numbers, err, q.cells[0].Reading)
		}
	})
}
