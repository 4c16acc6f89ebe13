package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
)

// hostile are keys that a careless name would confuse, cut, or send to other slots.
func hostile() []string {
	long := strings.Repeat("k", 10<<10)
	return []string{
		"", " ", "a", "A", "a ", " a", "a:b", "a/b", "a:", ":b", "{", "}", "{}", "}{", "{a}", "{a", "a}", "{}a", "{{a}}", "a{b}c",
		"=", "=a", "#", "*", "~", "~7b", "~7d", "~~", "~7e", "~7b7d", "{~7d", "\x00", "a\x00", "\x00a", "a\x00b", "\n", "\r\n", "\xff", "\xff\xfe",
		"\xc3\x28", "é", "e\u0301", "💧", "*3\r\n", "$-1\r\n", "a]b", "[ab]", "a*", "?", "key:b", "}:api:r3", "a}:api/a:sl5",
		strings.Repeat("x", rediskey.MaxPlain), strings.Repeat("x", rediskey.MaxPlain+1), strings.Repeat("x", rediskey.MaxPlain+2),
		strings.Repeat("{", rediskey.MaxPlain), strings.Repeat("{", rediskey.MaxPlain+1), strings.Repeat("\xff", 300),
		long, long + "}", long[1:] + "l",
	}
}

// hostileNames are names of limiters and policies that separators could confuse.
var hostileNames = []string{"a", "b", "a/b", "a:b", "a/", "/a", "a:", ":a", "~", "~2f", "a~", "{a}", "{", "}", " ", "r3", "a:r3", "sl5", "a/a:sl5"}

func newLogNamed(t testing.TB, s core.Store, limiter, policy string) *core.Limiter {
	return newLimiter(t, s, limiter, core.SlidingLog(core.PerDay(1)).Named(policy))
}

// Whatever the bytes, different limiters, logs and keys have different values, and all values
// of one key are in one slot.
func TestValuesAreDistinct(t *testing.T) {
	server := redistest.Start(t, "cluster-enabled yes")
	for _, secret := range [][]byte{nil, someSecret("")} {
		s, err := New(redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true}), Config{Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Client().Close() })
		var limiters []*core.Limiter
		for _, limiter := range hostileNames {
			for _, policy := range hostileNames {
				limiters = append(limiters, newLogNamed(t, s, limiter, policy))
			}
		}
		for _, limiter := range hostileNames {
			limiters = append(limiters, newLimiter(t, s, limiter, core.FixedWindow(core.PerDay(1)).Named("a"), core.MinInterval(time.Second).Named("r3")))
		}
		seen := make(map[string]string)
		for _, key := range hostile() {
			for _, l := range limiters {
				name := s.cell(t, l, key)
				who := fmt.Sprintf("%q, %q, %.50q", l.Name(), l.Policies(), key)
				if other, ok := seen[name]; ok {
					t.Errorf("%s and %s have the same name %q", who, other, name)
				}
				seen[name] = who
				if len(name) > 700 || strings.Count(name, "{") < 1 {
					t.Errorf("%s: %q", who, name)
				}
			}
			// The server's word on where they are.
			slot := int64(rediskey.HashSlot(s.backend.names.AppendTag(nil, key)))
			for _, l := range limiters[:len(hostileNames)] {
				name := s.cell(t, l, key)
				got, err := server.Do("CLUSTER", "KEYSLOT", name)
				if err != nil || got != slot {
					t.Fatalf("%q is in slot %v, not %d (%v)", name, got, slot, err)
				}
			}
		}
	}
}

func TestHostileKeysAreCountedApart(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1, Failure: FailClosed}, server.Addr())
	a := newLimiter(t, s, "a", core.TokenBucket(core.PerDay(1), 1).Named("b/c"), core.SlidingLog(core.PerDay(100)).Named("log"))
	b := newLimiter(t, s, "a/b", core.TokenBucket(core.PerDay(1), 1).Named("c"))
	for _, l := range []*core.Limiter{a, b} {
		for _, want := range []bool{true, false} {
			for _, key := range hostile() {
				if d := allow(t, l, key, 1); d.Allowed != want {
					t.Errorf("%.50q: %s", key, describe(&d))
				}
			}
		}
	}
	if got, want := keys(t, server), int64(3*len(hostile())); got != want {
		t.Errorf("%d keys in Redis, not %d", got, want)
	}
	for _, key := range hostile() {
		if err := a.Reset(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := keys(t, server), int64(len(hostile())); got != want {
		t.Errorf("%d keys in Redis after the reset, not %d", got, want)
	}
}

func FuzzCellsAreDistinct(f *testing.F) {
	for _, key := range hostile() {
		f.Add("a", "b", key, "a/b", "", key+"}")
	}
	s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}), Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Client().Close() })
	f.Fuzz(func(t *testing.T, limiter1, policy1, key1, limiter3, policy2, key2 string) {
		l1, err1 := core.New(s, limiter1, core.SlidingLog(core.PerDay(1)).Named(policy1))
		l2, err3 := core.New(s, limiter3, core.SlidingLog(core.PerDay(1)).Named(policy2))
		if err1 != nil || err3 != nil {
			return
		}
		name1 := s.cell(t, l1, key1)
		name2 := s.cell(t, l2, key2)
		same := limiter1 == limiter3 && l1.Policies()[0].Name() == l2.Policies()[0].Name() && key1 == key2
		if (name1 == name2) != same {
			t.Errorf("%q and %q", name1, name2)
		}
		tag := name1[strings.IndexByte(name1, '{')+1 : strings.IndexByte(name1, '}')]
		if tag == "" || strings.ContainsAny(tag, "{}") {
			t.Errorf("%q has the hash tag %q", name1, tag)
		}
	})
}

func TestPrefixKeepsStoresApart(t *testing.T) {
	server := redistest.Start(t)
	for _, c := range []Config{{}, {Prefix: "a"}, {Prefix: "a:b"}, {Secret: someSecret("x")}, {Secret: someSecret("y")}, {Prefix: "a", Secret: someSecret("x")}} {
		l := newLimiter(t, open(t, c, server.Addr()), "api", core.FixedWindow(per(1, 400*day)))
		if d := allow(t, l, "k", 1); !d.Allowed {
			t.Errorf("%+v: %s", c, describe(&d))
		}
		again := newLimiter(t, open(t, c, server.Addr()), "api", core.FixedWindow(per(1, 400*day)))
		if d := allow(t, again, "k", 1); d.Allowed {
			t.Errorf("%+v, another process: %s", c, describe(&d))
		}
	}
}

// someSecret is a secret that is long enough.
func someSecret(end string) []byte { return []byte("a secret of thirty-two bytes or more" + end) }

// However a store is printed, the secret is not in the output. Nor is it when the fault of
// another field is reported.
func TestSecretIsNotPrinted(t *testing.T) {
	secret := someSecret("")
	s := away(t, Config{Secret: secret, Prefix: "printed"})
	s.backend.names.AppendTag(nil, "k")
	_, err := New(s.Client(), Config{Secret: secret, Servers: -1})
	_, short := New(s.Client(), Config{Secret: secret[:31]})
	if short == nil || !strings.Contains(short.Error(), "a Secret of 31 bytes") {
		t.Errorf("a short secret: %v", short)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		all := fmt.Sprintf(verb+verb+verb, s, err, short)
		if !strings.Contains(all, fmt.Sprintf(verb, "printed")) && !strings.Contains(all, "printed") {
			t.Errorf("%s shows no Config", verb)
		}
		shown := strings.Trim(fmt.Sprintf(verb, secret[:8]), "[]{}byte") // also within a longer list
		if strings.Contains(all, shown) || strings.Contains(all, string(secret[:8])) {
			t.Errorf("%s shows the secret", verb)
		}
	}
}

// Policies of one limiter have records of their own; two whose names have the same hash are refused.
func TestRecordsAreDistinct(t *testing.T) {
	seen := make(map[int64]string)
	for i, p := range []core.Policy{
		core.TokenBucket(core.PerDay(1), 1), core.FixedWindow(core.PerDay(1)), core.SlidingWindow(core.PerDay(1)), core.MinInterval(time.Second),
	} {
		policy := newLimiter(t, away(t, Config{}), fmt.Sprint(i), p).Prepared().Spec().Policies[0]
		for _, name := range hostileNames {
			policy.Name = name
			id := tagOf(&policy) >> lengthBits
			if other, ok := seen[id]; ok {
				t.Errorf("%v named %q and %s have the same id", p, name, other)
			}
			seen[id] = fmt.Sprint(p, name)
		}
	}
	s, named := away(t, Config{}), make(map[int64]string)
	bucket := core.FixedWindow(core.PerDay(1))
	policy := store.Policy{Step: newLimiter(t, s, "api", bucket).Prepared().Spec().Policies[0].Step}
	rng := newRand(t)
	for { // of numbers that follow each other, few have hashes that are close
		policy.Name = fmt.Sprintf("%x", rng.Uint64())
		other, ok := named[tagOf(&policy)]
		if named[tagOf(&policy)] = policy.Name; !ok {
			continue
		}
		_, err := core.New(s, "api", bucket.Named(other), bucket.Named(policy.Name))
		if err == nil || !strings.Contains(err.Error(), other) || !strings.Contains(err.Error(), "rename one") {
			t.Errorf("%s and %s: %v", other, policy.Name, err)
		}
		// Of two plans too, which have a policy in common: another store has prepared neither.
		s := away(t, Config{})
		common := core.SlidingWindow(core.PerDay(1)).Named("common")
		root := newLimiter(t, s, "api", common, bucket.Named(other))
		if _, err := root.With(common, bucket.Named(policy.Name)); err == nil || !strings.Contains(err.Error(), "rename one") {
			t.Errorf("plans with %s and %s: %v", other, policy.Name, err)
		}
		if _, err := core.New(s, "another limiter", bucket.Named(policy.Name)); err != nil {
			t.Error(err)
		}
		return
	}
}

// With a secret, nothing of a key can be read in Redis, nor guessed by hashing.
func TestSecretHidesKeys(t *testing.T) {
	server := redistest.Start(t)
	const key, secret = "203.0.113.77", "the secret of all servers, of 32 bytes"
	c := Config{Secret: []byte(secret)}
	s := open(t, c, server.Addr())
	copy(c.Secret, "overwritten by its owner") // a slice may be reused
	for i := range 10 {
		l := newLimiter(t, s, fmt.Sprint("api", i), somePolicies(4, 100)...)
		for _, k := range []string{key, strings.Repeat(key, 20)} {
			allow(t, l, k, 1)
		}
	}
	all, err := s.Client().Keys(t.Context(), "*").Result()
	if err != nil || len(all) != 10*2*2 {
		t.Fatal(len(all), err)
	}
	for _, name := range all {
		value, err := s.Client().Dump(t.Context(), name).Result()
		if err != nil || strings.Contains(name+value, "203.0.113") || strings.Contains(name+value, "secret") {
			t.Errorf("%q: %v", name, err)
		}
	}
	plain := rediskey.New("headgate", nil).AppendTag(nil, strings.Repeat(key, 20))
	hidden := s.backend.names.AppendTag(nil, strings.Repeat(key, 20))
	if string(plain) == string(hidden) {
		t.Error("a long key has its name without the secret")
	}
	if got := open(t, Config{Secret: []byte(secret)}, server.Addr()).backend.names.AppendTag(nil, key); string(got) != string(s.backend.names.AppendTag(nil, key)) {
		t.Error("another process with the same secret has another name")
	}
}

func TestErrorsDoNotShowKeys(t *testing.T) {
	server := redistest.Start(t)
	const key = "somebody@example.org"
	s := open(t, Config{Failure: FailClosed}, server.Addr())
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(10)))
	d := allow(t, l, key, 1)
	server.Do("RPUSH", s.cell(t, l, key+"2"), "x")
	var errs []error
	ask := func(key string) {
		_, err := l.Allow(t.Context(), key)
		errs = append(errs, err)
	}
	ask(key + "2")
	server.Do("CONFIG", "SET", "maxmemory", "1")
	server.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	ask(key)
	server.Kill()
	for range 5 {
		ask(key)
	}
	errs = append(errs, d.Refund(t.Context()), l.Reset(t.Context(), key))
	for i, err := range errs {
		if err == nil || strings.Contains(err.Error(), "somebody") {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// Every key expires: not before its state is fresh, and later at most by half as much, by a second, or, of a bucket, by a sixteenth of its period.
func TestKeysLiveAsLongAsTheyCount(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1}, server.Addr())
	rng := rand.New(rand.NewPCG(1, 1))
	spans := []time.Duration{time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond, time.Second, time.Minute, day, 3650 * day}
	for _, span := range spans {
		for i, p := range []core.Policy{
			core.TokenBucket(core.Rate{Events: 3, Per: span}, 5),
			core.FixedWindow(core.Rate{Events: 5, Per: span}),
			core.SlidingWindow(core.Rate{Events: 5, Per: span}),
			core.SlidingLog(core.Rate{Events: 5, Per: span}),
			core.SlidingLog(core.Rate{Events: 100, Per: span}),
			core.MinInterval(span),
			core.FixedWindow(core.Rate{Events: 2, Per: span}).CountDenied(),
			core.SlidingLog(core.Rate{Events: 70, Per: span}).CountDenied(),
		} {
			l := newLimiter(t, s, fmt.Sprint(span, i), p)
			name := s.cell(t, l, "k")
			most, bucketSpare := time.Duration(0), time.Duration(0) // most: for which it has counted
			if i == 0 {
				bucketSpare = span / 16
			}
			for range 20 {
				asked := time.Now()
				d := allow(t, l, "k", 1+rng.Int64N(min(3, p.Limit())))
				most = max(most, d.ResetAfter)
				if d.Allowed && rng.IntN(4) == 0 {
					if err := d.Refund(t.Context()); err != nil {
						t.Fatal(err)
					}
					continue
				}
				reply, err := server.Do("PTTL", name)
				if err != nil {
					t.Fatal(err)
				}
				left, took := time.Duration(reply.(int64))*time.Millisecond, time.Since(asked)
				switch {
				case left == -time.Millisecond:
					t.Fatalf("%v lives for ever", p)
				case left < 0 && took < d.ResetAfter:
					t.Fatalf("%v is gone %v after it was used, and counts for %v", p, took, d.ResetAfter)
				case left > 0 && left < d.ResetAfter-took-time.Millisecond:
					t.Fatalf("%v is gone in %v, and counts for %v", p, left, d.ResetAfter)
				case left > most+max(most/2, time.Second, bucketSpare)+2*time.Millisecond:
					t.Fatalf("%v is gone only in %v, and has counted for %v", p, left, most)
				}
			}
		}
	}
	// In time, nothing is left of the short ones.
	long := int64(3 * 8) // spans of a minute and more
	eventually(t, "short-lived keys to expire", func() bool { return keys(t, server) <= long })
	all, err := s.Client().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if left := s.Client().PTTL(t.Context(), name).Val(); left <= 0 {
			t.Errorf("%s: %v", name, left)
		}
	}
}

// A value that was written over one of other numbers outlives later charges too.
func TestLivesAreRenewedAfterOtherNumbers(t *testing.T) {
	s := open(t, Config{RefusalTTL: -1}, redistest.Start(t).Addr())
	for name, of := range map[string]func(time.Duration) core.Policy{
		"SlidingWindow": func(d time.Duration) core.Policy { return core.SlidingWindow(core.Rate{Events: 1000, Per: d}) },
		"SlidingLog":    func(d time.Duration) core.Policy { return core.SlidingLog(core.Rate{Events: 60, Per: d}) },
		"ranged":        func(d time.Duration) core.Policy { return core.SlidingLog(core.Rate{Events: 1000, Per: d}) },
		"TokenBucket":   func(d time.Duration) core.Policy { return core.TokenBucket(core.Rate{Events: 60, Per: d}, 60) },
		"MinInterval":   core.MinInterval,
	} {
		const span = time.Second
		l := newLimiter(t, s, name, of(span))
		short := with(t, l, of(10*time.Millisecond))
		for try := range 3 { // as a period may end between
			key := fmt.Sprint("k", try)
			cell := s.cell(t, l, key)
			expiring := allow(t, short, key, 1)
			<-time.After(expiring.ResetAfter + time.Millisecond)
			n := int64(40) // fills two thirds of a bucket
			if name == "MinInterval" {
				n = 1
			}
			for range 15 {
				asked := time.Now()
				d := allow(t, l, key, n)
				left := s.Client().PTTL(t.Context(), cell).Val()
				if left < d.ResetAfter-time.Since(asked)-time.Millisecond {
					t.Fatalf("%s: gone in %v, and counts for %v", name, left, d.ResetAfter)
				}
				n = 1
				<-time.After(span / 100)
			}
		}
	}
}

// A charge that renews the life of a long log, of which it has read no more than the beginning,
// leaves the rest as it is.
func TestLongLogsStayWholeWhenRenewed(t *testing.T) {
	s, clock := open(t, Config{RefusalTTL: -1}, redistest.Start(t).Addr()), handClock()
	clock.tell(s)
	l := newLimiter(t, s, "api", core.SlidingLog(core.Rate{Events: 100, Per: 4 * time.Second}))
	allow(t, l, "k", 50)
	clock.move(1_000_000)
	allow(t, l, "k", 40)
	d := allow(t, l, "k", 10)
	if err := d.Refund(t.Context()); err != nil { // the ring wraps around from now on
		t.Fatal(err)
	}
	clock.move(1_500_000) // after which the life is too short, with an instant too
	allow(t, l, "k", 1)
	clock.move(2_000_000) // the first 50 have expired, 10 of which were given back
	if d := allow(t, l, "k", 1); d.Remaining != 48 {
		t.Errorf("%d left, want 48: 52 count", d.Remaining)
	}
}

// Windows under a second are windows too.
func TestShortWindowsHold(t *testing.T) {
	t.Parallel()
	s := open(t, Config{}, redistest.Start(t).Addr())
	rate := core.Rate{Events: 5, Per: 700 * time.Millisecond}
	for name, p := range map[string]core.Policy{
		"TokenBucket": core.TokenBucket(rate, 5), "FixedWindow": core.FixedWindow(rate), "SlidingWindow": core.SlidingWindow(rate), "SlidingLog": core.SlidingLog(rate),
	} {
		l := newLimiter(t, s, name, p)
		start := time.Now()
		n := admitted(t, l, "k", 50)
		most := 5 * (2 + int64(time.Since(start)/rate.Per)) // a boundary may lie between
		if n < 5 || n > most {
			t.Errorf("%s: %d of 50 admitted", name, n)
		}
		eventually(t, name+": the next window", func() bool { return allow(t, l, "k", 1).Allowed })
	}
}

// A key that is charged under other numbers, of a shorter period, is still known when
// those of the longer one come back.
func TestOtherNumbersDoNotShortenLives(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1}, server.Addr())
	for name, of := range map[string]func(time.Duration) core.Policy{
		"FixedWindow":      func(d time.Duration) core.Policy { return core.FixedWindow(core.Rate{Events: 5, Per: d}) },
		"SlidingWindow":    func(d time.Duration) core.Policy { return core.SlidingWindow(core.Rate{Events: 5, Per: d}) },
		"SlidingLog":       func(d time.Duration) core.Policy { return core.SlidingLog(core.Rate{Events: 5, Per: d}) },
		"ranged":           func(d time.Duration) core.Policy { return core.SlidingLog(core.Rate{Events: 100, Per: d}) },
		"TokenBucket":      func(d time.Duration) core.Policy { return core.TokenBucket(core.Rate{Events: 5, Per: d}, 5) },
		"MinInterval":      core.MinInterval,
		"denied and whole": func(d time.Duration) core.Policy { return core.SlidingLog(core.Rate{Events: 5, Per: d}).CountDenied() },
	} {
		l := newLimiter(t, s, name, of(400*day))
		short := with(t, l, of(time.Second))
		for key, order := range map[string][]*core.Limiter{"long first": {l, short, short}, "short first": {short, l, short}} {
			for _, l := range order {
				allow(t, l, key, 1)
			}
			left := s.Client().PTTL(t.Context(), s.cell(t, l, key)).Val()
			if left < 400*day-time.Minute { // a window from the last call
				t.Errorf("%s, %s: gone in %v", name, key, left)
			}
		}
	}
}
