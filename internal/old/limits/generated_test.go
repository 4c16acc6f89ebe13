package limits_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/limits"
)

var (
	documents = flag.Int("documents", 3000, "how many documents are generated")
	firstSeed = flag.Uint64("seed", 0, "of the first document; 0: any. The n-th has the n-th after it")
)

// generate calls f for documents with all that there is, of which most are valid. It prints the
// seed of each that fails.
func generate(t *testing.T, f func(t *testing.T, g *generator)) {
	t.Helper()
	first := *firstSeed
	if first == 0 {
		first = rand.Uint64()
	}
	n := *documents
	if testing.Short() {
		n /= 10
	}
	for i := range uint64(n) {
		f(t, &generator{rand.New(rand.NewPCG(first+i, 0)), 100})
		if t.Failed() {
			t.Fatalf("repeat it with -seed %d -documents 1", first+i)
		}
	}
}

// A generator makes documents.
type generator struct {
	*rand.Rand

	faults int // one in so many parts is at fault
}

func (g *generator) one(of ...string) string  { return of[g.IntN(len(of))] }
func (g *generator) oneIn(n int) bool         { return g.IntN(n) == 0 }
func (g *generator) wrong() bool              { return g.faults > 0 && g.oneIn(g.faults) }
func (g *generator) number(of ...int64) int64 { return of[g.IntN(len(of))] }

// What is generated, as a model has it: policies by the names under which they count.
type (
	policies map[string]string
	override struct {
		kind, value, plan string
		policies          policies
		over              bool // long ago
		slots             int64
	}
	written struct {
		standard  string
		plans     map[string]policies
		overrides []override
		slots     map[string]int64
	}
)

// collide are two names that no store over Redis can tell apart in a record.
var collide = func() [2]string {
	seen := make(map[uint64]string)
	for i := 0; ; i++ {
		name := fmt.Sprint("c", i)
		h := fnv.New64a()
		_, _ = h.Write([]byte(name))
		sum := h.Sum64() % (1 << 26)
		if other, ok := seen[sum]; ok {
			return [2]string{other, name}
		}
		seen[sum] = name
	}
}()

// policy returns a policy. Those of one name count alike, but for a fault.
func (g *generator) policy(name string) string {
	period := g.one("second", "minute", "hour", "day", "90s", "36500d")
	n := g.number(1, 2, 3, 60, 600)
	kind := name
	if g.wrong() {
		kind = g.one("api", "m", "d", "w", "b")
	}
	switch {
	case g.wrong():
		return g.one("sliding-log 0/minute", "sliding-log 60/mintue", "sliding 60/minute", "token-bucket 1/second burst", "sliding-window 5/hour resolution 1001")
	case kind == "d", strings.HasPrefix(kind, "c"):
		return fmt.Sprintf("fixed-window %d/%s%s", n, period, g.one("", " from-first", " count-denied"))
	case kind == "w":
		return fmt.Sprintf("sliding-window %d/%s%s", n, period, g.one("", " resolution 5", " never-over", " resolution 7 never-over count-denied"))
	case kind == "b":
		return fmt.Sprintf("token-bucket %d/%s burst %d%s", n, period, 100*n, g.one("", " leasable 1ms", " debt 0", " debt 7 leasable 1ms"))
	case kind == "x", kind == "y":
		return "min-interval " + g.one("1s", "100ms", "1us", "100d")
	default:
		return fmt.Sprintf("sliding-log %d/%s%s", g.number(n, n, n, 5000, 9000, 16384, 16385, 1<<20), period, g.one("", "", " count-denied"))
	}
}

// policies returns the policies of a plan or an override. Those of plans have one name in common,
// but for a fault.
func (g *generator) policies(common string) policies {
	switch {
	case g.oneIn(8):
		return policies{"api": g.one("unlimited", "blocked")}
	case g.oneIn(12):
		return policies{g.one("m", "d", "w"): g.one("unlimited", "unlimited", "blocked")}
	case g.wrong():
		return policies{"m": "unlimited", "d": g.policy("d")}
	}
	all := make(policies)
	if common != "" && !g.wrong() {
		all[common] = g.policy(common)
	}
	for range g.number(0, 0, 1, 1, 2, 3, 4) {
		name := g.one("m", "d", "w", "b", "x", "y", "m2", "m3", collide[0], collide[1])
		all[name] = g.policy(name)
	}
	if len(all) == 0 {
		all["api"] = g.policy("api")
	}
	return all
}

func (g *generator) document() *written {
	d := &written{plans: make(map[string]policies), slots: make(map[string]int64)}
	common := g.one("api", "m", "d", "")
	for i := range g.number(1, 2, 3, 4) {
		d.plans[fmt.Sprint("p", i)] = g.policies(common)
	}
	d.standard = g.one(slices.Sorted(maps.Keys(d.plans))...)
	if g.oneIn(10) {
		d.standard = "blocked"
	}
	seen := make(map[string]bool)
	for range g.number(0, 1, 2, 3, 6) {
		o := override{kind: g.one("key", "prefix"), value: g.one("a", "ab", "abc", "b"), slots: -1, over: g.oneIn(8)}
		if seen[o.kind+o.value] {
			continue
		}
		seen[o.kind+o.value] = true
		if !g.oneIn(3) {
			o.policies = g.policies("")
		}
		if o.policies == nil || g.oneIn(4) {
			o.plan = g.one(append(slices.Sorted(maps.Keys(d.plans)), "blocked", "unlimited")...)
		}
		if g.wrong() {
			o.plan = "p9"
		}
		d.overrides = append(d.overrides, o)
	}
	if g.oneIn(2) {
		for i := range g.number(1, 2) {
			d.slots[fmt.Sprint("p", i)] = g.number(0, 3, 1<<53-1)
		}
	}
	return d
}

// json returns the text of policies. One that has the limit's name may be without it.
func (p policies) json() string {
	if text := p["api"]; len(p) == 1 && text != "" {
		return fmt.Sprintf("%q", text)
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// text returns the document in JSON.
func (d *written) text() string {
	var plans, overrides, slots []string
	for _, name := range slices.Sorted(maps.Keys(d.plans)) {
		plans = append(plans, fmt.Sprintf("%q: %s", name, d.plans[name].json()))
	}
	for _, o := range d.overrides {
		text := fmt.Sprintf("{%q: %q", o.kind, o.value)
		if o.plan != "" {
			text += fmt.Sprintf(`, "plan": %q`, o.plan)
		}
		if o.policies != nil {
			text += `, "policies": ` + o.policies.json()
		}
		if o.over {
			text += `, "until": "1999-01-01T00:00:00Z"`
		}
		overrides = append(overrides, text+"}")
	}
	for _, name := range slices.Sorted(maps.Keys(d.slots)) {
		slots = append(slots, fmt.Sprintf("%q: %d", name, d.slots[name]))
	}
	text := fmt.Sprintf(`{"limits": {"api": {"default": %q, "plans": {%s},`+"\n"+` "overrides": [%s]`, d.standard, strings.Join(plans, ", "), strings.Join(overrides, ",\n "))
	text += "}}"
	if len(slots) > 0 {
		text += `, "slots": {"ws": {"plans": {` + strings.Join(slots, ", ") + `}, "overrides": [{"key": "a", "slots": 7}]}}`
	}
	return text + "}"
}

// apply returns what applies to a plan and a key.
func (d *written) apply(plan, key string) policies {
	var best *override
	for i := range d.overrides {
		switch o := &d.overrides[i]; {
		case o.over, o.kind == "prefix" && !strings.HasPrefix(key, o.value), o.kind != "prefix" && key != o.value:
		case best == nil, o.kind == "key", best.kind == "prefix" && len(o.value) > len(best.value):
			best = o
		}
	}
	if best != nil && best.plan != "" {
		plan = best.plan
	}
	below := d.plans[plan]
	switch {
	case plan == "blocked", plan == "unlimited":
		below = policies{"api": plan}
	case below == nil && d.standard == "blocked":
		below = policies{"api": "blocked"}
	case below == nil:
		below = d.plans[d.standard]
	}
	switch {
	case best == nil || best.policies == nil || below.has("blocked") && best.policies["api"] != "unlimited" && best.policies.has("unlimited"):
		return below
	case below.has("blocked") || below.has("unlimited") || best.policies.has("blocked") || best.policies["api"] == "unlimited":
		return best.policies
	}
	all := maps.Clone(below)
	maps.Copy(all, best.policies)
	if maps.DeleteFunc(all, func(_, text string) bool { return text == "unlimited" }); len(all) == 0 {
		return best.policies
	}
	return all
}

// fits reports whether a store takes all that a document makes, overrides that are over too.
func (d *written) fits(t *testing.T, s store.Store) bool {
	t.Helper()
	now := *d
	now.overrides = slices.Clone(d.overrides)
	for i := range now.overrides {
		now.overrides[i].over = false
	}
	var all []policies
	for _, plan := range append(slices.Sorted(maps.Keys(d.plans)), "blocked", "unlimited") {
		all = append(all, now.apply(plan, "-"))
		for _, o := range now.overrides {
			all = append(all, now.apply(plan, o.value))
		}
	}
	for i := range now.overrides { // one that another precedes
		all = append(all, now.overrides[i].policies)
		one := now
		one.overrides = now.overrides[i : i+1]
		for plan := range d.plans {
			all = append(all, one.apply(plan, one.overrides[0].value))
		}
	}
	for _, one := range all {
		var list []core.Policy
		for name, text := range one {
			var p core.Policy
			if err := p.UnmarshalText([]byte(text)); err != nil {
				t.Fatal(err)
			}
			list = append(list, p.Named(name))
		}
		if _, err := core.New(s, "api", list...); err != nil && one != nil {
			return false
		}
	}
	return true
}

// has reports whether one of the policies is that.
func (p policies) has(text string) bool { return slices.Contains(slices.Collect(maps.Values(p)), text) }

// counted returns the policies that count: their names and algorithms.
func (p policies) counted() map[string]bool {
	all := make(map[string]bool)
	for name, text := range p {
		if word, _, _ := strings.Cut(text, " "); word != "blocked" && word != "unlimited" {
			all[name+" "+word] = true
		}
	}
	return all
}

// String returns the policies as text returns those of a limiter, but in the order of the names.
func (p policies) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		all = append(all, name+": "+p[name])
	}
	return strings.Join(all, ", ")
}

// What a document is checked with, and servers use, is the same: none is good that a server refuses,
// nor is one refused that all take. And what is taken can be used, for each plan and key.
func TestCheckIsWhatServersTake(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	overRedis := newRedisStore(t)
	nowhere, err := redisstore.New(redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, MaxRetries: -1}), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// A store over Redis refuses one of these names once it knows the other, for each algorithm: all know the same one.
	minute := core.PerMinute(1)
	for _, s := range []core.Store{overRedis, nowhere} {
		for _, p := range []core.Policy{core.FixedWindow(minute), core.TokenBucket(minute, 1), core.SlidingWindow(minute), core.SlidingLog(minute), core.MinInterval(time.Second)} {
			core.Must(core.New(s, "api", p.Named(collide[0])))
		}
	}
	small := memstore.Config{MaxBytes: 1 << 20}
	stores := []struct{ used, empty store.Store }{
		{memstore.New(memstore.Config{}), memstore.New(memstore.Config{})},
		{memstore.New(small), memstore.New(small)},
		{overRedis, nowhere},
	}
	var valid, good, bad int
	generate(t, func(t *testing.T, g *generator) {
		model := g.document()
		text := model.text()
		d, err := limits.Parse([]byte(text), nil)
		if err != nil {
			for _, s := range stores {
				if _, err := limits.Open(t.Context(), s.used, true, limits.Bytes([]byte(text)), limits.Config{}); err == nil {
					t.Errorf("it is opened, and not parsed: %v\n%s", err, text)
				}
			}
			return
		}
		valid++
		for i, s := range stores {
			program := limits.Program{Store: store.KindOf(s.used), NoSlots: g.oneIn(3)}
			if store.KindOf(s.empty) != program.Store {
				t.Fatal(program.Store, store.KindOf(s.empty))
			}
			checked := d.Check(program, s.empty)
			if want := program.NoSlots && len(model.slots) > 0 || !model.fits(t, s.empty); (checked != nil) != want {
				t.Errorf("store %d: check says %v, limiters that are made one by one %t\n%s", i, checked, want, text)
			}
			b, opened := limits.Open(t.Context(), s.used, !program.NoSlots, limits.Bytes([]byte(text)), limits.Config{})
			if fmt.Sprint(checked) != strings.TrimPrefix(fmt.Sprint(opened), "headgate: limits: ") {
				t.Errorf("store %d: check says %v, Open %v\n%s", i, checked, opened, text)
			}
			if opened != nil {
				bad++
				continue
			}
			good++
			useAll(t, b, model)
			b.Close()
		}
	})
	t.Logf("%d are valid; stores take %d and refuse %d", valid, good, bad)
	if !testing.Short() && *documents >= 1000 && (good < valid || bad < valid/10) {
		t.Errorf("of %d documents, stores take %d and refuse %d", valid, good, bad)
	}
}

// useAll makes all limiters that a model has.
func useAll(t *testing.T, b *limits.Book, model *written) {
	t.Helper()
	api := limit(t, b, "api")
	plans := append(slices.Sorted(maps.Keys(model.plans)), "", "none", "blocked", "unlimited")
	for _, plan := range plans {
		for _, key := range []string{"a", "ab", "abc", "abcd", "b", "-"} {
			l := api.For(plan, key)
			got := make(policies)
			for _, p := range l.Policies() {
				got[p.Name()] = p.Named("").String()
			}
			want := model.apply(plan, key)
			if !maps.Equal(got, want) {
				t.Errorf("plan %q, key %s: %v, not %v\n%s", plan, key, got, want, model.text())
			}
		}
	}
	if d, err := api.For("", "-").Allow(t.Context(), "-"); err != nil {
		t.Error(d, err)
	}
}

// Usage is lost if and only if, for a plan of the earlier document and a key, a policy that counts
// ends and another begins. Each such pair is named by its plan or by its override.
func TestLostIsThatOfTheModel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	keys := []string{"a", "ax", "ab", "abx", "abc", "abcx", "b", "bx", "-"}
	var some, none int
	generate(t, func(t *testing.T, g *generator) {
		g.faults = 0
		from := g.document()
		to := g.document()
		if g.oneIn(2) {
			to = g.alter(from)
		}
		was, err1 := limits.Parse([]byte(from.text()), nil)
		is, err2 := limits.Parse([]byte(to.text()), nil)
		if err1 != nil || err2 != nil {
			return
		}
		diff := limits.Compare(was, is)
		named := make(map[string]bool) // "plan p0", "default", or the kind and the value of an override
		for _, c := range diff.Lost() {
			what := strings.TrimSuffix(c.What, ", what counts")
			if c.Key != "" {
				what = strings.TrimPrefix(what, "override of a ") + c.Key
			}
			named[what] = true
		}
		lost := false
		for _, plan := range append(slices.Sorted(maps.Keys(from.plans)), "", "blocked", "unlimited") {
			for _, key := range keys {
				before, after := from.apply(plan, key).counted(), to.apply(plan, key).counted()
				if !differs(before, after) || !differs(after, before) {
					continue
				}
				lost = true
				if !names(named, from, to, plan, key) {
					t.Errorf("plan %q, key %s: %v -> %v is not named:\n%v%s\n%s", plan, key, before, after, diff, from.text(), to.text())
				}
			}
		}
		if lost != (len(diff.Lost()) > 0) {
			t.Errorf("the model says %t:\n%v%s\n%s", lost, diff, from.text(), to.text())
		}
		if lost {
			some++
		} else {
			none++
		}
	})
	t.Logf("%d lose usage, %d do not", some, none)
	if !testing.Short() && *documents >= 1000 && (some < *documents/20 || none < *documents/20) {
		t.Errorf("%d lose usage, %d do not", some, none)
	}
}

// differs reports whether one set has what another has not.
func differs(a, b map[string]bool) bool {
	for x := range a {
		if !b[x] {
			return true
		}
	}
	return false
}

// names reports whether what is named explains the loss of a plan and a key.
func names(named map[string]bool, from, to *written, plan, key string) bool {
	if plan == "" && (named["default"] || named["plan "+from.standard]) || named["plan "+plan] {
		return true
	}
	for _, d := range []*written{from, to} {
		for _, o := range d.overrides {
			applies := o.value == key || o.kind == "prefix" && strings.HasPrefix(key, o.value)
			if applies && (named[o.kind+o.value] || o.plan != "" && named["plan "+o.plan]) {
				return true
			}
		}
	}
	return false
}

// alter returns a document with one or two changes.
func (g *generator) alter(d *written) *written {
	next := *d
	next.plans, next.overrides = maps.Clone(d.plans), slices.Clone(d.overrides)
	for range g.number(1, 2) {
		name := g.one(slices.Sorted(maps.Keys(next.plans))...)
		switch g.IntN(5) {
		case 0:
			next.plans[name] = g.policies(g.one(append(slices.Sorted(maps.Keys(next.plans[name])), "m")...))
		case 1:
			next.standard = name
		case 2:
			if len(next.overrides) > 0 {
				next.overrides[g.IntN(len(next.overrides))].policies = g.policies("")
			}
		case 3:
			if len(next.overrides) > 0 {
				next.overrides[g.IntN(len(next.overrides))].plan = name
			}
		case 4:
			if len(next.overrides) > 0 {
				next.overrides = slices.Delete(next.overrides, 0, 1)
			}
		}
	}
	return &next
}

// Plans of which each fits are not refused because the largest of their policies do not fit together.
func TestPlansAreNotAddedUp(t *testing.T) {
	s := newRedisStore(t)
	document := func(most int) string {
		return fmt.Sprintf(`{"limits": {"api": {"default": "a", "plans": {"a": {"m": "sliding-log 9000/day", "m2": "sliding-log 60/day"}, "b": {"m": "sliding-log 60/day", "m2": "sliding-log 9000/day"}},
			"overrides": [{"key": "j", "policies": {"m3": "sliding-log 60/day"}},
			{"key": "k", "policies": {"m3": "sliding-log %d/day"}}]}}}`, most)
	}
	if err := parse(t, document(7324)).Check(limits.Program{}, s); err != nil {
		t.Error(err)
	}
	err := parse(t, document(7325)).Check(limits.Program{}, s)
	if want := "line 3, column 4: limits.api.overrides[1]: a SlidingLog stores each event, in Redis at most 16384 for all of a limiter's, not 16385: use SlidingWindow or TokenBucket"; err == nil || err.Error() != want {
		t.Errorf("%v, not %s", err, want)
	}
}
