package keeper

import (
	"math"
	"time"
)

// An entry is what this process holds of a key.
type entry struct {
	book    *book
	key     string
	waiters []*waiter
	closing []*closing

	held    int64         // by this process: the truth
	stated  int64         // what the server has acknowledged last
	seq     int64         // the number of that statement
	others  int64         // what the others held then
	refused time.Duration // until when a refusal is cached
	unclean time.Duration // when the outcome of an op was last unknown; 0: never
	waits   time.Duration // until when callers are taken to wait for slots; 0: none
	turn    time.Duration // until when a refusal of callers that wait is cached

	place   int32 // in its shard
	shard   int32
	limit   uint32 // the largest under which a slot was granted that may be held; saturated
	turnAt  uint32 // as long as this process holds so many; saturated
	turnFor uint32 // of callers whose limit is at most that; saturated
	due     uint8  // which of the next slots is kept for them; 0: none; saturated
	fresh   uint8  // after how many more beats it is stated again
	known   bool   // the server has what is in stated, unless it has lost something
	kept    bool   // the server keeps a zero
	moved   bool   // stated since the epoch began
	busy    bool   // an op is in flight, or about to be
	queued  bool   // in its shard's out
	failed  bool   // in its shard's failed
	recent  bool   // in the session's recent
	dirty   bool   // to be stated again although nothing has changed
	listAll bool   // and the reply is to have the fields of all others
	marked  bool   // the server has that callers wait
}

// grant adds a slot.
func (e *entry) grant(limit int64) {
	if e.held == 0 {
		e.limit = 0
	}
	e.limit = max(e.limit, uint32(min(limit, math.MaxUint32)))
	e.held++
}

// giveUp removes the slot of a waiter that sheds.
func (e *entry) giveUp(w *waiter) {
	e.held--
	w.granted = true
	close(w.done)
}

// most returns how many slots the key may hold: more than that are too many.
func (e *entry) most() int64 {
	if e.limit == math.MaxUint32 {
		return math.MaxInt64
	}
	return int64(e.limit)
}

// A waiter waits for a slot, or for whether one is to be given up.
type waiter struct {
	pool    *pool
	limit   int64         // of what the key may hold
	shedAt  int64         // what is above this is too many
	callers int           // of this process that wait for slots of the key, with this one; 0: it does not wait
	sheds   bool          // has a slot, and gives it up if the key holds more than the limit,
	over    bool          // which is known
	gone    bool          // has given up waiting
	done    chan struct{} // closed when the fields below are set

	granted bool // or given up
	held    int64
	due     int // which of the next slots is kept for those who wait; 0: none
	lost    chan struct{}
	err     error
}

func (w *waiter) like(v *waiter) bool {
	return w.limit == v.limit && w.sheds == v.sheds && w.over == v.over && (w.callers > 0) == (v.callers > 0)
}

// fail ends the wait of some waiters with an error.
func fail(ws []*waiter, err error) {
	for _, w := range ws {
		w.err = err
		close(w.done)
	}
}

// full is Keeper.Full for an entry.
func (e *entry) full(limit int64, waits bool, now time.Duration) (held int64, due int, full bool) {
	held = e.held + e.others
	if waits && now < e.turn && e.held >= int64(e.turnAt) && limit <= int64(e.turnFor) {
		return held, int(e.due), true
	}
	return held, 0, e.fills(limit) || !waits && now < e.refused && held >= limit
}

// fills reports whether this process alone holds that many slots, as the server knows. What was
// taken without it does not count: whether it is there, only a call tells.
func (e *entry) fills(limit int64) bool { return min(e.held, e.stated) >= limit }

// wanted reports whether the entry must be stated.
func (e *entry) wanted() bool {
	return e.dirty || !e.known || e.held != e.stated || len(e.book.session.drops[e]) > 0
}

// next takes out the waiters that one op can serve: those that want what the first does.
func (e *entry) next() (batch []*waiter) {
	ws := e.waiters
	for len(ws) > 0 && len(batch) < mergeSize {
		w := ws[0]
		switch {
		case w.gone:
		case w.pool.closed:
			fail(ws[:1], ErrClosed)
		case !w.sheds && e.fills(w.limit):
			w.held = e.held + e.others
			close(w.done)
		case len(batch) > 0 && !w.like(batch[0]):
			e.waiters = ws
			return batch
		default:
			batch = append(batch, w)
		}
		ws = ws[1:]
	}
	e.waiters = ws
	return batch
}

// asFound reports whether the server had what it had acknowledged.
func (e *entry) asFound(f Field) bool {
	if e.stated == 0 && !e.kept {
		return f.ID == ""
	}
	return f.ID != "" && f.Count == e.stated && f.Seq == e.seq
}

// closed counts the entry as done for the calls of Close that wait for it.
func (e *entry) closed() {
	for _, c := range e.closing {
		if c.left--; c.left == 0 {
			close(c.done)
		}
	}
	e.closing = nil
}
