// Package keeper keeps the slots that this process holds, and makes a server that all processes share
// count them. It states them, and states them again where the server may have lost them. It sends
// heartbeats, so that no other process takes this one for dead. It is the protocol without the network:
// a [Transport] runs its scripts.
//
// The process has the truth. For each key the server has a hash with the statements of each incarnation
// of a process, and one sorted set of the incarnations. A statement is absolute, carries a number, and
// changes nothing if a later one came first. A grant is a statement too: of the slots that are held,
// and as many more as there is room for.
//
// The keeper has one session at a time, from the first acquire until all names are closed. File
// session.go has its incarnation and heartbeats, and statements.go the statements of its entries. File
// entry.go has the entry of a key, and codec.go the arguments and replies of the scripts.
package keeper

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash/maphash"
	"sync"
	"time"
)

var (
	// ErrClosed is the error of an acquire of a name that was closed meanwhile.
	ErrClosed = errors.New("headgate: the slots were closed")
	// ErrGone is the error of a transport that is closed for good.
	ErrGone = errors.New("headgate: the client is closed")
	// ErrUnsent wraps the error of an op that was not sent, and so has no effect.
	ErrUnsent = errors.New("headgate: not sent")

	errDeadline = errors.New("headgate: Redis did not answer in time")
	errCrowd    = errors.New("headgate: too many acquires wait for Redis")
	errStale    = errors.New("headgate: another process states slots for this one")
)

// A Transport runs scripts. It is safe for concurrent use.
type Transport interface {
	// Shard returns the shard of a key, from 0 to below the Config's Shards.
	Shard(key string) int
	// Run runs ops of a shard, of different keys, and reads their replies. It never
	// runs one twice.
	Run(ctx context.Context, shard int, ops []*Op)
	// Beat runs a beat, and reads its reply. After the transport has been closed,
	// the error is ErrGone.
	Beat(ctx context.Context, b *Beat) error
	// Servers identifies the servers and their histories: another text means that
	// something may have been lost. Empty means unknown.
	Servers(ctx context.Context) string
}

// Config configures a Keeper.
type Config struct {
	TTL      time.Duration // a process is dead after that long without heartbeats
	Timeout  time.Duration // of an op for which no caller waits
	Shards   int           // parts of the server that fail independently
	Instance string        // a new process of that name replaces the earlier; may be empty

	// Lost is called when this process has been declared dead, with what it held, and
	// Restated when everything is stated again. They may be nil.
	Lost     func(slots int64)
	Restated func(keys int)
}

// Parts of the TTL.
const (
	beatsInTTL   = 3
	retriesInTTL = 15
	sweepTTLs    = 20 // in this many TTLs everything is stated again
)

const (
	refusedFor = 150 * time.Millisecond // how long a key's refusal is cached, from the question
	waitsFor   = 500 * time.Millisecond // how long callers who were refused are taken to wait; as in slots.lua
	deadFor    = 100 * time.Millisecond // the age at which the list of the dead is renewed before a refusal
	batchSize  = 128                    // ops that are sent together
	mergeSize  = 1024                   // acquires in an op
	seenSize   = 64                     // incarnations of others that a beat reports
	maxWaiting = 1 << 14                // acquires that wait at once
)

// Again returns after which time waiting callers should ask again. A slot may be kept for them: the
// next free slot (1), the one after it (2), and so on; 0 means none. So of many waiting callers,
// few ask often.
func Again(due int) time.Duration {
	const soon = 20 * time.Millisecond
	if d := soon * time.Duration(due); d < refusedFor {
		return d
	}
	return 0
}

// A Keeper keeps slots. It is safe for concurrent use.
type Keeper struct {
	transport Transport
	config    Config
	start     time.Time

	mu       sync.Mutex
	current  *session                               // nil before the first acquire and after all names were closed
	unclosed map[string]func(context.Context) error // what a failed Close of the name has to try again
	seq      int64                                  // of the last op; grows with each
	waiting  int                                    // acquires
	leading  int                                    // ops that acquires began, whose callers may have left
	answers  answers
}

// New makes a Keeper.
func New(t Transport, c Config) *Keeper {
	return &Keeper{
		transport: t, config: c, start: time.Now(),
		unclosed: make(map[string]func(context.Context) error), answers: answers{seed: maphash.MakeSeed()},
	}
}

func (c *Config) beatPause() time.Duration  { return c.TTL / beatsInTTL }
func (c *Config) retryPause() time.Duration { return c.TTL / retriesInTTL }
func (c *Config) askPause() time.Duration   { return c.retryPause() / 8 } // while acquires wait for a beat
func (c *Config) sweepTime() time.Duration  { return c.TTL * sweepTTLs }

// maxClockStep is by how much one beat may advance the fleet's time: a tenth more than
// the pause between beats, as beats may be late. What a longer gap adds does not count,
// so that an outage makes no process dead.
func (c *Config) maxClockStep() time.Duration { return c.beatPause() * 11 / 10 }

// TrialBeat is a beat that keeps nobody alive, and moves the fleet's time as any other.
func TrialBeat(ttl time.Duration) *Beat {
	c := Config{TTL: ttl}
	return &Beat{TTL: ttl, Step: c.maxClockStep()}
}

// deadTime is how long a list of the dead is used: until the second beat after it, as the
// answer to one may be lost. No longer, as the servers may lose what it says.
func (c *Config) deadTime() time.Duration { return 2 * c.beatPause() }

// since is the time since start, as entries store it. It is never 0.
func (k *Keeper) since() time.Duration { return time.Since(k.start) + 1 }

// newID makes up the name of an incarnation.
func (k *Keeper) newID() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails
	return k.prefix() + base64.RawURLEncoding.EncodeToString(b[:])
}

// prefix begins the names of all incarnations of an instance.
func (k *Keeper) prefix() string {
	if k.config.Instance == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(k.config.Instance))
	return base64.RawURLEncoding.EncodeToString(sum[:6]) + "."
}

// A pool is the slots of one name from their first acquire until they are closed.
type pool struct{ closed bool }

// A Hold is one slot that this process holds.
type Hold struct {
	entry *entry
	pool  *pool
	lost  <-chan struct{}
}

// Release gives the slot back. It does not wait.
func (h *Hold) Release() {
	k := h.entry.book.session.Keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.pool.closed {
		return
	}
	h.entry.held--
	h.entry.refused = 0
	h.entry.book.session.changed(h.entry)
}

// Lost returns a channel that is closed when this process has been declared dead.
func (h *Hold) Lost() <-chan struct{} { return h.lost }

// Doubt returns a channel that is closed when everything is stated again for the next time:
// because the server may have granted too much meanwhile.
func (h *Hold) Doubt() <-chan struct{} {
	s := h.entry.book.session
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubt
}

// Shed gives the slot back if the key holds more than the largest limit under which this process
// holds slots of it. It reports whether it did. The server decides that. So if several processes
// ask at once, they give back only the surplus, and slots for which the server's answer is lost.
// Shed may not run at the same time as Release. After an error the slot is held, as if Shed had not
// been called.
func (h *Hold) Shed(ctx context.Context) (shed bool, err error) {
	s := h.entry.book.session
	w := &waiter{pool: h.pool, sheds: true, done: make(chan struct{})}
	s.mu.Lock()
	if h.pool.closed {
		s.mu.Unlock()
		return false, ErrClosed
	}
	if err := s.wait(ctx, time.Now().Add(s.config.Timeout), h.entry, w); err != nil {
		return false, err
	}
	return w.granted, w.err
}

// Full reports whether the key is known to be full, without a call. Either this process alone has
// stated that many, or it was refused just now. Due is for a caller that waits: see Again.
func (k *Keeper) Full(name, key string, limit int64, waits bool) (held int64, due int, full bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var e *entry
	if k.current != nil {
		e = k.current.find(name, key)
	}
	if e == nil {
		return 0, 0, limit <= 0
	}
	return e.full(limit, waits, k.since())
}

// Own returns how many slots of the key this process holds, and the incarnations whose
// fields in the hash must not be counted in addition.
func (k *Keeper) Own(name, key string) (held int64, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return 0, nil
	}
	if e := k.current.find(name, key); e != nil {
		held = e.held
	}
	return held, append([]string{k.current.epoch.id}, k.current.former...)
}

// Beaten reports whether slots can be acquired without another heartbeat: one was answered
// within the last TTL.
func (k *Keeper) Beaten() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current != nil && k.current.beaten(k.config.TTL)
}

// Beat sends a heartbeat, unless one is on its way, and waits for the answer. While no slots
// are held, it is one that keeps nobody alive.
func (k *Keeper) Beat(ctx context.Context) error {
	k.mu.Lock()
	if k.current == nil {
		k.mu.Unlock()
		return k.transport.Beat(ctx, TrialBeat(k.config.TTL))
	}
	f := k.current.startBeat()
	k.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// IDs returns the incarnations of this process that may have fields.
func (k *Keeper) IDs() []string {
	_, ids := k.Own("", "")
	return ids
}

// Take acquires a slot without a call, if fewer than room are held. With others, it counts the
// slots of this process and those in the last answer, unless that is older than a TTL. The slot is
// stated when the server can be reached. Held counts the same slots. The limit is the limit of all
// processes, for Shed.
func (k *Keeper) Take(name, key string, limit, room int64, others bool) (h *Hold, held int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.session()
	e := s.entry(name, key)
	held = e.held
	if others {
		held += k.answers.others(name, key, k.since()-k.config.TTL)
	}
	if held >= room {
		s.changed(e)
		return nil, held
	}
	e.grant(limit)
	s.changed(e)
	return &Hold{e, s.pool(name), s.epoch.lost}, held + 1
}

// A Request asks for a slot.
type Request struct {
	Name, Key string
	Limit     int64 // what Shed goes by
	Room      int64 // what the key may hold with the slot; at least Limit
	Waiting   int   // callers of this process that wait for slots of the key, with this one; 0: it does not wait
}

// An Answer is that to a [Request]: a grant if there is a Hold, or else a refusal.
type Answer struct {
	Hold *Hold
	Held int64 // by all processes
	Due  int   // see [Again]
}

// Acquire is Ask for a caller that does not wait.
func (k *Keeper) Acquire(ctx context.Context, deadline time.Time, name, key string, limit, room int64) (h *Hold, held int64, err error) {
	a, err := k.Ask(ctx, deadline, Request{Name: name, Key: key, Limit: limit, Room: room})
	return a.Hold, a.Held, err
}

// Ask requests a slot, and waits for the answer until the deadline, with at most maxWaiting
// others.
func (k *Keeper) Ask(ctx context.Context, deadline time.Time, r Request) (Answer, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
	defer cancel()
	k.mu.Lock()
	if max(k.waiting, k.leading) >= maxWaiting {
		k.mu.Unlock()
		return Answer{}, errCrowd
	}
	k.waiting++
	defer k.waited()
	s := k.session()
	p := s.pool(r.Name)
	if err := s.ensureRegistered(ctx); err != nil {
		k.mu.Unlock()
		return Answer{}, err
	}
	if p.closed {
		k.mu.Unlock()
		return Answer{}, ErrClosed
	}
	e := s.entry(r.Name, r.Key)
	w := &waiter{pool: p, limit: r.Room, shedAt: r.Limit, callers: r.Waiting, done: make(chan struct{})}
	if err := s.wait(ctx, deadline, e, w); err != nil {
		return Answer{}, err
	}
	a := Answer{Held: w.held, Due: w.due}
	if w.err == nil && w.granted {
		a.Hold = &Hold{e, p, w.lost}
	}
	return a, w.err
}

// wait waits for the answer, until the deadline of the op or the end of ctx. It releases the
// lock.
func (s *session) wait(ctx context.Context, deadline time.Time, e *entry, w *waiter) error {
	e.waiters = append(e.waiters, w)
	leads := !e.busy
	if leads {
		e.busy = true
		s.led(w, 1)
	}
	s.mu.Unlock()
	if leads {
		// The caller's cancellation does not end the op: the outcome of an op that was
		// interrupted is unknown, and costs another.
		own, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
		go func() {
			defer cancel()
			s.lead(own, e, w)
		}()
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if !s.giveUp(w) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// led counts an op that a waiter begins, or that is over. Sheds are not bounded.
func (k *Keeper) led(w *waiter, n int) {
	if !w.sheds {
		k.leading += n
	}
}

func (k *Keeper) waited() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting--
}

// giveUp ends a wait, and reports whether the answer had come before. A waiter whose slot is
// being given up waits on.
func (k *Keeper) giveUp(w *waiter) (answered bool) {
	k.mu.Lock()
	select {
	case <-w.done:
		answered = true
	default:
		w.gone = !w.over
	}
	over := w.over
	k.mu.Unlock()
	if over {
		<-w.done
	}
	return answered || over
}

// Close gives back everything of a name, and waits until the server has it or ctx ends. If it was
// the last open name, the incarnation is buried instead, with all its statements. That is one
// command, which is sent even if ctx has ended, and ends the wait of the other names too. Then the
// statements are removed until ctx ends or the server does not answer, which is no error. An
// Acquire that races with Close may begin a new session. After an error, another Close of the name
// tries the rest again.
func (k *Keeper) Close(ctx context.Context, name string) error {
	k.mu.Lock()
	giveBack := k.unclosed[name]
	if s := k.current; s != nil && s.pools[name] != nil {
		s.pools[name].closed = true
		delete(s.pools, name)
		if len(s.pools) == 0 {
			s.end()
			giveBack = s.bury
		} else {
			giveBack = s.closing(name).wait
		}
	}
	delete(k.unclosed, name)
	k.mu.Unlock()
	if giveBack == nil {
		return nil
	}
	err := giveBack(ctx)
	if err != nil && !errors.Is(err, ErrGone) {
		k.mu.Lock()
		k.unclosed[name] = giveBack
		k.mu.Unlock()
	}
	return err
}
