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

	"github.com/headgate/headgate/internal/bubble"
)

var (
	schedules = flag.Int("schedules", defaultSchedules, "how many random schedules of each kind the simulation runs")
	firstSeed = flag.Uint64("seed", 0, "the seed of the first schedule; 0 means any")
)

// Settings of the simulation.
const (
	simTTL     = 1500 * time.Millisecond
	simTimeout = 60 * time.Millisecond
	simLimit   = 3
	simKeys    = 3
	simActors  = 4 // in each process
	simServers = 3
	simSpan    = 4 * simTTL
	simShards  = 2
	simSwept   = 25 // one schedule in so many waits until all is swept
)

var errCut = errors.New("cut off")

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
	held      map[string]map[*Hold]*process
	forgotten time.Time      // when something was lost
	most      map[string]int // slots that may be held of each key until two TTLs after that
	faults    []string
	granted   int
	waited    int // who waited, and were granted slots
	sheds     int
	quiet     bool // no more faults
	account   account
}

// A process has a keeper, and the network between it and the server.
type process struct {
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
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), kind: kind, server: newModel(), held: make(map[string]map[*Hold]*process), most: make(map[string]int)}
	w.latency = []time.Duration{time.Millisecond, 5 * time.Millisecond, simTimeout * 2 / 5}[w.rng.IntN(3)]
	w.server.broken = broken
	for i := range simKeys {
		w.held[strconv.Itoa(i)] = make(map[*Hold]*process)
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

func (w *world) process() *process {
	p := &process{w: w, asked: make(map[string]int), endings: make(map[string][]*ending), newest: make(map[string]int64)}
	p.k = New(p, Config{TTL: simTTL, Timeout: simTimeout, Shards: simShards, Lost: func(int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.losses++
	}})
	return p
}

// reaches reports whether what the process sends arrives.
func (p *process) reaches() bool {
	p.mu.Lock()
	cut := p.cut || p.crashed
	p.mu.Unlock()
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return !cut && !p.w.away
}

// awake waits while the process is paused.
func (p *process) awake() {
	p.mu.Lock()
	c := p.resumed
	p.mu.Unlock()
	if c != nil {
		<-c
	}
}

// call lets the server do something, and returns whether an answer came.
func (p *process) call(ctx context.Context, do func()) error {
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

func (p *process) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

func (*process) Shard(key string) int { return int(key[0]) % simShards }

func (p *process) Run(ctx context.Context, _ int, ops []*Op) {
	replies := make([]Reply, len(ops))
	copies := make([]Op, len(ops))
	made := time.Now()
	p.w.set(func() {
		for i, op := range ops {
			copies[i] = *op
			if op.Want > 0 {
				p.asked[op.Key]++
			}
		}
	})
	var landed time.Time
	err := p.call(ctx, func() {
		landed = time.Now()
		p.w.server.now = landed.Add(p.w.jump).UnixMicro()
		for i := range copies {
			replies[i] = p.w.server.state(copies[i].Key, &copies[i])
			p.executed(&copies[i], &replies[i], made)
		}
	})
	for i, op := range ops {
		if op.Err = err; err == nil {
			op.Reply = replies[i]
			p.answered(op, landed)
			if op.ListAll || op.Reply.Granted < op.Want {
				p.w.set(func() { p.w.account.told(op.Key, op.Reply.Fields, time.Now()) })
			}
		}
	}
}

// answered enters what the server has granted to an incarnation that is over by now: the keeper
// asks again, and until then it counts.
func (p *process) answered(op *Op, landed time.Time) {
	p.k.mu.Lock()
	over := p.k.current != nil && p.k.current.epoch.id != op.ID
	p.k.mu.Unlock()
	if n := op.Reply.Granted; over && n > 0 {
		var s *stay
		p.w.set(func() { s = p.w.account.begin(op.Key, p.name+", before another incarnation", landed, int(n)) })
		p.over(s, false)
	}
}

func (p *process) Beat(ctx context.Context, b *Beat) error {
	if p.dead() {
		return ErrGone
	}
	c := *b
	err := p.call(ctx, func() { p.w.server.beat(time.Now().Add(p.w.jump).UnixMicro(), &c) })
	if err == nil {
		b.State, b.Clock, b.Dead = c.State, c.Clock, c.Dead
	}
	return err
}

func (p *process) Servers(ctx context.Context) string {
	history := ""
	if p.call(ctx, func() { history = strconv.Itoa(p.w.history) }) != nil {
		return ""
	}
	return history
}

// act acquires and releases at random, until the time is over or the process dies.
func (p *process) act(until time.Time) {
	w := p.w
	for time.Now().Before(until) && !p.dead() {
		p.awake()
		key := strconv.Itoa(w.random(simKeys))
		if h, s := p.await(key, simLimit-w.random(2)); h != nil {
			w.hold(p, key, h)
			time.Sleep(w.span(time.Second))
			if w.chance(3) {
				time.Sleep(w.span(5 * simTTL))
			}
			p.awake()
			// While it may be given up, it does not count as held.
			if w.chance(2) && w.release(key, h) {
				if p.shed(key, h) {
					p.over(s, true)
					continue
				}
				w.keep(p, key, h)
				time.Sleep(w.span(simTTL))
				p.awake()
			}
			if w.release(key, h) {
				h.Release()
				p.over(s, true)
			}
		}
		time.Sleep(w.span(150 * time.Millisecond))
	}
}

// await asks for a slot once or, as one of those who wait, until it has one or gives up.
func (p *process) await(key string, limit int) (*Hold, *stay) {
	if p.w.chance(2) {
		h, s, _ := p.acquire(key, limit, 0)
		return h, s
	}
	for {
		h, s, due := p.acquire(key, limit, 1+p.w.random(2))
		if h != nil {
			p.w.set(func() { p.w.waited++ })
		}
		if h != nil || p.w.chance(8) || p.dead() {
			return h, s
		}
		pause := Again(due)
		if pause == 0 {
			pause = 200 * time.Millisecond
		}
		time.Sleep(pause)
		p.awake()
	}
}

// acquire asks for a slot as redisstore does, and enters the answer in the account: but not that
// to one who waits, for whom there may be a slot that is kept for others.
func (p *process) acquire(key string, limit, waiting int) (h *Hold, s *stay, due int) {
	w, from := p.w, time.Now()
	refused := func(from time.Time) {
		if waiting > 0 {
			return
		}
		w.set(func() {
			w.account.refusals = append(w.account.refusals, refusal{key, from, time.Now(), limit, p.name})
		})
	}
	if _, due, full := p.k.Full("ws", key, int64(limit), waiting > 0); full {
		refused(from.Add(-refusedFor))
		return nil, nil, due
	}
	var before int
	w.set(func() { before = p.asked[key] })
	a, err := p.k.Ask(w.t.Context(), from.Add(simTimeout), Request{"ws", key, int64(limit), int64(limit), waiting})
	h = a.Hold
	w.set(func() {
		if h != nil || err != nil && p.asked[key] > before {
			s = w.account.begin(key, fmt.Sprintf("%s, %v", p.name, err), from, 1)
			s.owner = p
		}
	})
	switch {
	case h == nil && err == nil:
		if !p.dead() {
			refused(from)
		}
	case h == nil && s != nil: // the outcome is unknown
		p.over(s, false)
	}
	return h, s, a.Due
}

// shed gives a slot up if it is too many, which needs a cause as a refusal does: at some
// instant, the key counted more than it may.
func (p *process) shed(key string, h *Hold) bool {
	w, from := p.w, time.Now()
	p.k.mu.Lock()
	most := int(h.entry.most())
	p.k.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*simTimeout)
	defer cancel()
	shed, _ := h.Shed(ctx)
	if shed && !p.dead() {
		w.set(func() {
			w.sheds++
			w.account.refusals = append(w.account.refusals, refusal{key, from, time.Now(), most + 1, p.name + ", shed"})
		})
	}
	return shed
}

// reachable reports whether the kind of the world leaves the network as it is: it loses no
// more than single messages.
func (w *world) reachable() bool {
	return w.kind != "outage" && w.kind != "partition" && w.kind != "pause"
}

// over notes that a slot is not held any more, or perhaps never was.
func (p *process) over(s *stay, held bool) {
	p.k.mu.Lock()
	seq := p.k.seq
	p.k.mu.Unlock()
	dead := p.dead()
	p.w.set(func() {
		if dead {
			s.to = time.Now().Add(simDeath)
		} else {
			p.endings[s.key] = append(p.endings[s.key], &ending{s, held, seq, time.Now()})
		}
	})
}

// executed enters an op that the server has executed in the account. The world's lock is
// held.
func (p *process) executed(op *Op, r *Reply, made time.Time) {
	if r.Outcome == Stale {
		return
	}
	now := time.Now()
	p.endings[op.Key] = slices.DeleteFunc(p.endings[op.Key], func(e *ending) bool {
		over := op.Seq > e.seq || made.After(e.at)
		if over {
			e.to = now
			if limit := e.at.Add(simTold); now.After(limit) && p.w.reachable() {
				e.to = limit // nothing may have been granted
				if e.held {
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
	if n := op.Held + r.Granted; late && n > 0 {
		s := p.w.account.begin(op.Key, p.name+", late", now, int(n))
		if p.w.server.scores[op.ID] < 0 {
			s.to = now.Add(simGhost)
		} else { // it has no tombstone, or not any more
			s.unknown, s.seq = op.ID, op.Seq
		}
	}
}

// hold notes what was granted, and checks the limits: a process never holds more than the
// limit, and all that were not declared dead together hold no more than bound says.
func (w *world) hold(p *process, key string, h *Hold) {
	if p.dead() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted++
	w.held[key][h] = p
	if n := w.own(p, key); n > simLimit {
		w.fault("%d of %d slots are held by one process", n, simLimit)
	}
	if n, most := w.count(key), w.bound(key); n > most {
		w.fault("%d of %d slots are held, and %d may be", n, simLimit, most)
	}
}

// forget replaces the server by one that has lost something. w.mu is held.
func (w *world) forget(server *model) {
	again := w.losing()
	w.server, w.forgotten = server, time.Now()
	for key, fields := range server.keys {
		for _, f := range fields {
			w.account.begin(key, "brought back", w.forgotten, int(f.Count)).to = w.forgotten.Add(simLoss)
		}
	}
	for key := range w.held {
		if w.most[key] = max(w.count(key), simLimit) + simLimit; again {
			w.most[key] = simServers * simLimit // grants on their way were not counted
		}
	}
}

// losing reports whether the server has forgotten something that it was perhaps not told
// again yet. w.mu is held.
func (w *world) losing() bool {
	return !w.forgotten.IsZero() && time.Since(w.forgotten) <= 2*simTTL
}

// bound is how many slots of the key may be held: the limit or, while the server has
// forgotten what is held, the limit in addition to that. w.mu is held.
func (w *world) bound(key string) int {
	if w.losing() {
		return w.most[key]
	}
	return simLimit
}

// own counts what a process holds. w.mu is held.
func (w *world) own(p *process, key string) (n int) {
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
		p.k.mu.Lock()
		s := p.k.current
		buried := s != nil && w.server.scores[s.epoch.id] < 0
		p.k.mu.Unlock()
		if !buried {
			n++
		}
	}
	return n
}

// keep notes that a slot is held, unless its process has died.
func (w *world) keep(p *process, key string, h *Hold) {
	if p.dead() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[key][h] = p
}

func (w *world) release(key string, h *Hold) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok = w.held[key][h]
	delete(w.held[key], h)
	return ok
}

// crash ends a process as kill -9 does.
func (p *process) crash() {
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
			}
		}
		clear(p.endings)
	})
	p.k.mu.Lock()
	if s := p.k.current; s != nil {
		s.ended = true
		close(s.stop)
	}
	p.k.mu.Unlock()
}

// trouble makes trouble of the world's kind, once.
func (w *world) trouble(p *process) {
	switch w.kind {
	case "outage":
		w.set(func() { w.away = true })
		time.Sleep(w.span(5 * simTTL))
		w.set(func() { w.away = false })
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

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (p *process) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// live lets the world run.
func (w *world) live(t *testing.T) {
	start := time.Now()
	var ps []*process
	var actors sync.WaitGroup
	for i := range simServers {
		p := w.process()
		p.name = fmt.Sprint("process ", i)
		ps = append(ps, p)
	}
	if w.kind == "late" {
		w.startWhileAway(ps, &actors)
		start = time.Now()
	}
	for _, p := range ps {
		for range simActors {
			actors.Go(func() { p.act(start.Add(simSpan)) })
		}
	}
	for time.Since(start) < simSpan-simTTL {
		time.Sleep(w.span(simTTL))
		if w.kind == "crash" && len(ps) > 1 && w.chance(3) {
			ps[0].crash()
			ps = ps[1:]
		}
		w.trouble(ps[w.random(len(ps))])
	}
	actors.Wait()
	w.set(func() { w.quiet = true })
	for arrived := false; !arrived; time.Sleep(simTTL) {
		w.set(func() { arrived = w.flying == 0 })
	}
	time.Sleep(2 * simTTL) // who has died is known to be dead
	w.settled(ps, false)

	// Nothing is left in the way of whoever comes, and nobody remembers anything.
	for key := range w.held {
		come := time.Now()
		for h := (*Hold)(nil); h == nil; time.Sleep(simTTL / 10) {
			if h, _, _ = ps[0].k.Acquire(t.Context(), time.Now().Add(simTimeout), "ws", key, 1, 1); h != nil {
				h.Release()
			} else if time.Since(come) > 3*simTTL {
				w.set(func() { w.fault("key %s is full although nobody holds it: %v", key, w.server.keys[key]) })
				break
			}
		}
	}
	swept := w.chance(simSwept)
	if swept {
		time.Sleep(3 * sweepTTLs * simTTL)
		w.settled(ps, true)
	}
	for _, p := range ps {
		p.mu.Lock()
		if p.losses > 0 && w.kind != "partition" && w.kind != "pause" && w.kind != "failover" {
			w.fault("a process was declared dead %d times", p.losses)
		}
		p.mu.Unlock()
		if n := p.k.entriesLeft(); swept && n > 0 {
			w.fault("a process remembers %d keys", n)
		}
	}
	for _, p := range ps {
		p.set(func() { p.crashed = true }) // and beats no more
	}
	w.set(func() { w.faults = append(w.faults, w.account.faults(start)...) })
}

// startWhileAway has processes that have never reached the server take their share of each key.
// Two beats after they can reach it, it has all that they hold.
func (w *world) startWhileAway(ps []*process, actors *sync.WaitGroup) {
	w.set(func() { w.away, w.quiet = true, true })
	for _, p := range ps {
		for key := range w.held {
			from := time.Now()
			if _, _, full := p.k.Full("ws", key, 1, false); full {
				w.set(func() { w.fault("a key is full of which nothing is held") })
			}
			if _, _, err := p.k.Acquire(w.t.Context(), from.Add(simTimeout), "ws", key, 1, 1); err == nil {
				w.set(func() { w.fault("granted by nobody") })
			}
			h, _ := p.k.Take("ws", key, simLimit, simLimit/simServers, false)
			if _, _, full := p.k.Full("ws", key, 1, false); full {
				w.set(func() { w.fault("what was taken without the server makes a key full") })
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
					h.Release()
					p.over(s, true)
				}
			})
		}
	}
	time.Sleep(w.span(3 * simTTL))
	w.set(func() { w.away = false })
	time.Sleep(2 * simTTL / beatsInTTL)
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.held {
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
func (w *world) settled(ps []*process, swept bool) {
	ids := make(map[string]bool)
	for _, p := range ps {
		p.k.mu.Lock()
		if s := p.k.current; s != nil {
			ids[s.epoch.id] = true
		}
		p.k.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, fields := range w.server.keys {
		for id, f := range fields {
			switch {
			case !ids[id]:
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
	if k.current != nil {
		for range k.current.entries() {
			n++
		}
	}
	return n
}

// simulate runs one schedule.
func simulate(t *testing.T, seed uint64, kind, broken string) (w *world) {
	bubble.Test(t, func(t *testing.T) {
		w = newWorld(t, seed, kind, broken)
		w.live(t)
		synctest.Wait()
		time.Sleep(2 * simTTL) // those that beat find that they are dead
		w.all.Wait()
	})
	return w
}

var kinds = []string{"calm", "late", "crash", "outage", "clock", "partition", "pause", "flush", "failover"}

// seeds returns the seed of the first schedule. The order in which goroutines run makes a
// schedule, too, so that of one seed differs a little from run to run.
func seeds() uint64 {
	if *firstSeed > 0 {
		return *firstSeed
	}
	return rand.Uint64N(1 << 32)
}

func TestSimulation(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			first, granted, waited, refused, shed := seeds(), 0, 0, 0, 0
			for seed := first; seed < first+uint64(*schedules); seed++ {
				w := simulate(t, seed, kind, "")
				granted += w.granted
				waited += w.waited
				shed += w.sheds
				refused += len(w.account.refusals) - w.sheds
				if len(w.faults) > 0 {
					t.Fatalf("-seed %d:\n%s", seed, strings.Join(w.faults, "\n"))
				}
			}
			t.Logf("%d schedules, %d grants, %d of them to who waited, %d refusals, %d were shed", *schedules, granted, waited, refused, shed)
		})
	}
}

// A server that breaks one of the rules is found out.
func TestSimulationFindsFaults(t *testing.T) {
	for broken, kind := range map[string]string{
		"no sequence":    "calm",
		"no fleet clock": "outage",
		"revives":        "partition",
		"stingy":         "calm",
		"hides the dead": "crash",
		"drops nothing":  "flush",
	} {
		t.Run(broken, func(t *testing.T) {
			first := seeds()
			for seed := first; seed < first+1000; seed++ {
				if w := simulate(t, seed, kind, broken); len(w.faults) > 0 {
					t.Logf("after %d schedules: %s", seed-first, w.faults[0])
					return
				}
			}
			t.Error("nothing was found")
		})
	}
}
