package memory_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

// heap returns the live bytes of the heap.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

const century = 100 * 365 * 24 * time.Hour

var flood = flag.Int("flood", 25_000, "keys of each flood")

// TestFloodIsBoundedAndBuysNothing: a flood of made-up keys stays inside the bound, and
// keys that are refused stay refused: also if they have units left, if the flood's keys have
// no more left, and if a quarter of the keys held are refused.
func TestFloodIsBoundedAndBuysNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for i, test := range []struct {
		policy core.Policy
		limit  int64
		cost   int64 // of each call
	}{
		{core.TokenBucket(10, time.Hour), 10, 1},
		{core.TokenBucket(10, time.Hour), 10, 4},
		{core.TokenBucket(1, time.Hour), 1, 1},
		{core.FixedWindow(10, century), 10, 4},
		{core.FixedWindow(1, century), 1, 1},
		{core.SlidingWindow(10_000, 24*time.Hour), 10_000, 4000},
		{core.SlidingWindow(1, time.Hour), 1, 1},
		{core.SlidingLog(10, time.Hour), 10, 4},
		{core.SlidingLog(1, time.Hour), 1, 1},
		{core.SlidingLog(1, time.Hour).CountDenied(), 1, 1},
		{core.MinInterval(time.Hour), 1, 1},
	} {
		if i > 1 && testing.Short() {
			break
		}
		t.Run(fmt.Sprintf("%v, %d a call", test.policy, test.cost), func(t *testing.T) {
			calls := int(test.limit / test.cost) // that a key is admitted
			t.Run("each key once", func(t *testing.T) { floodStore(t, test.policy, test.cost, 1, false) })
			if calls > 1 {
				t.Run("each key as often as it is admitted", func(t *testing.T) { floodStore(t, test.policy, test.cost, calls, false) })
			}
			t.Run("some keys until they are refused", func(t *testing.T) { floodStore(t, test.policy, test.cost, 1, true) })
		})
	}
}

// floodStore makes so many calls with each key of a flood. If refused is set, it charges
// some until they are refused, up to a quarter of the keys held.
func floodStore(t *testing.T, p core.Policy, cost int64, calls int, refused bool) {
	t.Helper()
	const bound = 1 << 20
	ctx := t.Context()
	before := heap()
	store := &core.MemoryStore{MaxBytes: bound}
	l := core.NewLimiter(store, "flood", p)
	exhaust := func(key string) {
		for {
			if d, err := l.AllowN(ctx, key, cost); err != nil {
				t.Fatal(err)
			} else if !d.Allowed {
				return
			}
		}
	}
	abusers := make([]string, 5)
	for i := range abusers {
		abusers[i] = "abuser-" + strconv.Itoa(i)
		exhaust(abusers[i])
	}
	rng := rand.New(rand.NewPCG(3, 4))
	exhausted, most := 0, 0
	for i := range *flood {
		key := strconv.FormatUint(rng.Uint64(), 36)
		for range calls {
			if _, err := l.AllowN(ctx, key, cost); err != nil {
				t.Fatal(err)
			}
		}
		if refused && exhausted < most {
			exhaust(key)
			exhausted++
		}
		if i%100 == 0 {
			most = store.Backend().Memory.Use().Keys / 4
			d, err := l.AllowN(ctx, abusers[i/100%len(abusers)], cost)
			if err != nil || d.Allowed {
				t.Fatalf("after %d keys an abuser has a fresh start: %v %v", i, d, err)
			}
		}
	}
	st := store.Backend().Memory.Use()
	if st.Bytes > bound {
		t.Errorf("%d bytes are counted, the bound is %d", st.Bytes, bound)
	}
	if st.Evicted == 0 {
		t.Error("no eviction was counted")
	}
	// Beside the state there are 256 shards and what the runtime rounds up.
	if used := heap() - before; used > bound*5/4+1<<19 {
		t.Errorf("the heap grew by %d bytes, the bound is %d", used, bound)
	}
	runtime.KeepAlive(store)
}

// TestFloodOfRefusedKeys: if all keys of a flood are charged until they are refused, new
// keys are limited nevertheless, and a refused key gets no more fresh starts than the
// flood could fill the store.
func TestFloodOfRefusedKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, test := range []struct {
		policy core.Policy
		cost   int64
	}{
		{core.TokenBucket(1, 24*time.Hour), 1},
		{core.SlidingWindow(10_000, 100*24*time.Hour), 4000},
		{core.SlidingLog(10, 24*time.Hour), 4},
	} {
		// Where a key happens to be decides how often it is evicted, so one store does not tell.
		const stores = 4
		fresh, held := 0, 0
		for range stores {
			n, keys := freshStarts(t, test.policy, test.cost)
			fresh, held = fresh+n, held+keys
		}
		if fresh > stores*(4+4**flood*stores/held) { // about one for each time
			t.Errorf("%v: %d fresh starts by %d keys in %d stores, of %d keys together", test.policy, fresh, *flood, stores, held)
		}
	}
}

// freshStarts returns how often a refused key is admitted anew, and how many keys the store
// holds.
func freshStarts(t *testing.T, policy core.Policy, cost int64) (fresh, held int) {
	t.Helper()
	store := &core.MemoryStore{MaxBytes: 1 << 20}
	l := core.NewLimiter(store, "flood", policy)
	exhaust := func(key string) (admitted int64) {
		for {
			d, err := l.AllowN(t.Context(), key, cost)
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				return admitted
			}
			if admitted += cost; admitted > 30_000 {
				t.Fatalf("%v: key %s was admitted %d units", policy, key, admitted)
			}
		}
	}
	exhaust("abuser")
	for i := range *flood {
		exhaust(strconv.Itoa(i))
		if exhaust("abuser") > 0 {
			fresh++
		}
	}
	return fresh, int(store.Backend().Memory.Use().Keys)
}

// TestFloodLimitsNewKeys: in a full store, of whose keys none is better to evict than
// another, a key is not evicted each time that it is charged.
func TestFloodLimitsNewKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, p := range []core.Policy{core.SlidingWindow(1, century), core.FixedWindow(1, century)} {
		store := &core.MemoryStore{MaxBytes: 1 << 20}
		l := core.NewLimiter(store, "api", p)
		allow := func(key string) bool {
			d, err := l.Allow(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return d.Allowed
		}
		for i := range 25_000 {
			allow("old" + strconv.Itoa(i))
		}
		for i := range 2000 {
			admitted := 0
			for key := strconv.Itoa(i); allow(key); {
				if admitted++; admitted == 20 {
					t.Fatalf("%v: key %s was admitted %d times in %d evictions", p, key, admitted, store.Backend().Memory.Use().Evicted)
				}
			}
		}
	}
}

// TestFloodOfLargeStates: a log in use takes so much memory that few keys fill the store.
// One that is refused although it has units left is kept.
func TestFloodOfLargeStates(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, p := range []core.Policy{core.SlidingLog(1000, 24*time.Hour), core.SlidingWindow(1000, 24*time.Hour).Resolution(1000)} {
		store := &core.MemoryStore{MaxBytes: 8 << 20}
		l := core.NewLimiter(store, "tokens", p)
		for i := range 3 {
			if d, err := l.AllowN(t.Context(), "abuser", 400); err != nil || d.Allowed != (i < 2) {
				t.Fatal(d, err)
			}
		}
		for i := range 10_000 {
			if d, err := l.AllowN(t.Context(), strconv.Itoa(i), 400); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		if store.Backend().Memory.Use().Evicted == 0 {
			t.Errorf("%v: the flood is too small", p)
		}
		if d, err := l.AllowN(t.Context(), "abuser", 400); err != nil || d.Allowed {
			t.Errorf("%v: %v, %v", p, d, err)
		}
	}
}

// Long states make room for each other, and for short ones.
func TestLongStatesAreReclaimed(t *testing.T) {
	const bound = 2 << 20
	store := &core.MemoryStore{MaxBytes: bound}
	logs := core.NewLimiter(store, "logs", core.SlidingLog(1000, time.Hour))
	buckets := core.NewLimiter(store, "buckets", core.TokenBucket(10, time.Hour))
	ctx := context.Background()
	for i := range 1000 { // 8 kB each
		if d, err := logs.AllowN(ctx, "log-"+strconv.Itoa(i), 1000); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if st := store.Backend().Memory.Use(); st.Bytes > bound {
			t.Fatalf("after %d logs %d bytes are counted, the bound is %d", i+1, st.Bytes, bound)
		}
	}
	for i := range 20_000 {
		if d, err := buckets.Allow(ctx, "bucket-"+strconv.Itoa(i)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if st := store.Backend().Memory.Use(); st.Bytes > bound || st.Keys < 20_000 {
		t.Errorf("%d keys in %d bytes: the buckets should have taken the logs' room", st.Keys, st.Bytes)
	}
}

// TestRefundAfterEviction: what was charged after a key was evicted pays for a refund of
// a charge that was made before, as after a Reset.
func TestRefundAfterEviction(t *testing.T) {
	ctx := t.Context()
	l := core.NewLimiter(&core.MemoryStore{MaxBytes: 1 << 20}, "api", core.FixedWindow(4, 100*365*24*time.Hour))
	left := func() int64 {
		d, err := l.Peek(ctx, "key")
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	charge, err := l.Allow(ctx, "key")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; left() == 3; i++ {
		if _, err := l.AllowN(ctx, strconv.Itoa(i), 4); err != nil {
			t.Fatal(err)
		}
		if i == 1_000_000 {
			t.Fatal("the key was not evicted")
		}
	}
	if d, err := l.AllowN(ctx, "key", 4); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if err := charge.Refund(ctx); err != nil {
		t.Fatal(err)
	}
	if got := left(); got != 1 {
		t.Errorf("%d left after a refund of 1 unit, want 1", got)
	}
}

// TestSettleKeepsTheBound: logs that grow as their charges are settled make room, as
// those do that are charged.
func TestSettleKeepsTheBound(t *testing.T) {
	const bound = 1 << 20
	ctx := t.Context()
	store := &core.MemoryStore{MaxBytes: bound}
	l := core.NewLimiter(store, "logs", core.SlidingLog(1000, time.Hour))
	decisions := make([]core.Decision, 500)
	for i := range decisions {
		d, err := l.Allow(ctx, strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		decisions[i] = d
	}
	for i := range decisions { // to 8 kB each
		if err := decisions[i].Settle(ctx, 1000); err != nil {
			t.Fatal(err)
		}
		if st := store.Backend().Memory.Use(); st.Bytes > bound {
			t.Fatalf("after %d were settled %d bytes are counted, the bound is %d", i+1, st.Bytes, bound)
		}
	}
	if st := store.Backend().Memory.Use(); st.Evicted == 0 {
		t.Error("nothing had to be evicted")
	}
}

// TestOnlyChargesCreateStates: no state is created by a peek, and none by a refusal, except
// in a policy that counts it.
func TestOnlyChargesCreateStates(t *testing.T) {
	ctx := t.Context()
	full := core.FixedWindow(1, century).Named("full")
	store := new(core.MemoryStore)
	limiter := func(name string, policies ...core.Policy) *core.Limiter {
		l := core.NewLimiter(store, name, policies...)
		return l
	}
	expect := func(keys int, what string) {
		t.Helper()
		if st := store.Backend().Memory.Use(); st.Keys != keys {
			t.Errorf("%d states after %s, want %d", st.Keys, what, keys)
		}
	}
	l := limiter("api", full)
	if _, err := l.Peek(ctx, "key"); err != nil {
		t.Fatal(err)
	}
	expect(0, "a peek")
	if d, err := l.Allow(ctx, "key"); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	expect(1, "a charge")
	if d, err := l.Allow(ctx, "key"); err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	expect(1, "a refusal")

	others := limiter("api", core.TokenBucket(9, time.Hour).Named("a"), full, core.SlidingLog(9, time.Hour).Named("b"), core.MinInterval(time.Hour).Named("c"))
	if d, err := others.Allow(ctx, "key"); err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	expect(1, "a refusal by one of four policies")

	bucket, window := limiter("bucket", core.TokenBucket(9, time.Hour)), limiter("window", core.SlidingWindow(9, time.Hour))
	d, err := core.AllowAll(ctx,
		bucket.Charge("a", 1), l.Charge("key", 1), window.Charge("b", 1))
	if err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	expect(1, "a refusal of one of three keys")

	counted := limiter("api", full, core.SlidingWindow(9, time.Hour).CountDenied().Named("counts"), core.MinInterval(time.Hour).Named("c"))
	if d, err := counted.Peek(ctx, "key"); err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	expect(1, "a peek that counts no refusal")
	if d, err := counted.Allow(ctx, "key"); err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	expect(2, "a refusal that counts")
}

func TestPrepareRefusesStatesAboveTheStore(t *testing.T) {
	for bound, resolution := range map[int64]int{1 << 20: 0, 1<<20 - 1: 10} { // the second store is too small for anything
		func() {
			defer func() {
				if text := recover(); (text == nil) != (resolution == 0) {
					t.Errorf("%d bytes: %v", bound, text)
				}
			}()
			core.NewLimiter(&core.MemoryStore{MaxBytes: bound}, "log", core.SlidingLog(1024, time.Hour))
		}()
	}
}

// A store that is used at all gets rid of what is fresh, without being asked.
func TestIdleStoreShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(core.MemoryStore)
		l := core.NewLimiter(store, "idle", core.SlidingLog(10, time.Minute))
		ctx := context.Background()
		const keys = 20_000
		for i := range keys {
			if _, err := l.Allow(ctx, strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
		full := store.Backend().Memory.Use()
		if full.Keys != keys || full.Evicted != 0 {
			t.Fatalf("%+v after %d keys", full, keys)
		}
		time.Sleep(2 * time.Minute)
		for range 10 * keys { // about one entry is looked at for each call
			if _, err := l.Allow(ctx, "one"); err != nil {
				t.Fatal(err)
			}
		}
		if st := store.Backend().Memory.Use(); st.Keys != 1 || st.Bytes > full.Bytes/5 || st.Evicted != 0 {
			t.Errorf("%+v is left of %+v", st, full)
		}
	})
}
