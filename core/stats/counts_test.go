package stats

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

var flood = flag.Int("flood", 100_000, "keys of the test of series")

// age is a window that ends in no test.
const age = 400 * 24 * time.Hour

// storeOf returns a store whose events a Stats counts.
func storeOf(s *Stats) *core.MemoryStore {
	return &core.MemoryStore{Observers: []*core.Observer{s.Observer()}}
}

func newLimiter(_ testing.TB, s core.Store, name string, policies ...core.Policy) *core.Limiter {
	return core.NewLimiter(s, name, policies...)
}

func allow(t testing.TB, l *core.Limiter, key string, n int64) core.Decision {
	t.Helper()
	d, err := l.AllowN(context.Background(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func prometheus(t testing.TB, s *Stats) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.WritePrometheus(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// away is a store that fails with that error.
type away struct{ err error }

func (away) Prepare([]step.Policy) error { return nil }

func (a away) Ask(context.Context, step.Mode, []step.Cell) (bool, error) { return false, a.err }

// A failing store tells a Stats of its decisions.
type failing struct{ backend backend.Stores }

func (f *failing) Backend() *backend.Stores { return &f.backend }

// TestCounts of each kind of call.
func TestCounts(t *testing.T) {
	s := New(Config{})
	m := storeOf(s)
	api := newLimiter(t, m, "api", core.FixedWindow(10, age).Named("wide"), core.FixedWindow(4, age).Named("narrow"))
	other := newLimiter(t, m, "other", core.FixedWindow(2, age))
	banned := newLimiter(t, m, "banned", core.Blocked())
	ctx := context.Background()
	d := allow(t, api, "a", 3)
	if err := d.Refund(ctx); err != nil {
		t.Fatal(err)
	}
	d = allow(t, api, "a", 1)
	if err := d.Settle(ctx, 6); err != nil { // 3 fit
		t.Fatal(err)
	}
	allow(t, api, "a", 2)
	allow(t, api, "a", 11)
	allow(t, banned, "a", 1)
	if _, err := core.AllowAll(ctx, api.Charge("b", 2), other.Charge("b", 5)); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{store.ErrUnavailable, context.Canceled, context.DeadlineExceeded, errors.New("a fault")} {
		l := newLimiter(t, &failing{backend.Stores{Rates: away{err}, Observer: s.Observer().Backend(nil)}}, "broken", core.FixedWindow(1, age))
		if _, err := l.AllowN(ctx, "a", 1); err == nil {
			t.Fatal("no error")
		}
	}
	ws := core.NewSlots(m, "ws", 2)
	first, _ := ws.Acquire(ctx, "a")
	_, _ = ws.Acquire(ctx, "a")
	_, _ = ws.Acquire(ctx, "a")
	first.Release()
	_ = ws.Close(ctx)
	_, _ = ws.Acquire(ctx, "a")
	text := prometheus(t, s)
	for _, line := range []string{
		`headgate_decisions_total{limiter="api",policy="narrow",result="admitted",source="store"} 2`,
		`headgate_decision_units_total{limiter="api",policy="narrow",result="admitted",source="store"} 4`,
		`headgate_decisions_total{limiter="api",policy="narrow",result="refused",source="store"} 1`,
		`headgate_decision_units_total{limiter="api",policy="narrow",result="refused",source="store"} 2`,
		`headgate_decisions_total{limiter="api",policy="wide",result="refused",source="policy"} 1`,
		`headgate_decision_units_total{limiter="api",policy="wide",result="refused",source="policy"} 11`,
		`headgate_decisions_total{limiter="api",policy="",result="withdrawn",source="policy"} 1`,
		`headgate_decisions_total{limiter="other",policy="other",result="refused",source="policy"} 1`,
		`headgate_decisions_total{limiter="banned",policy="banned",result="refused",source="policy"} 1`,
		`headgate_decision_errors_total{limiter="broken",reason="unavailable"} 1`,
		`headgate_decision_errors_total{limiter="broken",reason="canceled"} 1`,
		`headgate_decision_errors_total{limiter="broken",reason="timeout"} 1`,
		`headgate_decision_errors_total{limiter="broken",reason="other"} 1`,
		`headgate_settlements_total{limiter="api"} 2`,
		`headgate_settlement_given_back_units_total{limiter="api"} 3`,
		`headgate_settlement_charged_units_total{limiter="api"} 5`,
		`headgate_settlement_uncovered_units_total{limiter="api"} 2`,
		`headgate_settlement_errors_total{limiter="api"} 0`,
		`headgate_slots_held{slots="ws"} 1`,
		`headgate_slot_claims_total{slots="ws",result="admitted",source="store"} 2`,
		`headgate_slot_claims_total{slots="ws",result="refused",source="store"} 1`,
		`headgate_slot_claim_errors_total{slots="ws",reason="closed"} 1`,
		`headgate_memory_states{store="memory"} 2`,
	} {
		if strings.Count(text, line+"\n") != 1 {
			t.Errorf("there is no %s", line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestCountsAreTheDecisions, all of them, whoever calls at the same time.
func TestCountsAreTheDecisions(t *testing.T) {
	s := New(Config{Logger: slog.New(slog.DiscardHandler)})
	m := storeOf(s)
	var limiters []*core.Limiter
	for i := range 5 {
		limiters = append(limiters, newLimiter(t, m, "api "+strconv.Itoa(i), core.FixedWindow(40, age).Named("a"), core.TokenBucket(1, age).Burst(60).Named("b")))
	}
	ws := core.NewSlots(m, "ws", 3)
	var charges, units [2]atomic.Uint64
	var held atomic.Int64
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 500 {
				n := 1 + rng.Int64N(3)
				d, err := limiters[rng.IntN(5)].AllowN(context.Background(), strconv.Itoa(rng.IntN(20)), n)
				if err != nil {
					t.Error(err)
					return
				}
				i := 0
				if d.Allowed {
					i = 1
				}
				charges[i].Add(1)
				units[i].Add(uint64(n))
				if slot, err := ws.Acquire(context.Background(), strconv.Itoa(rng.IntN(4))); err == nil && rng.IntN(20) > 0 {
					slot.Release()
				} else if err == nil {
					held.Add(1)
				}
				if rng.IntN(50) == 0 {
					s.snapshot(true)
				}
			}
		})
	}
	wg.Wait()
	n := s.snapshot(true)
	var gotCharges, gotUnits [2]uint64
	for _, l := range n.Limiters {
		var refusals uint64
		for _, c := range l.Counts {
			i := 0
			if c.Result == admitted {
				i = 1
			} else {
				refusals += c.Charges
			}
			gotCharges[i] += c.Charges
			gotUnits[i] += c.Units
		}
		if l.Top.Refusals != refusals {
			t.Errorf("limiter %s has refused %d, its keys %d", l.Name, refusals, l.Top.Refusals)
		}
	}
	for i := range 2 {
		if gotCharges[i] != charges[i].Load() || gotUnits[i] != units[i].Load() {
			t.Errorf("%d charges of %d units counted, %d of %d made", gotCharges[i], gotUnits[i], charges[i].Load(), units[i].Load())
		}
	}
	if n.Slots[0].Held != held.Load() {
		t.Errorf("%d slots counted, %d held", n.Slots[0].Held, held.Load())
	}
}

// Charges of no units change no number of units, also for who reads meanwhile.
func TestChargesOfNoUnits(t *testing.T) {
	s := New(Config{Logger: slog.New(slog.DiscardHandler)})
	const n = 200_000
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range n {
				s.Observer().Backend(nil).Decided(context.Background(), store.DecisionEvent{Limiter: "api", Policy: "p", Allowed: true})
			}
		})
	}
	read := func() (charges, units uint64) {
		for _, l := range s.snapshot(true).Limiters {
			for _, c := range l.Counts {
				charges, units = charges+c.Charges, units+c.Units
			}
		}
		return charges, units
	}
	for charges := uint64(0); charges < 2*n; {
		var units uint64
		if charges, units = read(); units != 0 {
			t.Fatalf("%d units of %d charges", units, charges)
		}
	}
	wg.Wait()
}

// TestRandomKeysChangeNoSeries, however many there are.
func TestRandomKeysChangeNoSeries(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	s := New(Config{})
	m := storeOf(s)
	l, banned := newLimiter(t, m, "api", core.FixedWindow(1, age)), newLimiter(t, m, "banned", core.Blocked())
	ws := core.NewSlots(m, "ws", 0)
	series := func() string {
		var b strings.Builder
		for line := range strings.Lines(prometheus(t, s)) {
			name, _, _ := strings.Cut(line, "} ")
			if line[0] != '#' {
				name, _, _ = strings.Cut(name, " ")
			}
			b.WriteString(name + "\n")
		}
		return b.String()
	}
	call := func(key string) {
		allow(t, l, key, 1)
		allow(t, l, key, 1)
		allow(t, banned, key, 1)
		if _, err := ws.Acquire(context.Background(), key); err == nil {
			t.Fatal("a slot of 0")
		}
	}
	call("first")
	before := series()
	rng := rand.New(rand.NewPCG(1, 2))
	for range *flood {
		call(strconv.FormatUint(rng.Uint64(), 36))
	}
	if after := series(); after != before {
		t.Errorf("the series were\n%s\nand are\n%s", before, after)
	}
	for _, x := range s.snapshot(true).Limiters {
		if len(x.Top.Keys) != 128 {
			t.Errorf("%s shows %d keys", x.Name, len(x.Top.Keys))
		}
	}
}

// TestNoOutputHasAKey: a hash stands for it, which differs from process to process, and is in no metric and no log.
func TestNoOutputHasAKey(t *testing.T) {
	var log journal
	s := New(Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	m := storeOf(s)
	l, ws := newLimiter(t, m, "api", core.FixedWindow(1, age)), core.NewSlots(m, "ws", 0)
	const key = "alice@example.com"
	for range 3 {
		allow(t, l, key, 1)
		_, _ = ws.Acquire(context.Background(), key)
	}
	flush(s)
	text, err := json.Marshal(s.snapshot(true))
	if err != nil {
		t.Fatal(err)
	}
	hash := s.snapshot(true).Limiters[0].Top.Keys[0].Name
	other := New(Config{})
	allow(t, newLimiter(t, storeOf(other), "banned", core.Blocked()), key, 1)
	if again := other.snapshot(true).Limiters[0].Top.Keys[0].Name; len(hash) != 16 || hash == again {
		t.Errorf("the hashes are %s and %s", hash, again)
	}
	if !strings.Contains(log.String(), `"limiter":"api"`) {
		t.Errorf("nothing was logged: %s", log.String())
	}
	for name, output := range map[string]string{
		"the metrics": prometheus(t, s), "the snapshot": string(text), "the log": log.String(),
		"the value": fmt.Sprintf("%v %+v", s, s), "the value in Go": fmt.Sprintf("%#v", s),
	} {
		if strings.Contains(output, key) {
			t.Errorf("the key is in %s: %s", name, output)
		}
		if name != "the snapshot" && strings.Contains(output, hash) {
			t.Errorf("the hash is in %s: %s", name, output)
		}
	}
}

// TestKeysInClear are shown only if that is configured, and not all of a long one.
func TestKeysInClear(t *testing.T) {
	s := New(Config{ShowKeys: true})
	banned := newLimiter(t, storeOf(s), "banned", core.Blocked())
	allow(t, banned, "user-42", 1)
	allow(t, banned, "user-42", 1)
	allow(t, banned, strings.Repeat("x", 1000), 1)
	keys := s.snapshot(true).Limiters[0].Top.Keys
	if len(keys) != 2 || keys[0].Name != "user-42" || keys[0].Refusals != 2 || keys[1].Name != strings.Repeat("x", 128)+"…" {
		t.Errorf("%+v", keys)
	}
}

// TestNamesOfAllKinds are escaped, so that nothing in them is a label or a line.
func TestNamesOfAllKinds(t *testing.T) {
	s := New(Config{})
	m := storeOf(s)
	allow(t, newLimiter(t, m, `a"} 1\ {b="`, core.Blocked()), "key", 1)
	s.Observer().Backend(nil).Decided(context.Background(), store.DecisionEvent{Limiter: "two\nlines", Policy: "ä", Units: 1, Source: step.SourceNone})
	text := prometheus(t, s)
	for _, line := range []string{
		`headgate_decisions_total{limiter="a\"} 1\\ {b=\"",policy="a\"} 1\\ {b=\"",result="refused",source="policy"} 1`,
		`headgate_decisions_total{limiter="two\nlines",policy="ä",result="refused",source="none"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
}

// TestNamesWithoutEnd are counted together when there are too many.
func TestNamesWithoutEnd(t *testing.T) {
	s := New(Config{})
	o := s.Observer().Backend(nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2000 {
				o.Decided(context.Background(), store.DecisionEvent{Limiter: "limiter " + strconv.Itoa(i), Policy: "p", Allowed: true, Units: 1})
				o.Acquired(context.Background(), store.SlotEvent{Slots: "slots " + strconv.Itoa(i), Granted: true})
				o.Decided(context.Background(), store.DecisionEvent{Limiter: "limiter 0", Policy: "policy " + strconv.Itoa(i), Allowed: true, Units: 1})
			}
		})
	}
	wg.Wait()
	n := s.snapshot(true)
	var total uint64
	policies := 0
	for _, l := range n.Limiters {
		for _, c := range l.Counts {
			total += c.Charges
			if l.Name == "limiter 0" {
				policies++
			}
		}
	}
	if len(n.Limiters) != 1025 || len(n.Slots) != 1025 || policies != 17 || total != 4*2000*2 {
		t.Errorf("%d limiters, %d slots, %d policies, %d charges", len(n.Limiters), len(n.Slots), policies, total)
	}
	if n.Limiters[0].Name != others {
		t.Errorf("%q is the first", n.Limiters[0].Name)
	}
}

// TestNameOfOthers may be one that somebody has chosen: it has one series all the same.
func TestNameOfOthers(t *testing.T) {
	s := New(Config{})
	o := s.Observer().Backend(nil)
	for i := range 1030 {
		name := others
		if i > 0 {
			name = strconv.Itoa(i)
		}
		o.Decided(context.Background(), store.DecisionEvent{Limiter: name, Policy: "p", Allowed: true, Units: 1})
	}
	n := s.snapshot(true)
	if len(n.Limiters) != 1024 || n.Limiters[0].Name != others || n.Limiters[0].Counts[0].Charges != 7 {
		t.Errorf("%d limiters, first %+v", len(n.Limiters), n.Limiters[0])
	}
}

// TestStoreThatChanges is reported.
func TestStoreThatChanges(t *testing.T) {
	var log journal
	s := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	o := s.Observer().Backend(nil)
	o.Called(store.Call{Questions: 3, Took: 3 * time.Millisecond})
	o.Called(store.Call{Questions: 1, Took: time.Hour, Err: errors.New("refused")})
	o.Changed(errors.New("connection refused"))
	o.SlotsLost(7)
	o.SlotsRestated(5)
	text := prometheus(t, s)
	for _, line := range []string{
		`headgate_store_call_duration_seconds_bucket{result="answered",le="0.0025"} 0`,
		`headgate_store_call_duration_seconds_bucket{result="answered",le="0.005"} 1`,
		`headgate_store_call_duration_seconds_bucket{result="answered",le="+Inf"} 1`,
		`headgate_store_call_duration_seconds_sum{result="answered"} 0.003`,
		`headgate_store_call_duration_seconds_bucket{result="error",le="1"} 0`,
		`headgate_store_call_duration_seconds_count{result="error"} 1`,
		`headgate_store_questions_total 4`,
		`headgate_store_servers_away 1`,
		`headgate_store_outages_total 1`,
		`headgate_slots_lost_total 7`,
		`headgate_slots_restated_keys_total 5`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	o.Changed(nil)
	if x := s.snapshot(true).Store; x.Away != 0 || x.Reason != "connection refused" || x.Changed.IsZero() {
		t.Errorf("%+v", x)
	}
	for _, line := range []string{"is unavailable", "connection refused", "is available again", "held=7", "keys=5"} {
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("%q is not once in the log:\n%s", line, log.String())
		}
	}
}

// With several servers away, the store is unavailable since the first of them is, until the last is back.
func TestSeveralServersAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		o := s.Observer().Backend(nil)
		start := time.Now()
		for i, step := range []struct {
			reason  error
			away    int64
			changed time.Duration
		}{
			{errors.New("refused"), 1, 0}, {errors.New("reset"), 2, 0}, {nil, 1, 0}, {errors.New("reset"), 2, 0}, {nil, 1, 0},
			{nil, 0, 5 * time.Second}, {errors.New("refused"), 1, 6 * time.Second},
		} {
			o.Changed(step.reason)
			if x := s.snapshot(false).Store; x.Away != step.away || x.Changed.Sub(start) != step.changed {
				t.Errorf("%d: %d away, since %v", i, x.Away, x.Changed.Sub(start))
			}
			time.Sleep(time.Second)
		}
	})
}

// A reader that comes while a refusal is counted sees none without a time.
func TestReadWhileItIsCounted(t *testing.T) {
	for range 5000 {
		s := New(Config{})
		o := s.Observer().Backend(nil)
		var counted sync.WaitGroup
		counted.Go(func() {
			o.Decided(t.Context(), store.DecisionEvent{Limiter: "api", Policy: "p", Source: step.SourceStore, Units: 1})
		})
		var refusals []count
		for len(refusals) == 0 {
			runtime.Gosched()
			for _, n := range readGroups(&s.limiters, time.Now(), false) {
				refusals = n.Counts
			}
		}
		if refusals[0].Last.Unix() == 0 {
			t.Fatal("a refusal of 1970")
		}
		counted.Wait()
	}
}

// TestNamesThatResembleEachOther have counts of their own: they have one length, and the same
// letters at the places where the quick search looks.
func TestNamesThatResembleEachOther(t *testing.T) {
	s := New(Config{})
	o := s.Observer().Backend(nil)
	want := map[string]uint64{}
	for i, name := range []string{"1 minute", "2 minute", "3 minute"} {
		for range i + 1 {
			o.Decided(context.Background(), store.DecisionEvent{Limiter: "api", Policy: name, Allowed: true, Units: 1})
			o.Decided(context.Background(), store.DecisionEvent{Limiter: name, Policy: "1 minute", Allowed: true, Units: 1})
		}
		want["api "+name], want[name+" 1 minute"] = uint64(i+1), uint64(i+1)
	}
	got := map[string]uint64{}
	for _, l := range s.snapshot(false).Limiters {
		for _, c := range l.Counts {
			got[l.Name+" "+c.Policy] = c.Charges
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestBucketsHaveTheirBounds: a call that takes as long as a bucket says is in it.
func TestBucketsHaveTheirBounds(t *testing.T) {
	s := New(Config{})
	for _, d := range []time.Duration{0, 1, 100 * time.Microsecond, 100*time.Microsecond + 1, time.Second, time.Second + 1} {
		s.Observer().Backend(nil).Called(store.Call{Took: d})
	}
	d := s.snapshot(false).Store.Answered
	if n := len(d.Buckets); d.Buckets[0].Count != 3 || d.Buckets[1].Count != 4 || d.Buckets[n-1].Count != 5 || d.Count != 6 {
		t.Errorf("%+v", d)
	}
}

// TestReasonOfATimeout: that of a connection is one too.
func TestReasonOfATimeout(t *testing.T) {
	for _, err := range []error{
		context.DeadlineExceeded,
		fmt.Errorf("script: %w", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}),
	} {
		if got := reasonTexts[reason(err)]; got != "timeout" {
			t.Errorf("%v: %s", err, got)
		}
	}
	if got := reasonTexts[reason(&net.OpError{Op: "read", Err: io.EOF})]; got != "other" {
		t.Errorf("a closed connection: %s", got)
	}
}

// TestSeveralMemories have a name each.
func TestSeveralMemories(t *testing.T) {
	s := New(Config{})
	for range 3 {
		allow(t, newLimiter(t, storeOf(s), "api", core.FixedWindow(5, age)), "key", 1)
	}
	text := prometheus(t, s)
	for _, name := range []string{"memory", "memory 2", "memory 3"} {
		if line := `headgate_memory_states{store="` + name + `"} 1`; !strings.Contains(text, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
}
