package keeper

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
)

var (
	schedules     = flag.Int("schedules", 0, "how many random schedules of each kind the simulation runs; 0 means 100, or 20 with -short")
	firstSeed     = flag.Uint64("seed", 0, "the seed of the first schedule; 0 means any")
	differentials = flag.Int("differentials", 12, "random runs of the model and the scripts")
	onlyKind      = flag.String("kind", "", "the only kind of schedules")
)

// Settings of the simulation.
const (
	simTTL     = 1500 * time.Millisecond
	simBeat    = simTTL / beatsInTTL
	simTimeout = 60 * time.Millisecond
	simLimit   = 3
	simKeys    = 3 // that are hot
	simCold    = 20
	simActors  = 4 // in each process
	simServers = 3
	simSpan    = 4 * simTTL
	simMend    = 3 * simBeat // from a loss until all is right again: two beats, of which one message may be lost
	simShards  = 2
	simSwept   = 25 // one schedule in so many waits until all is swept
	simCrowd   = 16 // that ask in one process at once, of a crowd
	simBatch   = 4  // statements in the calls of a crowd, of which one is in flight to a shard
)

var errCut = errors.New("cut off")

// simAllKeys are some keys that many want, with simLimit slots, and some that hardly anybody wants, with one: a loss or a
// late statement is not found by chance there.
var simAllKeys = func() (all []string) {
	for i := range simKeys {
		all = append(all, strconv.Itoa(i))
	}
	for i := range simCold {
		all = append(all, string(rune('a'+i)))
	}
	return all
}()

func hot(key string) bool { return key < "9" }

func limitOf(key string) int {
	if hot(key) {
		return simLimit
	}
	return 1
}

// A world is some processes, the server that they share, and what they truly hold.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	kind string
	all  sync.WaitGroup

	mu        sync.Mutex
	latency   time.Duration // of a message at most, if nothing is wrong
	flying    int           // messages that may be late
	server    *model
	old       []*model // what the server had, one after the other: a replica has the last or an earlier one
	history   int
	jump      time.Duration // of the server's clock
	away      bool          // nobody reaches the server
	noInfo    bool          // processes cannot tell servers apart
	held      map[string]map[*hold]*machine
	forfeit   map[*hold]bool
	forgotten time.Time      // when something was lost
	extended  bool           // and somebody cannot state it again for now
	most      map[string]int // slots that may be held of each key until two TTLs after that
	faults    []string
	granted   int
	waited    int  // who waited, and were granted slots
	quiet     bool // no more faults
	account   account
}

// A process has a keeper, and the network between it and the server.
type machine struct {
	w *world
	k *Keeper

	mu      sync.Mutex
	cut     bool
	resumed chan struct{} // not nil while it is paused
	crashed bool
	losses  int64

	// The world's lock guards these.
	name    string
	asked   map[string]int       // ops that wanted slots, by key
	endings map[string][]*ending // by key
	newest  map[string]int64     // op that was executed, by key
}

func newWorld(t *testing.T, seed uint64, kind, broken string) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), kind: kind, server: newModel(), held: make(map[string]map[*hold]*machine), forfeit: make(map[*hold]bool), most: make(map[string]int)}
	w.latency = []time.Duration{time.Millisecond, 5 * time.Millisecond, simTimeout * 2 / 5}[w.rng.IntN(3)]
	if kind == "crowd" {
		w.latency = max(w.latency, 5*time.Millisecond) // else a second is thousands of calls
	}
	w.server.broken = broken
	w.noInfo = w.rng.IntN(2) == 0
	for _, key := range simAllKeys {
		w.held[key] = make(map[*hold]*machine)
	}
	return w
}

func (w *world) fault(format string, args ...any) { // w.mu is held
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// chance is true in one of n cases.
func (w *world) chance(n int) bool { return w.random(n) == 0 }

func (w *world) random(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

func (w *world) span(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(most)))
}

func (w *world) process(failure outage.Failure) *machine {
	p := &machine{w: w, asked: make(map[string]int), endings: make(map[string][]*ending), newest: make(map[string]int64)}
	p.k = New(p, Config{TTL: simTTL, Timeout: simTimeout, Shards: simShards, Failure: failure, Servers: simServers, Lost: func(int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.losses++
	}})
	if w.kind == "crowd" {
		p.k.callLimit, p.k.statementLimit = 1, simBatch
	}
	return p
}

// reaches reports whether what the process sends arrives.
func (p *machine) reaches() bool {
	p.mu.Lock()
	cut := p.cut || p.crashed
	p.mu.Unlock()
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return !cut && !p.w.away
}

// awake waits while the process is paused.
func (p *machine) awake() {
	p.mu.Lock()
	c := p.resumed
	p.mu.Unlock()
	if c != nil {
		<-c
	}
}

// call lets the server do something, and returns whether an answer came.
func (p *machine) call(ctx context.Context, do func()) error {
	p.awake()
	defer p.awake()
	w := p.w
	fate := w.random(100)
	there, back := w.span(w.latency), w.span(w.latency)
	w.mu.Lock()
	quiet := w.quiet
	if !quiet {
		w.flying++
	}
	w.mu.Unlock()
	switch {
	case quiet:
		fate = 2
	case fate == 0:
		there = w.span(4 * simTTL) // much too late
	case w.chance(20):
		there = w.span(2 * simTimeout) // it may be too late
	}
	answered := make(chan struct{})
	w.all.Go(func() {
		if !quiet {
			defer w.set(func() { w.flying-- })
		}
		time.Sleep(there)
		if !p.reaches() {
			if w.chance(2) {
				return
			}
			// The network keeps it, and delivers it in the end.
			for !p.reaches() {
				if p.dead() {
					return
				}
				time.Sleep(simTTL / 10)
			}
		}
		w.mu.Lock()
		do()
		if w.rng.IntN(8) == 0 {
			w.old = append(w.old, w.server.clone())
		}
		w.mu.Unlock()
		if fate == 1 || !p.reaches() {
			return // the answer is lost
		}
		time.Sleep(back)
		close(answered)
	})
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return errCut
	}
}

func (p *machine) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

func (*machine) Shard(_, key string) int { return int(key[0]) % simShards }

func (p *machine) Run(ctx context.Context, all []*Statement) error {
	copies := make([]Statement, len(all))
	made := time.Now()
	p.w.set(func() {
		for i, s := range all {
			copies[i] = *s
			if s.Want > 0 {
				p.asked[s.Key]++
			}
		}
	})
	var landed time.Time
	err := p.call(ctx, func() {
		landed = time.Now()
		p.w.server.now = landed.Add(p.w.jump).UnixMicro()
		for i := range copies {
			p.w.server.state(&copies[i])
			p.executed(&copies[i], made)
		}
	})
	for i, s := range all {
		if s.Err = err; err == nil {
			*s = copies[i]
			p.answered(s, landed)
			if s.List || s.Granted < s.Want {
				p.w.set(func() { p.w.account.told(s.Key, s.Holders, time.Now()) })
			}
		}
	}
	return err
}

// answered enters what the server has granted to an incarnation that is over by now: the keeper
// asks again, and until then it counts.
func (p *machine) answered(s *Statement, landed time.Time) {
	p.k.mu.Lock()
	e := p.k.entries[entryKey{s.Name, s.Key}]
	over := p.k.process.id != s.ID || e != nil && e.isAcked && s.Found != e.acked // it will be
	p.k.mu.Unlock()
	if s.Granted > 0 && over {
		var st *stay
		p.w.set(func() {
			st = p.w.account.begin(s.Key, p.name+", before another incarnation", landed, int(s.Granted))
		})
		p.over(st, false, p.lastStatement())
	}
}

func (p *machine) Beat(ctx context.Context, b *Beat) error {
	if p.dead() {
		return ErrGone
	}
	c := *b
	err := p.call(ctx, func() {
		p.w.server.beat(time.Now().Add(p.w.jump).UnixMicro(), &c)
		if !p.w.noInfo {
			c.Histories = strconv.Itoa(p.w.history + 1)
		}
	})
	if err == nil {
		*b = c
	}
	return err
}

// act acquires and releases at random, until the time is over or the process dies.
func (p *machine) act(until time.Time) {
	w := p.w
	for time.Now().Before(until) && !p.dead() {
		p.awake()
		key := simAllKeys[w.random(simKeys)]
		limit := simLimit - w.random(2)
		if w.chance(2) {
			key, limit = simAllKeys[w.random(len(simAllKeys))], 0
		}
		if limit == 0 {
			limit = limitOf(key)
		}
		var h *hold
		var s *stay
		if w.chance(2) {
			h, s = p.acquire(key, limit, 0)
		} else if h, s = p.acquire(key, limit, 1+w.random(3)); h != nil {
			w.set(func() { w.waited++ })
		}
		if h != nil {
			w.hold(p, key, h)
			time.Sleep(w.span(time.Second))
			if w.chance(3) {
				time.Sleep(w.span(5 * simTTL))
			}
			p.awake()
			if w.release(key, h) {
				before := p.lastStatement()
				h.Release()
				p.over(s, true, before)
			}
		}
		time.Sleep(w.span(150 * time.Millisecond))
	}
}

// crowd asks for slots of ever new keys, more at once than a call takes.
func (p *machine) crowd(until time.Time) {
	var all sync.WaitGroup
	for i := range simCrowd {
		all.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				claim := slots.Acquisition{Name: "ws", Key: fmt.Sprintf("%c%d", 'x'+i%simShards, n*simCrowd+i), Limit: 1}
				h, _, err := p.k.take(p.w.t.Context(), claim)
				switch {
				case h != nil:
					h.Release()
				case errors.Is(err, slots.ErrFull):
					p.w.set(func() { p.w.fault("%s: a key that nobody holds is full", p.name) })
				default: // at once, if the server is away
					time.Sleep(simTimeout)
				}
			}
		})
	}
	all.Wait()
}

// acquire asks for a slot, and enters the answer in the account: but not the refusal of one who waits, for whom there
// may be a slot that is kept for others.
func (p *machine) acquire(key string, limit, queue int) (h *hold, s *stay) {
	w, from := p.w, time.Now()
	var before int
	w.set(func() { before = p.asked[key] })
	ctx, cancel := w.t.Context(), context.CancelFunc(func() {})
	if queue > 0 {
		ctx, cancel = context.WithTimeout(ctx, w.span(2*time.Second))
	}
	defer cancel()
	h, _, err := p.k.take(ctx, slots.Acquisition{Name: "ws", Key: key, Limit: int64(limit), Queue: queue})
	var full *slots.FullError
	w.set(func() {
		longest := simTTL
		if w.kind == "crowd" {
			longest *= 2 // it is behind a dozen others, of which a call takes one or two
		}
		if took := time.Since(from); took > longest && queue == 0 && w.reachable() && w.kind != "late" && !p.isDead() {
			w.fault("%s: an acquire took %v", p.name, took)
		}
		switch {
		case h != nil, !errors.As(err, &full) && p.asked[key] > before, full != nil && full.Cause != nil:
			s = w.account.begin(key, fmt.Sprintf("%s, %v", p.name, err), from, 1)
			s.owner = p
		case full != nil && queue == 0 && !p.isDead():
			if p.asked[key] == before { // it is remembered
				from = from.Add(-refusedFor)
			}
			w.account.refusals = append(w.account.refusals, refusal{key, from, time.Now(), limit, p.name})
			w.account.missed(key, time.Now())
		}
		if queue > 0 && err != nil && full == nil && !errors.Is(err, slots.ErrUnavailable) {
			w.fault("a wait ended with %v", err)
		}
	})
	if h == nil && s != nil { // the outcome is unknown
		p.over(s, false, p.lastStatement())
	}
	return h, s
}

func (p *machine) isDead() bool { return p.dead() }

// reachable reports whether the kind of the world leaves the network as it is: it loses no
// more than single messages.
func (w *world) reachable() bool {
	return w.kind != "outage" && w.kind != "partition" && w.kind != "pause" && w.kind != "mixed" && w.kind != "quiet"
}

func (p *machine) lastStatement() int64 {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return p.k.seq
}

// over notes that a slot is not held any more, or perhaps never was, and the last statement before that.
func (p *machine) over(s *stay, held bool, before int64) {
	seq, dead := p.lastStatement(), p.dead()
	e := &ending{stay: s, held: held, seq: seq, before: before, at: time.Now()}
	p.w.set(func() {
		if dead {
			s.to = time.Now().Add(simDeath)
		} else {
			p.endings[s.key] = append(p.endings[s.key], e)
		}
	})
}

// executed enters an op that the server has executed in the account. The world's lock is
// held.
func (p *machine) executed(op *Statement, made time.Time) {
	if op.Stale {
		return
	}
	now := time.Now()
	p.endings[op.Key] = slices.DeleteFunc(p.endings[op.Key], func(e *ending) bool {
		stated := e.stated
		e.stated = stated || op.Seq > e.before
		over := op.Seq > e.seq || made.After(e.at)
		if over {
			e.to = now
			if limit := e.at.Add(simTold); now.After(limit) && p.w.reachable() {
				e.to = limit // nothing may have been granted
				if e.held && !stated {
					p.w.fault("%s: a release was stated after %v", p.name, now.Sub(e.at))
				}
			}
		}
		return over
	})
	p.w.account.found(op.Key, p.w.server.keys[op.Key], now)
	// What is late has an effect only if a later op was lost, or was of another incarnation.
	late := op.Seq < p.newest[op.Key]
	p.newest[op.Key] = max(p.newest[op.Key], op.Seq)
	if n := op.Held + op.Granted; late && n > 0 {
		s := p.w.account.begin(op.Key, p.name+", late", now, int(n))
		if p.w.server.scores[op.ID] < 0 {
			s.to = now.Add(simGhost)
		} else { // it has no tombstone, or not any more
			s.unknown, s.seq, s.orphan = op.ID, op.Seq, p.w.kind == "quiet"
		}
	}
}

// hold notes what was granted, and checks the limits: a process never holds more than the
// limit, and all that were not declared dead together hold no more than bound says.
func (w *world) hold(p *machine, key string, h *hold) {
	if p.dead() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted++
	w.held[key][h] = p
	if n := w.own(p, key); n > limitOf(key) {
		w.fault("%d of %d slots are held by one process", n, limitOf(key))
	}
	if n, most := w.count(key), w.bound(key); n > most {
		w.fault("%d of %d slots of key %s are held, and %d may be", n, limitOf(key), key, most)
	}
}

// forget replaces the server by one that has lost something. w.mu is held.
func (w *world) forget(server *model) {
	for _, hs := range w.held { // whoever is dead keeps what it holds, even if the server forgets that it is dead
		for h, p := range hs {
			if w.buried(p) {
				w.forfeit[h] = true
			}
		}
	}
	again := w.losing()
	w.server, w.forgotten = server, time.Now()
	for key, fields := range server.keys {
		for _, f := range fields {
			w.account.begin(key, "brought back", w.forgotten, int(f.Count)).to = w.forgotten.Add(simLoss)
		}
	}
	for key := range w.held {
		if w.most[key] = max(w.count(key), limitOf(key)) + limitOf(key); again {
			w.most[key] = simServers * limitOf(key) // grants on their way were not counted
		}
	}
}

// losing reports whether the server has forgotten something that it was perhaps not told
// again yet. w.mu is held.
func (w *world) losing() bool {
	return w.extended || !w.forgotten.IsZero() && time.Since(w.forgotten) <= simMend
}

// bound is how many slots of the key may be held: the limit or, while the server has
// forgotten what is held, the limit in addition to that. w.mu is held.
func (w *world) bound(key string) int {
	if w.losing() {
		return w.most[key]
	}
	return limitOf(key)
}

// own counts what a process holds. w.mu is held.
func (w *world) own(p *machine, key string) (n int) {
	for _, owner := range w.held[key] {
		if owner == p {
			n++
		}
	}
	return n
}

// count counts what is held by those that nobody has declared dead. w.mu is held.
func (w *world) count(key string) (n int) {
	for h, p := range w.held[key] {
		select {
		case <-h.Lost():
			continue
		default:
		}
		if !w.forfeit[h] && !w.buried(p) {
			n++
		}
	}
	return n
}

// buried reports whether the server has declared a process dead. w.mu is held.
func (w *world) buried(p *machine) bool {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return w.server.scores[p.k.process.id] < 0
}

func (w *world) release(key string, h *hold) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok = w.held[key][h]
	delete(w.held[key], h)
	return ok
}

// crash ends a process as kill -9 does.
func (p *machine) crash() {
	p.mu.Lock()
	p.crashed = true
	p.mu.Unlock()
	p.w.set(func() {
		for _, hs := range p.w.held {
			for h, owner := range hs {
				if owner == p {
					delete(hs, h)
				}
			}
		}
		for _, s := range p.w.account.stays {
			if s.owner == p && s.to.IsZero() {
				s.to = time.Now().Add(simDeath)
				if s.orphan = p.w.kind == "quiet"; s.orphan {
					s.to = time.Time{} // nobody beats until somebody asks
				}
			}
		}
		clear(p.endings)
	})
	p.k.die()
}

// trouble makes trouble of the world's kind, once.
func (w *world) trouble(p *machine) {
	kind := w.kind
	if kind == "mixed" {
		kind = kinds[w.random(len(kinds))]
	}
	if w.kind == "mixed" { // what was lost before may not be stated again until this trouble is over
		w.set(func() { w.extended = w.losing() })
		defer func() {
			w.set(func() {
				if w.extended {
					w.forgotten, w.extended = time.Now(), false
				}
			})
		}()
	}
	if kind == "crowd" && w.chance(2) {
		kind = "flush"
	}
	switch kind {
	case "outage":
		w.outage()
	case "clock":
		w.set(func() { w.jump += time.Duration(w.rng.Int64N(int64(4*time.Hour))) - 2*time.Hour })
		time.Sleep(2 * simTTL) // it is set by a person, not by a lunatic
	case "partition":
		p.set(func() { p.cut = true })
		time.Sleep(w.span(3 * simTTL))
		p.set(func() { p.cut = false })
	case "pause":
		c := make(chan struct{})
		p.set(func() { p.resumed = c })
		time.Sleep(w.span(3 * simTTL))
		p.set(func() { p.resumed = nil })
		close(c)
	case "flush":
		w.set(func() {
			keys := newModel()
			keys.broken = w.server.broken
			w.forget(keys)
		})
	case "failover":
		w.set(func() {
			if len(w.old) > 0 {
				w.forget(w.old[max(len(w.old)-1-w.rng.IntN(4), 0)])
				w.old = nil
				w.history++
			}
		})
	}
}

// outage keeps everybody from the server for a while.
func (w *world) outage() {
	began := time.Now()
	w.set(func() { w.away = true })
	time.Sleep(w.span(5 * simTTL))
	w.set(func() {
		w.away = false
		for _, s := range w.account.stays { // nobody dies meanwhile: the fleet's time stands still
			if (s.unknown != "" || s.orphan) && s.to.After(began) {
				s.to = s.to.Add(time.Since(began))
			}
		}
	})
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (p *machine) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// live lets the world run.
func (w *world) live(t *testing.T) {
	start := time.Now()
	var ps []*machine
	var actors sync.WaitGroup
	for i := range simServers {
		p := w.process(map[bool]outage.Failure{true: outage.FailLocal, false: outage.FailClosed}[w.kind == "late"])
		p.name = fmt.Sprint("process ", i)
		ps = append(ps, p)
	}
	if w.kind == "late" {
		w.startWhileAway(ps, &actors)
		for _, p := range ps {
			p.k.mu.Lock()
			p.k.config.Failure = outage.FailClosed
			p.k.mu.Unlock()
		}
		start = time.Now()
	}
	// Each process holds a slot of its own to the end, so that its incarnation does not die of itself.
	over := make(chan struct{})
	var anchors sync.WaitGroup
	for i, p := range ps {
		anchors.Go(func() {
			for !p.dead() {
				if h, _, err := p.k.take(t.Context(), slots.Acquisition{Name: "ws", Key: fmt.Sprint("9", i), Limit: 1}); err == nil {
					<-over
					h.Release()
					return
				}
				time.Sleep(simTTL / 10)
			}
		})
	}
	for _, p := range ps {
		for range simActors {
			actors.Go(func() { p.act(start.Add(simSpan)) })
		}
	}
	if w.kind == "crowd" {
		actors.Go(func() { ps[0].crowd(start.Add(simSpan)) })
	}
	for time.Since(start) < simSpan-simTTL {
		time.Sleep(w.span(simTTL))
		if (w.kind == "crash" || w.kind == "mixed") && len(ps) > 1 && w.chance(3) {
			ps[0].crash()
			ps = ps[1:]
		}
		w.trouble(ps[w.random(len(ps))])
	}
	actors.Wait()
	w.finish(ps, start, func() {
		close(over)
		anchors.Wait()
	})
}

// rest lets the world run while hardly anybody asks: of two processes that hold slots of each key, none, one or both are
// killed, and a third, which holds nothing, asks now and then.
func (w *world) rest(t *testing.T) {
	start := time.Now()
	var ps []*machine
	for i := range simServers {
		p := w.process(outage.FailClosed)
		p.name = fmt.Sprint("process ", i)
		ps = append(ps, p)
	}
	rare, over := ps[0], make(chan struct{})
	var holders sync.WaitGroup
	for _, p := range ps[1:] {
		for _, key := range simAllKeys[:simKeys+2] {
			holders.Go(func() {
				p.keep(key, over)
			})
		}
	}
	time.Sleep(simTTL + w.span(simTTL))
	for range min(w.random(4), 2) {
		ps[1].crash()
		ps = slices.Delete(ps, 1, 2)
	}
	away := w.chance(2)
	for n := range 8 {
		if away && n == 4 {
			w.outage()
		}
		time.Sleep(w.span(3 * simTTL))
		key := simAllKeys[w.random(simKeys+2)]
		if h, s := rare.acquire(key, limitOf(key), 0); h != nil {
			w.hold(rare, key, h)
			time.Sleep(w.span(simBeat))
			w.release(key, h)
			before := rare.lastStatement()
			h.Release()
			rare.over(s, true, before)
		}
	}
	close(over)
	holders.Wait()
	w.finish(ps, start, func() {})
}

// keep holds half of the slots of a key, or the only one if it gets that, until over is closed or the process dies.
func (p *machine) keep(key string, over <-chan struct{}) {
	for range (limitOf(key) + 1) / 2 {
		h, s := p.acquire(key, limitOf(key), 0)
		if h == nil {
			continue
		}
		p.w.hold(p, key, h)
		defer func() {
			if !p.w.release(key, h) {
				return // it has crashed
			}
			before := p.lastStatement()
			h.Release()
			p.over(s, true, before)
		}()
	}
	<-over
}

// finish checks what is left when all have released their slots, but for those that leave releases.
func (w *world) finish(ps []*machine, start time.Time, leave func()) {
	t := w.t
	w.set(func() { w.quiet = true })
	for arrived := false; !arrived; time.Sleep(simTTL) {
		w.set(func() { arrived = w.flying == 0 })
	}
	time.Sleep(2 * simTTL) // who has died is known to be dead
	w.settled(ps, false)

	// Nothing is left in the way of whoever comes, and nobody remembers anything.
	for key := range w.held {
		come := time.Now()
		for h := (*hold)(nil); h == nil; time.Sleep(simTTL / 10) {
			if h, _, _ = ps[0].k.take(t.Context(), slots.Acquisition{Name: "ws", Key: key, Limit: 1}); h != nil {
				h.Release()
			} else if time.Since(come) > 3*simTTL {
				w.set(func() { w.fault("key %s is full although nobody holds it: %v", key, w.server.keys[key]) })
				break
			}
		}
	}
	leave()
	time.Sleep(simBeat)
	swept := w.chance(simSwept)
	if swept {
		time.Sleep(3 * sweepBeats * simBeat)
		w.settled(ps, true)
	}
	for _, p := range ps {
		p.mu.Lock()
		if p.losses > 0 && w.kind != "partition" && w.kind != "pause" && w.kind != "failover" && w.kind != "mixed" {
			w.fault("a process was declared dead %d times", p.losses)
		}
		p.mu.Unlock()
		if n := p.k.entriesLeft(); swept && n > 0 {
			w.fault("a process remembers %d keys", n)
		}
	}
	for _, p := range ps {
		p.set(func() { p.crashed = true }) // and beats no more
		p.k.die()
	}
	if w.kind != "mixed" { // several troubles at once keep what is counted longer than the account knows
		w.set(func() { w.faults = append(w.faults, w.account.faults(start)...) })
	}
}

// startWhileAway has processes that have never reached the server take their share of each key.
// Two beats after they can reach it, it has all that they hold.
func (w *world) startWhileAway(ps []*machine, actors *sync.WaitGroup) {
	w.set(func() { w.away, w.quiet = true, true })
	for _, p := range ps {
		for _, key := range simAllKeys[:simKeys] {
			from := time.Now()
			h, source, err := p.k.take(w.t.Context(), slots.Acquisition{Name: "ws", Key: key, Limit: simLimit})
			if h == nil || source != step.SourceLocal {
				w.set(func() { w.fault("not granted by its share: %v", err) })
				continue
			}
			if _, _, err := p.k.take(w.t.Context(), slots.Acquisition{Name: "ws", Key: key, Limit: simLimit}); !errors.Is(err, slots.ErrFull) {
				w.set(func() { w.fault("granted above its share: %v", err) })
			}
			w.hold(p, key, h)
			var s *stay
			w.set(func() {
				s = w.account.begin(key, p.name+", without the server", from, 1)
				s.owner = p
			})
			actors.Go(func() {
				for away := true; away; w.set(func() { away = w.quiet }) {
					time.Sleep(simTTL/4 + w.span(simTTL))
				}
				if w.release(key, h) {
					before := p.lastStatement()
					h.Release()
					p.over(s, true, before)
				}
			})
		}
	}
	time.Sleep(w.span(3 * simTTL))
	w.set(func() { w.away = false })
	time.Sleep(2 * simTTL / beatsInTTL)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range simAllKeys[:simKeys] {
		n := int64(0)
		for _, f := range w.server.keys[key] {
			n += f.Count
		}
		if n != simLimit {
			w.fault("%d slots of key %s are counted two beats after the return, and %d are held", n, key, simLimit)
		}
	}
	w.quiet = false
}

// settled holds that the server has what the living hold, which is nothing. Zeros may
// be left, until they have been swept.
func (w *world) settled(ps []*machine, swept bool) {
	ids := make(map[string]bool)
	for _, p := range ps {
		p.k.mu.Lock()
		ids[p.k.process.id] = true
		p.k.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, fields := range w.server.keys {
		for id, f := range fields {
			switch {
			case !ids[id], key[0] == '9' && !swept:
			case f.Count > 0:
				w.fault("%d slots of key %s are stated, and not held", f.Count, key)
			case swept:
				w.fault("a zero of key %s is left", key)
			}
		}
	}
}

func (k *Keeper) entriesLeft() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.entries)
}

// take is Acquire, and says what granted the slot.
func (k *Keeper) take(ctx context.Context, c slots.Acquisition) (*hold, step.Source, error) {
	g, err := k.Acquire(ctx, c)
	h, _ := g.Hold.(*hold)
	return h, g.Source, err
}

// die makes a keeper do nothing any more.
func (k *Keeper) die() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.entries {
		k.refuseAll(e, slots.ErrUnavailable)
		if e.poll != nil {
			e.poll.Stop()
		}
	}
	clear(k.entries)
}

// simulate runs one schedule.
func simulate(t *testing.T, seed uint64, kind, broken string) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed, kind, broken)
		if kind == "quiet" {
			w.rest(t)
		} else {
			w.live(t)
		}
		synctest.Wait()
		time.Sleep(2 * simTTL) // those that beat find that they are dead
		w.all.Wait()
	})
	return w
}

var kinds = []string{"calm", "late", "crash", "outage", "clock", "partition", "pause", "flush", "failover", "crowd", "quiet", "mixed"}

// seeds returns the seed of the first schedule. The order in which goroutines run makes a
// schedule, too, so that of one seed differs a little from run to run.
func seeds() uint64 {
	if *firstSeed > 0 {
		return *firstSeed
	}
	return rand.Uint64N(1 << 32)
}

func TestSimulation(t *testing.T) {
	n := *schedules
	if n == 0 {
		n = 100
		if testing.Short() {
			n = 20
		}
	}
	for _, kind := range kinds {
		if *onlyKind != "" && *onlyKind != kind {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			n := n
			if kind == "crowd" {
				n = (n + 3) / 4 // each is as much work as four others
			}
			first, granted, waited, refused := seeds(), 0, 0, 0
			for seed := first; seed < first+uint64(n); seed++ {
				w := simulate(t, seed, kind, "")
				granted += w.granted
				waited += w.waited
				refused += len(w.account.refusals)
				if len(w.faults) > 0 {
					t.Fatalf("-seed %d:\n%s", seed, strings.Join(w.faults, "\n"))
				}
			}
			t.Logf("%d schedules, %d grants, %d of them to who waited, %d refusals", n, granted, waited, refused)
		})
	}
}

// A server that breaks one of the rules is found out.
func TestSimulationFindsFaults(t *testing.T) {
	for broken, kind := range map[string]string{
		"no sequence":    "calm",
		"no fleet clock": "outage",
		"hides the dead": "crash",
	} {
		t.Run(broken, func(t *testing.T) {
			first := seeds()
			for seed := first; seed < first+300; seed++ {
				if w := simulate(t, seed, kind, broken); len(w.faults) > 0 {
					t.Logf("after %d schedules: %s", seed-first, w.faults[0])
					return
				}
			}
			t.Error("nothing was found")
		})
	}
}
