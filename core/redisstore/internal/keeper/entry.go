package keeper

import "time"

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

	place   int32 // in its shard
	shard   int32
	fresh   uint8 // after how many more beats it is stated again
	known   bool  // the server has what is in stated, unless it has lost something
	kept    bool  // the server keeps a zero
	moved   bool  // stated since the epoch began
	busy    bool  // an op is in flight, or about to be
	queued  bool  // in its shard's out
	failed  bool  // in its shard's failed
	recent  bool  // in the session's recent
	dirty   bool  // to be stated again although nothing has changed
	listAll bool  // and the reply is to have the fields of all others
}

// A waiter waits for a slot.
type waiter struct {
	pool  *pool
	limit int64
	gone  bool          // has given up
	done  chan struct{} // closed when the fields below are set

	granted bool
	held    int64
	lost    chan struct{}
	err     error
}

// fail ends the wait of some waiters with an error.
func fail(ws []*waiter, err error) {
	for _, w := range ws {
		w.err = err
		close(w.done)
	}
}

// full is Keeper.Full for an entry.
func (e *entry) full(limit int64, now time.Duration) (held int64, full bool) {
	held = e.held + e.others
	return held, e.held >= limit || now < e.refused && held >= limit
}

// wanted reports whether the entry must be stated.
func (e *entry) wanted() bool {
	return e.dirty || !e.known || e.held != e.stated || len(e.book.session.drops[e]) > 0
}

// next takes out the waiters that one op can serve: those with the limit of the first.
func (e *entry) next() (batch []*waiter) {
	ws := e.waiters
	for len(ws) > 0 && len(batch) < mergeSize {
		w := ws[0]
		switch {
		case w.gone:
		case w.pool.closed:
			fail(ws[:1], ErrClosed)
		case e.held >= w.limit:
			w.held = e.held + e.others
			close(w.done)
		case len(batch) > 0 && w.limit != batch[0].limit:
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
