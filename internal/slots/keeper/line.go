package keeper

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
)

// A waiter is a call of Acquire that waits for its answer, in the order of the calls. Its stages, and what changes
// them:
//
//	stage  | meaning                 | sent     | granted    | refused               | woken    | context ends
//	-------|-------------------------|----------|------------|-----------------------|----------|-------------
//	fresh  | asks with the next      | -> asked |            |                       |          | gone
//	       | statement               |          |            |                       |          |
//	asked  | a statement asks for it |          | has a slot | ErrFull, or -> parked |          | gone
//	parked | stands in line          |          |            |                       | -> fresh | gone
//
// Who goes after having stood in line is full, as it was refused; who goes before was told nothing. A line is woken
// when this process releases a slot of the key, and from time to time for those that others release.
type waiter struct {
	slots.Acquisition

	open   *openName // its Name
	entry  *entry
	stage  stage
	stands bool          // in line: it has been parked
	done   chan struct{} // closed when there is an answer
	grant  slots.Grant
	err    error
}

type stage uint8

const (
	fresh stage = iota
	asked
	parked
)

// ready reports whether the next statement asks for the waiter.
func (w *waiter) ready() bool { return w.stage == fresh }

// askAgain has waiters asked for by another statement: theirs has no answer.
func askAgain(waiters []*waiter) {
	for _, w := range waiters {
		w.stage = fresh
	}
}

// answered reports whether there is an answer.
func (w *waiter) answered() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// Acquire acquires a slot, as [slots.Registry] says. While the server is away, the Failure of the Config decides.
func (k *Keeper) Acquire(ctx context.Context, acquisition slots.Acquisition) (slots.Grant, error) {
	if ctx.Err() != nil {
		return slots.Grant{}, context.Cause(ctx)
	}
	if acquisition.Limit <= 0 { // nobody has to be asked, and nothing is kept of the key
		return slots.Grant{}, &slots.FullError{Name: acquisition.Name, Source: step.SourceStore}
	}
	w := &waiter{Acquisition: acquisition, done: make(chan struct{})}
	k.mu.Lock()
	w.open = k.names[w.Name]
	if w.open == nil {
		w.open = &openName{}
		k.names[w.Name] = w.open
	}
	k.ask(w)
	k.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		k.giveUp(w, context.Cause(ctx))
	}
	return w.grant, w.err
}

// ask adds a waiter, unless the answer is known.
func (k *Keeper) ask(w *waiter) {
	entry := k.entry(entryKey{w.Name, w.Key})
	w.entry = entry
	entry.waiters = append(entry.waiters, w)
	k.asking++
	// A refusal is known if this process alone fills the key, or was just refused; and for whoever would stand in line
	// behind others: it may not ask before them. While the server is away, it is the Failure that decides.
	reason := k.away(entry)
	isKnown := entry.full(w.Most()) || w.Queue > 0 && entry.behind(w)
	switch {
	case reason == nil && isKnown:
		k.refuse(w, w.Limit, step.SourceCache)
	case k.asking <= maxAsking:
		k.attend(entry)
	case reason != nil:
		k.decideOne(w, reason)
		k.attend(entry)
	default: // a crowd is no outage: the server answers, so the Failure may not grant above limits
		k.answer(w, slots.Grant{}, unavailable(errCrowd))
		k.attend(entry)
	}
}

// full reports whether the key is known to be full: this process alone fills it, or it was refused just now.
func (e *entry) full(most int64) bool {
	isRecent := time.Since(e.refusalAt) < refusedFor
	return e.fills(most) || isRecent && e.held+e.othersHeld >= most
}

// fills reports whether this process alone holds that many slots, as the server knows.
func (e *entry) fills(most int64) bool { return min(e.held, e.acked.Count) >= most }

// behind reports whether somebody stands in line for whom a slot that would suit w suits, too.
func (e *entry) behind(w *waiter) bool {
	return slices.ContainsFunc(e.waiters, func(other *waiter) bool {
		return other != w && other.stands && other.Most() >= w.Most()
	})
}

// refuseIfFilled refuses those who are ready though this process alone holds as many slots as they may.
func (k *Keeper) refuseIfFilled(entry *entry) {
	isFilled := func(w *waiter) bool { return w.stage == fresh && entry.fills(w.Most()) }
	if !slices.ContainsFunc(entry.waiters, isFilled) { // mostly, and then nothing is copied
		return
	}
	// A refusal takes its waiter out of the list, or leaves it there as one that stands in line.
	for _, w := range slices.Clone(entry.waiters) {
		if isFilled(w) {
			k.refuse(w, w.Limit, step.SourceCache)
		}
	}
}

// group returns those for whom the next statement asks: the first that is ready, and all with the same Most that
// wait as it does.
func (e *entry) group() (group []*waiter) {
	for _, w := range e.waiters {
		if w.stage != fresh || len(group) == mergeSize {
			continue
		}
		// A statement has one Most, and says whether those for whom it asks stand in line.
		if len(group) == 0 || w.Most() == group[0].Most() && (w.Queue > 0) == (group[0].Queue > 0) {
			w.stage = asked
			group = append(group, w)
		}
	}
	return group
}

// divide divides what a statement was granted among those for whom it asked, in their order. What is left over, as
// some have gone, is stated back.
func (k *Keeper) divide(asked *request) {
	entry := asked.entry
	left := asked.Granted
	asked.waiters = slices.DeleteFunc(asked.waiters, (*waiter).answered) // they have gone
	for i, w := range asked.waiters {
		if int64(i) < left {
			k.grant(w, w.Limit, entry.othersHeld, step.SourceStore)
			continue
		}
		// The answer counts slots of the dead, unless the statement has deleted their fields. The next one does.
		isKept := func(id string) bool { return !slices.Contains(asked.Drop, id) }
		countsDead := slices.ContainsFunc(entry.deadIDs, isKept)
		if countsDead {
			w.stage = fresh
			continue
		}
		// Who waits may be refused although there is room, in the turn of another process: that says nothing of the
		// key.
		if !asked.Waits {
			entry.refusalAt = asked.askedAt
		}
		// These slots may be those of a killed process. If nobody beats, the fleet's time stands still, and they stay
		// taken.
		if entry.othersHeld > 0 {
			k.beatForOthers()
		}
		k.refuse(w, w.Limit, step.SourceStore)
	}
}

// A hold is one slot that this process holds.
type hold struct {
	keeper *Keeper
	entry  *entry
	open   *openName
	lost   <-chan struct{}
}

// grant grants a slot, under the limit of its Acquisition or a share of that, beside those that others were taken to
// hold. The slot may be more than the server knows of, if it is granted without it: the next statement says so.
func (k *Keeper) grant(w *waiter, limit, othersHeld int64, source step.Source) {
	entry := w.entry
	entry.held++
	entry.servedAt = time.Now()
	held := &hold{k, entry, w.open, k.process.lost}
	k.answer(w, slots.Grant{Hold: held, Held: entry.held + othersHeld, Limit: limit, Source: source}, nil)
}

// Release implements [slots.Hold].
func (h *hold) Release() {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	// Close has stated a zero for this slot already, and somebody may hold one of the name anew.
	if h.open.closed {
		return
	}
	h.entry.held--
	// There is room now, so what was refused a moment ago says nothing any more.
	h.entry.refusalAt = time.Time{}
	h.keeper.wake(h.entry)
}

// Lost implements [slots.Hold].
func (h *hold) Lost() <-chan struct{} { return h.lost }

// refuse refuses a slot: the waiter is parked, if there is a place in line.
func (k *Keeper) refuse(w *waiter, limit int64, source step.Source) {
	entry := w.entry
	if !w.stands {
		standing := entry.standing()
		if standing >= w.Queue {
			k.answer(w, slots.Grant{}, &slots.FullError{Name: w.Name, Limit: limit, Source: source})
			return
		}
		// An empty line has nobody who was served: its time counts from now, so that the first pauses are short.
		if standing == 0 {
			entry.servedAt = time.Now()
		}
		w.stands = true
	}
	w.stage = parked
	k.asking--
	if entry.poll == nil && !entry.fills(w.Most()) { // else a release of this process wakes it
		k.poll(entry)
	}
}

// poll has those who stand in line ask again after a pause: nobody tells this process what others release. The longer
// nobody was served, the longer the pause.
func (k *Keeper) poll(entry *entry) {
	least := minPoll
	if entry.held > 0 {
		least *= 2 // releases of this process wake them, too
	}
	pause := min(max(time.Since(entry.servedAt)/4, least), maxPoll)
	entry.poll = time.AfterFunc(jitter(pause), func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		entry.poll = nil
		k.wake(entry)
	})
}

// standing returns how many stand in line.
func (e *entry) standing() (n int) {
	for _, w := range e.waiters {
		if w.stands {
			n++
		}
	}
	return n
}

// wake has those who stand in line ask again.
func (k *Keeper) wake(entry *entry) {
	for _, w := range entry.waiters {
		if w.stage == parked {
			w.stage = fresh
			k.asking++
		}
	}
	k.attend(entry)
}

// answer ends the wait of a waiter.
func (k *Keeper) answer(w *waiter, grant slots.Grant, err error) {
	if w.stage != parked {
		k.asking--
	}
	w.entry.waiters = slices.DeleteFunc(w.entry.waiters, func(other *waiter) bool { return other == w })
	w.grant = grant
	w.err = err
	close(w.done)
}

// giveUp ends a wait whose context has ended, unless the answer has come. A statement that asks for the waiter goes on.
// Its slot, if it is granted one, is stated back. Who has stood in line had an answer, and is full; who asked to wait
// and never had one does not know whether there was room; and who did not ask to wait gets the cause as it is.
func (k *Keeper) giveUp(w *waiter, cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case w.answered():
	case w.stands:
		k.answer(w, slots.Grant{}, &slots.FullError{
			Name: w.Name, Limit: w.Limit, Source: step.SourceStore, Cause: cause,
		})
	case w.Queue > 0:
		k.answer(w, slots.Grant{}, unavailable(cause))
	default:
		k.answer(w, slots.Grant{}, cause)
	}
}

// refuseAll ends the wait of all.
func (k *Keeper) refuseAll(entry *entry, err error) {
	for len(entry.waiters) > 0 {
		k.answer(entry.waiters[0], slots.Grant{}, err)
	}
}

// decide decides for all who are ready, while the server is away.
func (k *Keeper) decide(entry *entry, err error) {
	for _, w := range slices.Clone(entry.waiters) {
		if w.stage == fresh {
			k.decideOne(w, err)
		}
	}
}

// decideOne decides for one, by the Failure: this process has a share of the limit, or what the others have left by the
// last answer, if that is not old.
func (k *Keeper) decideOne(w *waiter, err error) {
	entry := w.entry
	limit := w.Limit
	othersHeld := int64(0)
	servers := int64(k.config.Servers)
	switch {
	case k.config.Failure == outage.FailClosed:
		k.answer(w, slots.Grant{}, unavailable(err))
		return
	case k.config.Failure == outage.FailOpen:
		k.grant(w, limit, entry.othersHeld, step.SourceOpen)
		return
	case servers > 1:
		// Rounded up, so that a limit below the number of servers still grants one slot on each.
		limit = (limit + servers - 1) / servers
	case time.Since(entry.othersAskAt) < k.config.TTL:
		othersHeld = entry.othersHeld
	}
	oneMore := w.Most() - w.Limit
	if entry.held+othersHeld < limit+oneMore {
		k.grant(w, limit, othersHeld, step.SourceLocal)
	} else {
		k.refuse(w, limit, step.SourceLocal)
	}
}

// unavailable returns the error that says why nobody has decided.
func unavailable(reason error) error { return fmt.Errorf("%w: %w", slots.ErrUnavailable, reason) }
