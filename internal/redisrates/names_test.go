package redisrates

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

func TestNamesSayWhatTheBytesMean(t *testing.T) {
	day := 24 * time.Hour
	burst, debt, large, first := bucket(100, time.Second), bucket(100, time.Second), fixed(1000, time.Millisecond), fixed(10, time.Hour)
	burst.Burst = 20
	burst.Debt = burst.DefaultDebt()
	debt.Debt, first.FromFirst = 0, true
	for want, m := range map[string]step.Numbers{
		":api:b1000/1d":      bucket(1000, day),
		":api:b100/1s/20":    burst,
		":api:b100/1s/100/0": debt,
		":api:w1d":           fixed(10, day),
		":api:w1ms/large":    large,
		":api:w1h/first":     first,
		":api:s90m/10":       sliding(10, 90*time.Minute),
		":api:l1500ms":       logOf(10, 1500*time.Millisecond),
		":api:i7us":          interval(7 * time.Microsecond),
	} {
		p, err := step.New("api", "api", m)
		if err != nil {
			t.Fatal(err)
		}
		if got := suffix(&p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		s := open(t, Config{}, "127.0.0.1:1")
		if name := string(s.script.names.AppendTag(nil, "2001:db8:1:2::/64")) + want; len(name) >= 60 {
			t.Errorf("%q has %d bytes: from 64 on Redis takes longer", name, len(name))
		}
	}
}

// Policies have one name if, and only if, they share their states.
func TestNamesAreThoseOfIdentities(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	words := []string{"a", "b", "a/b", "a:b", "a~", "~2f", "b1/1s", ":"}
	ids, suffixes := map[string]uint64{}, map[uint64]string{}
	for range 50_000 {
		m := randomNumbers(r, []int64{1000, 1_000_000, 60_000_000, 90_000_000})
		p, err := step.New(words[r.IntN(len(words))], words[r.IntN(len(words))], m)
		if err != nil {
			continue
		}
		name := suffix(&p)
		if id, ok := ids[name]; ok && id != p.ID {
			t.Fatalf("%q is of two identities: %+v of %q, %q", name, m, p.Limiter, p.Name)
		}
		if other, ok := suffixes[p.ID]; ok && other != name {
			t.Fatalf("%q and %q are of one identity: %+v", other, name, m)
		}
		ids[name], suffixes[p.ID] = p.ID, name
	}
}

// No value ends before it counts nothing, nor long after. Whether a life was renewed shows as another life was set before.
func TestLives(t *testing.T) {
	const marked = 1_000_000_000_000 // ms
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1, Failure: outage.FailClosed}, server.Addr())
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	var now int64
	s.script.instant = func(b []byte) []byte { return fmt.Append(b, now) }
	for round := range 300 {
		m := randomNumbers(r, []int64{1 + r.Int64N(1_000_000_000), 60_000_000, 86_400_000_000, 1_000_000})
		p, err := step.New("l", "l", m)
		if err != nil {
			continue
		}
		ps := []step.Policy{p}
		if err := s.Prepare(ps); err != nil {
			t.Fatal(err)
		}
		now = 1_600_000_000_000_000 + r.Int64N(1<<50)
		var ends int64
		key := fmt.Sprint("k", round)
		name := string(s.script.names.AppendTag(nil, key)) + suffix(&p)
		for range 30 {
			now += []int64{0, 1, r.Int64N(m.Period/4 + 1), r.Int64N(m.Period + 1), -r.Int64N(m.Period/8 + 1)}[r.IntN(5)]
			s.script.client.Do(t.Context(), "PEXPIRE", name, marked)
			c, mode := []step.Cell{cell(&ps[0], key, 1+r.Int64N(min(p.Max(), 3)))}, step.Allow
			if r.IntN(4) == 0 {
				mode = step.Settle // a report, or units that are given back
				if c[0].Instant = now - r.Int64N(m.Period); r.IntN(2) == 0 {
					c[0].Units = -c[0].Units
				}
			}
			allowed, err := s.Ask(t.Context(), mode, c)
			if err != nil {
				t.Fatal(err)
			}
			life := s.script.client.PTTL(t.Context(), name).Val().Microseconds()
			renewed := 0 < life && life < marked*500
			if renewed {
				ends = now + life + 500_000 // it has less than a second of its own for what the test takes
			}
			if m.Kind == step.Calendar && renewed && ends < now+c[0].ResetAfter+step.Day {
				t.Fatalf("%+v: lives for %d more microseconds, not for a day after %d", m, ends-now, c[0].ResetAfter)
			}
			switch need := c[0].ResetAfter; {
			case need > 0 && (life < 0 || ends < now+need):
				t.Fatalf("%+v: lives for %d more microseconds, but counts for %d", m, ends-now, need)
			case renewed && mode == step.Allow && allowed && life > need+max(m.Period/4, m.Period/max(m.Resolution, 1))+2*m.Period/max(m.Limit, 1)+3_000_000:
				t.Fatalf("%+v: lives for %d microseconds, but counts for %d", m, life, need)
			}
		}
	}
}
