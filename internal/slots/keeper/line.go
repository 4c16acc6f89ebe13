package keeper

import (
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
//	stage  | meaning                 | sent     | granted    | refused                        | woken    | context ends
//	-------|-------------------------|----------|------------|--------------------------------|----------|-------------
//	fresh  | asks with the next      | -> asked |            |                                |          | gone
//	       | statement               |          |            |                                |          |
//	asked  | a statement asks for it |          | has a slot | ErrFull, or -> parked (Queue)  |          | gone
//	parked | stands in line          |          |            |                                | -> fresh | gone
//
// Who goes after having stood in line is full, as it was refused; who goes before was told nothing. A line is woken
// when this process releases a slot of the key, and from time to time for those that others release.
type waiter struct {
	claim  slots.Acquisition
	most   int64 // of the claim
	name   *openName
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

func (w *waiter) ready() bool { return w.stage == fresh }

func askAgain(ws []*waiter) {
	for _, w := range ws {
		w.stage = fresh
	}
}

// answer ends a wait.
func (w *waiter) answer(grant slots.Grant, err error) {
	w.grant = grant
	w.err = err
	close(w.done)
}

func (w *waiter) answered() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// ask adds a waiter, unless the answer is known.
func (k *Keeper) ask(w *waiter) {
	entry := k.entry(entryKey{w.claim.Name, w.claim.Key})
	w.entry = entry
	entry.waiters = append(entry.waiters, w)
	k.asking++
	reason := k.away(entry)
	switch {
	case reason == nil && (entry.full(w.most) || w.claim.Queue > 0 && entry.behind(w)):
		k.refuse(w, w.claim.Limit, step.SourceCache)
	case k.asking <= maxAsking:
		k.state(entry)
	case reason != nil:
		k.decideOne(w, reason)
		k.state(entry)
	default: // a crowd is no outage: the server answers, so the Failure may not grant above limits
		k.answer(w, slots.Grant{}, unavailable(errCrowd))
		k.state(entry)
	}
}

// full reports whether the key is known to be full: this process alone fills it, or it was refused just now.
func (e *entry) full(limit int64) bool {
	return e.fills(limit) || time.Since(e.refused) < refusedFor && e.held+e.others >= limit
}

// fills reports whether this process alone holds that many slots, as the server knows.
func (e *entry) fills(limit int64) bool { return min(e.held, e.acked.Count) >= limit }

// behind reports whether somebody stands in line for whom a slot that would suit w suits, too.
func (e *entry) behind(w *waiter) bool {
	return slices.ContainsFunc(e.waiters, func(v *waiter) bool { return v != w && v.stands && v.most >= w.most })
}

// refuseIfFilled refuses those who are ready though this process alone holds as many slots as they may.
func (k *Keeper) refuseIfFilled(waiting *entry) {
	filled := func(w *waiter) bool { return w.stage == fresh && waiting.fills(w.most) }
	for i := slices.IndexFunc(waiting.waiters, filled); i >= 0; i = slices.IndexFunc(waiting.waiters, filled) {
		k.refuse(waiting.waiters[i], waiting.waiters[i].claim.Limit, step.SourceCache)
	}
}

// group returns those for whom the next statement asks: the first that is ready, and all with the same limit that
// wait as it does.
func (e *entry) group() (group []*waiter) {
	for _, w := range e.waiters {
		if w.stage == fresh && len(group) < mergeSize &&
			(len(group) == 0 || w.most == group[0].most && (w.claim.Queue > 0) == (group[0].claim.Queue > 0)) {
			w.stage = asked
			group = append(group, w)
		}
	}
	return group
}

// grant divides what a statement was granted among those for whom it asked, in their order. What is left over, as
// some have gone, is stated back.
func (k *Keeper) grant(asked *request) {
	entry := asked.entry
	left := asked.Granted
	asked.waiters = slices.DeleteFunc(asked.waiters, (*waiter).answered) // they have gone
	for i, w := range asked.waiters {
		if int64(i) < left {
			k.hold(w, w.claim.Limit, step.SourceStore)
			continue
		}
		if slices.ContainsFunc(entry.dead, func(id string) bool { return !slices.Contains(asked.Drop, id) }) {
			w.stage = fresh // the answer counts them; the next statement deletes their fields
			continue
		}
		if !asked.Waits {
			entry.refused = asked.made
		}
		if entry.others > 0 {
			k.watch()
		}
		k.refuse(w, w.claim.Limit, step.SourceStore)
	}
}

// hold grants a slot, under a limit that is that of the claim or a share of it.
func (k *Keeper) hold(w *waiter, limit int64, source step.Source) {
	entry := w.entry
	entry.held++
	entry.served = time.Now()
	k.answer(w, slots.Grant{Hold: &hold{k, entry, w.name, k.process.lost}, Held: entry.held + entry.others, Limit: limit, Source: source}, nil)
}

// refuse refuses a slot: the waiter is parked, if there is a place in line.
func (k *Keeper) refuse(w *waiter, limit int64, source step.Source) {
	entry := w.entry
	if !w.stands {
		standing := entry.standing()
		if standing >= w.claim.Queue {
			k.answer(w, slots.Grant{}, &slots.FullError{Name: w.claim.Name, Limit: limit, Source: source})
			return
		}
		if standing == 0 {
			entry.served = time.Now()
		}
		w.stands = true
	}
	w.stage = parked
	k.asking--
	if entry.poll == nil && !entry.fills(w.most) { // else a release of this process wakes it
		least := minPoll
		if entry.held > 0 {
			least *= 2 // releases of this process wake it, too
		}
		entry.poll = time.AfterFunc(jitter(min(max(time.Since(entry.served)/4, least), maxPoll)), func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			entry.poll = nil
			k.wake(entry)
		})
	}
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
func (k *Keeper) wake(waiting *entry) {
	for _, w := range waiting.waiters {
		if w.stage == parked {
			w.stage = fresh
			k.asking++
		}
	}
	k.state(waiting)
}

// answer ends the wait of a waiter.
func (k *Keeper) answer(w *waiter, grant slots.Grant, err error) {
	if w.stage != parked {
		k.asking--
	}
	w.entry.waiters = slices.DeleteFunc(w.entry.waiters, func(v *waiter) bool { return v == w })
	w.answer(grant, err)
}

// giveUp ends a wait whose context has ended, unless the answer has come. A statement that asks for the waiter goes on.
func (k *Keeper) giveUp(w *waiter, cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case w.answered():
	case w.stands:
		k.answer(w, slots.Grant{}, &slots.FullError{Name: w.claim.Name, Limit: w.claim.Limit, Source: step.SourceStore, Cause: cause})
	case w.claim.Queue > 0:
		k.answer(w, slots.Grant{}, unavailable(cause))
	default:
		k.answer(w, slots.Grant{}, cause)
	}
}

// refuseAll ends the wait of all.
func (k *Keeper) refuseAll(waiting *entry, err error) {
	for len(waiting.waiters) > 0 {
		k.answer(waiting.waiters[0], slots.Grant{}, err)
	}
}

// decide decides for all who are ready, while the server is away.
func (k *Keeper) decide(waiting *entry, err error) {
	for _, w := range slices.Clone(waiting.waiters) {
		if w.stage == fresh {
			k.decideOne(w, err)
		}
	}
}

func (k *Keeper) decideOne(w *waiter, err error) {
	entry := w.entry
	limit := w.claim.Limit
	source := step.SourceLocal
	others := int64(0)
	n := int64(k.config.Servers)
	switch {
	case k.config.Failure == outage.FailClosed:
		k.answer(w, slots.Grant{}, unavailable(err))
		return
	case k.config.Failure == outage.FailOpen:
		k.hold(w, limit, step.SourceOpen)
		return
	case n > 1:
		limit = (limit + n - 1) / n
	case time.Since(entry.asked) < k.config.TTL:
		others = entry.others
	}
	if entry.held+others < limit+w.most-w.claim.Limit {
		k.hold(w, limit, source)
	} else {
		k.refuse(w, limit, source)
	}
}

func unavailable(reason error) error { return fmt.Errorf("%w: %w", slots.ErrUnavailable, reason) }
