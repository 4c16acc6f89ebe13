package keeper

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// An entry is what this process knows of a key. Its phases, and what changes them:
//
//	phase  | meaning               | to be stated | sent in a batch | answered                  | failed
//	-------|-----------------------|--------------|-----------------|---------------------------|-------------------
//	idle   | nothing is on its way | -> queued    |                 |                           |
//	queued | is to be stated       |              | -> sent         |                           | -> idle: stalled
//	sent   | a statement is sent   |              |                 | -> idle, or queued if due | -> idle, not known
//
// An entry is due if the server is not known to have what is held (differs), or if somebody is ready to ask. It stands
// in a queue for each of these reasons, and is sent when it is the first in one. Beats have it stated again from time
// to time (see sweep): that is a third queue. In a stalled shard, or in a process that is away, nothing is queued: the
// Failure decides for who is ready to ask, and the next beat that is answered states what differs.
type entry struct {
	entryKey
	shard  *shard
	phase  phase
	queues [needs]bool // whether it stands in each queue, perhaps since before it was sent

	held        int64     // slots that this process holds: the truth
	acked       Field     // what the server had by its last answer
	isAcked     bool      // it still has that: nothing was sent since whose outcome is unknown
	uncertainAt time.Time // when an outcome was last unknown
	formerIDs   []string  // earlier incarnations under which the server may have a field
	deadIDs     []string  // dead incarnations whose fields are to be deleted

	othersHeld  int64     // what the others held by the last answer
	othersAskAt time.Time // when that was asked
	refusalAt   time.Time // when a refusal that is remembered was asked
	changeBeat  int64     // the number of the beat before the last change
	sweepBeat   int64     // in which beat of a sweep it is stated

	waiters  []*waiter
	servedAt time.Time   // when one that waits was granted a slot, or began to wait in an empty line
	poll     *time.Timer // wakes those who wait; nil: none is due
}

type phase uint8

const (
	idle phase = iota
	queued
	sent
)

// A need is why an entry is to be stated. There is a queue for each.
type need uint8

const (
	repeated need = iota // the server has it, unless it has lost it
	owed                 // the server may count more than is held, or less
	urgent               // somebody waits for the answer
	needs                // how many there are
)

// A shard is the entries that fail together.
type shard struct {
	queues [needs][]*entry // of those that are to be stated
	calls  int             // that are in flight
	failed int             // calls in a row; from maxFailed on, nothing is sent until a beat is answered
	reason error           // why nothing is, or was until that beat; nil: calls are answered
}

// stalled reports whether nothing is sent until a beat is answered.
func (sh *shard) stalled() bool { return sh.failed >= maxFailed }

// entry returns the entry of a key, which may be new. A new one takes the server to have nothing of it, as far as this
// incarnation has stated. It counts as unchanged for long, so that no beat states it for that, and gets a random beat
// of the sweep, so that each beat states about as many.
func (k *Keeper) entry(key entryKey) *entry {
	known := k.entries[key]
	if known == nil {
		known = &entry{
			entryKey: key, shard: &k.shards[k.transport.Shard(key.name, key.key)], isAcked: true,
			changeBeat: k.process.beats - confirmBeats - 1,
			sweepBeat:  rand.Int64N(sweepBeats), //nolint:gosec // no secret
		}
		k.entries[key] = known
	}
	return known
}

// differs reports whether the server is not known to have what is held.
func (e *entry) differs() bool {
	return !e.isAcked || e.held != e.acked.Count || len(e.formerIDs) > 0 || len(e.deadIDs) > 0
}

// due reports whether the entry is to be stated.
func (e *entry) due() bool { return e.differs() || slices.ContainsFunc(e.waiters, (*waiter).ready) }

// leftover reports whether the server keeps a zero that nobody needs.
func (e *entry) leftover(keeper *Keeper) bool {
	isZero := e.acked.Count == 0 && e.acked.Seq > 0
	return isZero && len(e.waiters) == 0 && keeper.clean(e)
}

// clean reports whether no statement of the key can be on its way. If one may be, a zero is kept: its number keeps
// the late statement from being executed.
func (k *Keeper) clean(entry *entry) bool {
	return time.Since(entry.uncertainAt) > k.config.TTL/beatsInTTL*sweepBeats
}

// over reports whether nothing is held, and nothing of it is at the server. The phase counts, since a statement that is
// on its way may be granted a slot.
func (e *entry) over() bool {
	isEmpty := e.held == 0 && len(e.waiters) == 0
	return isEmpty && e.phase != sent && !e.differs() && e.acked.Seq == 0
}

// forget removes an entry that is over and is not to be stated again.
func (k *Keeper) forget(entry *entry, age int64) bool {
	forgotten := entry.over() && entry.phase == idle && age > confirmBeats
	if forgotten && k.entries[entry.entryKey] == entry {
		delete(k.entries, entry.entryKey)
	}
	return forgotten
}

// away reports whether nothing is sent for the entry, and why.
func (k *Keeper) away(entry *entry) error {
	switch {
	case k.process.failure != nil && !k.member():
		return k.process.failure
	case entry.shard.stalled():
		return entry.shard.reason
	}
	return nil
}

// attend does what an entry needs. It is called whenever something has changed: somebody asks, releases, goes away, or
// an answer has come. It refuses those for whom this process alone leaves no room. In an outage it has the Failure
// decide. It queues an entry that is due, and forgets one of which nothing is left.
func (k *Keeper) attend(entry *entry) {
	k.refuseIfFilled(entry)
	// What is on its way has an answer of its own, or none; that is when its waiters are decided about.
	err := k.away(entry)
	if err != nil && entry.phase != sent {
		k.decide(entry, err)
	}
	switch {
	case entry.due():
		k.queue(entry)
	case entry.othersAskAt.IsZero(): // an outage needs no memory for each key
		k.forget(entry, math.MaxInt64)
	}
}

// queue causes an entry to be stated.
func (k *Keeper) queue(entry *entry) {
	k.startBeats()
	// One statement of a key is in flight at a time: the next counts on what it brings.
	if entry.phase == sent || entry.shard.stalled() || !k.member() {
		// The answer looks at it again, or sweep does after the next beat that is answered. So the first acquire of a
		// process is sent: the beat that startBeats sends registers it.
		return
	}
	// Who asks, and what the server does not know, each have a part of a batch. An entry may stand in both queues.
	sh := entry.shard
	ready := slices.ContainsFunc(entry.waiters, (*waiter).ready)
	differs := entry.differs()
	for need, applies := range [needs]bool{repeated: !ready && !differs, owed: differs, urgent: ready} {
		if applies && !entry.queues[need] {
			entry.queues[need] = true
			sh.queues[need] = append(sh.queues[need], entry)
		}
	}
	entry.phase = queued
	// A call takes whatever is queued when it is its turn. So under load fewer calls carry more statements each.
	if sh.calls < k.callLimit {
		sh.calls++
		go k.send(sh)
	}
}

// send sends what is queued in a shard, batch by batch. It ends when there is none left, or when this process is no
// member any more.
func (k *Keeper) send(sh *shard) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		batch := k.batch(sh)
		if len(batch) == 0 {
			sh.calls--
			return
		}
		// Only the call itself is made without the lock.
		statements := make([]*Statement, len(batch))
		for i, request := range batch {
			statements[i] = &request.Statement
		}
		k.mu.Unlock()
		var err error
		suspended := timed(k.config.Timeout, func(ctx context.Context) { err = k.transport.Run(ctx, statements) })
		k.mu.Lock()
		switch {
		case err == nil:
			sh.failed = 0
			sh.reason = nil
		case !suspended:
			k.failed(sh, err)
		}
		for _, asked := range batch {
			k.applyReply(asked, suspended)
		}
	}
}

// queueOrder is the order in which a batch takes entries out of the queues. Each has a part of a full batch, and what
// one leaves is for the others. While many ask, acquires alone would fill all batches, and slots that nobody holds any
// more would stay taken. Half is for what is owed: so releases keep up with acquires, and catch up after a burst. Each
// change is stated again two beats later; no release waits behind these.
var queueOrder = [...]need{owed, urgent, owed, repeated} //nolint:gochecknoglobals // never changed

// batch takes entries out of the queues, and makes their statements. Time alone makes a member silent, so it is looked
// at before each statement.
func (k *Keeper) batch(sh *shard) (batch []*request) {
	for more := true; more && k.member(); {
		more = false
		for _, need := range queueOrder {
			if len(batch) == k.statementLimit {
				return batch
			}
			entry := sh.next(need)
			if entry != nil {
				batch = append(batch, k.prepare(entry))
				more = true
			}
		}
	}
	return batch
}

// next takes the first entry out of a queue, or returns nil. It drops those that another queue has sent.
func (sh *shard) next(need need) *entry {
	queue := &sh.queues[need]
	for len(*queue) > 0 {
		first := (*queue)[0]
		(*queue)[0] = nil
		*queue = (*queue)[1:]
		first.queues[need] = false
		if first.phase == queued {
			return first
		}
	}
	*queue = nil
	return nil
}

// A request is a statement that is to be sent, or was.
type request struct {
	Statement

	entry   *entry
	waiters []*waiter // for whom slots are wanted
	askedAt time.Time
}

// prepare makes the next statement of an entry. What is released while it is on its way is stated by the next one.
func (k *Keeper) prepare(entry *entry) *request {
	entry.phase = sent
	k.seq++
	asked := &request{entry: entry, waiters: entry.group(), askedAt: time.Now()}
	// A zero of somebody who stands in line stays, as its field has the mark of its turn. What is only stated again
	// lists the others, which shows fields of the dead.
	asked.Statement = Statement{
		Name: entry.name, Key: entry.key, ID: k.process.id, Seq: k.seq,
		Held: entry.held, Want: int64(len(asked.waiters)),
		Delete: k.clean(entry) && entry.standing() == 0,
		List:   len(asked.waiters) == 0 && !entry.differs(),
		Drop:   slices.Concat(entry.formerIDs, entry.deadIDs),
	}
	if len(asked.waiters) > 0 {
		asked.Most = asked.waiters[0].Most()
		asked.Waits = asked.waiters[0].Queue > 0
	}
	return asked
}

// applyReply applies the reply to a statement, or its failure.
func (k *Keeper) applyReply(asked *request, suspended bool) {
	entry := asked.entry
	entry.phase = idle
	switch {
	case asked.Err != nil:
		// It may have been run, or may be still. What the server has is not known until a later statement is answered.
		if !errors.Is(asked.Err, ErrUnsent) {
			entry.isAcked = false
			entry.uncertainAt = time.Now()
		}
		askAgain(asked.waiters)
		if !suspended {
			k.decide(entry, asked.Err)
			return // the next beat states it again
		}
	case asked.ID != k.process.id: // an answer to an earlier incarnation is void: all is stated anew under this one
		askAgain(asked.waiters)
	case asked.Stale, entry.isAcked && asked.Found != entry.acked:
		// The server has lost what it had acknowledged, or another process states under this one's name.
		askAgain(asked.waiters)
		k.rejoin(false)
	default:
		k.acknowledge(asked)
		k.divide(asked)
	}
	if entry.held != entry.acked.Count {
		k.wake(entry) // who waits may ask along
	} else {
		k.attend(entry)
	}
}

// acknowledge records what the server has now. A statement that asked for nothing and listed nobody does not say what
// others hold.
func (k *Keeper) acknowledge(asked *request) {
	entry := asked.entry
	count := asked.Held + asked.Granted
	if count != entry.acked.Count || !entry.isAcked {
		entry.changeBeat = k.process.beats
	}
	entry.acked = Field{count, asked.Seq}
	// A zero that was to be deleted is gone, unless it keeps the mark of who stands in line.
	marked := asked.Waits && asked.Granted < asked.Want
	if count == 0 && asked.Delete && !marked {
		entry.acked.Seq = 0
	}
	entry.isAcked = true
	entry.formerIDs = nil
	entry.deadIDs = nil
	if asked.Want == 0 && !asked.List {
		return
	}
	// Fields of the dead do not count. A beat tells the others of incarnations that they may not know.
	entry.othersHeld = asked.Others
	entry.othersAskAt = asked.askedAt
	for _, holder := range asked.Holders {
		switch {
		case k.process.dead[holder.ID]:
			entry.othersHeld -= holder.Count
			entry.deadIDs = append(entry.deadIDs, holder.ID)
		case len(k.process.seen) < maxSeen:
			if k.process.seen == nil {
				k.process.seen = make(map[string]bool)
			}
			k.process.seen[holder.ID] = true
		}
	}
}

// failed notes that a call of a shard failed, and has a beat sent soon, which states again what differs. A stalled
// shard sends nothing until then. The pause before that beat begins with an eighth of a retry and doubles with each
// failure, up to a whole one.
func (k *Keeper) failed(sh *shard, reason error) {
	sh.failed++
	longest := k.config.retry()
	time.AfterFunc(min(longest/8<<min(sh.failed-1, 3), longest), k.beatNow)
	if !sh.stalled() {
		return
	}
	sh.reason = reason
	inQueues := slices.Concat(sh.queues[:]...)
	sh.queues = [needs][]*entry{}
	for _, entry := range inQueues {
		entry.queues = [needs]bool{}
		if entry.phase == queued {
			entry.phase = idle
			k.attend(entry)
		}
	}
}
