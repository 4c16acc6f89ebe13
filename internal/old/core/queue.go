package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// queuePoll is after which time at most the first in a line asks again: slots may become free
// without this process. After that time, too, who waits looks whether a limit was raised.
const queuePoll = 200 * time.Millisecond

// AcquireWait is Acquire that waits until a slot is free, but for no longer than the context. It
// waits only if fewer than that many callers in this process wait for the key. Otherwise, or when
// the context ends, the error is [ErrFull], as a [FullError]. It also wraps the cause of the
// context if that ended.
//
// Within a process, callers that wait for the same key are served in the order in which they came.
// There is one exception: none waits behind a caller with a smaller limit if there is room under
// its own. They are woken when a slot is released that these Slots, or others that With made of
// them, have acquired. They find other changes within 200 ms, and as long as the store takes to
// answer. Such changes are releases by other processes or by slots that were made separately, and a
// raised limit. The same holds for callers that were refused because another call held slots for a
// moment (see [AcquireAll]). Calls that do not wait, such as Acquire, may be faster.
//
// Processes that share a store divide the slots that calls without waiting leave. Each process with
// waiting callers gets an equal share, however many callers wait in it. A process that can use less
// leaves the rest to the others. Slots that do not divide evenly go to one process after the other.
// So a slot may be kept for a caller of another process, for half a second at most.
func (s *Slots) AcquireWait(ctx context.Context, key string, waiters int) (*Slot, error) {
	return AcquireAllWait(ctx, Claim{Slots: s, Key: key, Queue: waiters})
}

// AcquireAllWait is [AcquireAll] that waits like [Slots.AcquireWait]. It holds nothing
// meanwhile. A caller stands in the line of one claim that is full, and moves to another line if
// then another claim is. Each line has places for as many as the [Claim].Queue of the caller says.
//
// A key with a smaller limit cannot fill the line of a larger one, for example a user the line of
// the service. Its callers in that line, with its slots from calls like this one, are at most its
// own limit. Its other callers stand in the line of their own key. So no user fills the line of
// all. If two limits are equal, the claim that comes first counts as the smaller.
func AcquireAllWait(ctx context.Context, claims ...Claim) (*Slot, error) {
	if ctx == nil {
		return nil, errContext
	}
	if err := checkTogether("claim", claims, maxClaims); err != nil {
		return nil, err
	}
	w := newClaimant(claims)
	start := beginAll(w.claims)
	slot, err := w.acquire(ctx)
	acquired(ctx, start, w.claims, slot, err)
	return slot, err
}

// arrivals numbers those who may wait.
var arrivals atomic.Int64

// A queue is who waits for slots of one name, and who might have to.
type queue struct {
	waiting atomic.Int64

	mu    sync.Mutex
	lines map[string]*line // by key
}

// A line is who waits for slots of a key, in the order in which they came. Only the first
// asks the store, and after it those for whom its refusal says nothing.
//
// Who waits for several keys, or was granted slots of several, has a ticket of each whose limit is
// smaller than the largest, or than that of the line in which it stands.
type line struct {
	key     string
	all     []*claimant
	tickets int64
}

// line returns the line of a key, which may be new. The queue is locked.
func (q *queue) line(key string) *line {
	l := q.lines[key]
	if l == nil {
		if q.lines == nil {
			q.lines = make(map[string]*line)
		}
		l = &line{key: key}
		q.lines[key] = l
	}
	return l
}

// changed wakes the first of a line, or forgets a line that is not needed. The queue is locked.
func (q *queue) changed(l *line) {
	switch {
	case len(l.all) > 0:
		l.all[0].wake()
	case l.tickets == 0:
		delete(q.lines, l.key)
	}
}

// A claimant stands in one line at a time. Its queue guards what others look at meanwhile: the
// claims, and the cause.
type claimant struct {
	number int64         // the smaller came first
	turn   chan struct{} // has room for one; to ask again

	claims  []Claim
	asked   []store.Claim
	order   []int // of the claims: the smallest limit first
	tickets uint8 // a bit for each claim

	queue *queue
	line  *line
	full  cause // why it waits
	here  cause // why it waits in this line: the same, or there was no ticket of the key
	held  int64 // of what is full, as far as that is known
}

// A cause is why a claimant waits: the first so many slots, or tickets, of the key are taken.
type cause struct {
	queue *queue
	key   string
	most  int64
}

func newClaimant(claims []Claim) *claimant {
	w := &claimant{number: arrivals.Add(1), turn: make(chan struct{}, 1), claims: claims, asked: ask(claims)}
	for i := range claims {
		w.order = append(w.order, i)
	}
	slices.SortStableFunc(w.order, func(i, j int) int { return cmp.Compare(w.asked[i].Limit, w.asked[j].Limit) })
	return w
}

// answers returns the index of the claim to which the cause applies, too, or -1.
func (c *cause) answers(w *claimant) int {
	for i := range w.claims {
		if w.of(i) == c.queue && w.asked[i].Key == c.key && w.asked[i].Most() <= c.most {
			return i
		}
	}
	return -1
}

// blocks returns the index of the claim for which another waits for what w waits for, or -1.
func (w *claimant) blocks(v *claimant) int {
	if w.here != w.full && w.here.answers(v) < 0 {
		return -1
	}
	return w.full.answers(v)
}

// of returns the queue of a claim.
func (w *claimant) of(i int) *queue { return &w.claims[i].Slots.state.queue }

func (w *claimant) acquire(ctx context.Context) (*Slot, error) {
	defer w.giveUp()
	for waits := slices.ContainsFunc(w.claims, func(c Claim) bool { return c.Queue > 0 }); ; {
		if anyClosed(w.claims) {
			return nil, ErrClosed
		}
		full := w.ahead()
		asks := full == nil
		if asks {
			slot, err := w.ask(ctx, waits)
			if !errors.As(err, &full) {
				return slot, err
			}
		}
		if !w.stand(full) {
			if asks && waits {
				waits = false // what is kept for those who wait in other processes, it may have
				continue
			}
			return nil, full
		}
		waits = true
		if err := w.wait(ctx, full.again); err != nil {
			return nil, fmt.Errorf("headgate: no slot while the caller waited: %w: %w", err, full)
		}
	}
}

// ahead returns the refusal of one who came before and waits for what the claimant wants, too, or
// nil. Those who came before come first.
func (w *claimant) ahead() *FullError {
	for i := range w.claims {
		q := w.of(i)
		if q.waiting.Load() == 0 {
			continue
		}
		q.mu.Lock()
		var full *FullError
		if l := q.lines[w.claims[i].Key]; l != nil {
			full = l.ahead(w)
		}
		q.mu.Unlock()
		if full != nil {
			return full
		}
	}
	return nil
}

// ahead is claimant.ahead for one line. Its queue is locked.
func (l *line) ahead(w *claimant) *FullError {
	for _, v := range l.all {
		if v.number >= w.number {
			break
		}
		// Who stands where it has to does not wait for one who has no ticket for that.
		if l != w.line && w.line != nil && w.queue == v.full.queue && w.line.key == v.full.key {
			continue
		}
		if i := v.blocks(w); i >= 0 {
			limit := w.asked[i].Limit
			return &FullError{Occupancy{w.claims[i].Slots.name, limit, max(v.held, limit)}, i, SourceCache, 0}
		}
	}
	return nil
}

// ask asks the stores, as one that waits or as one that does not.
func (w *claimant) ask(ctx context.Context, waits bool) (*Slot, error) {
	asked := slices.Clone(w.asked) // which others look at
	for i := range asked {
		if waits {
			asked[i].Waiting = w.waiting(i)
		}
	}
	slot, err := acquireAll(ctx, w.claims, asked)
	if err != nil || len(w.claims) == 1 {
		return slot, err
	}
	// The slot has tickets from now on, whether there are any or not.
	for _, i := range w.order[:len(w.order)-1] {
		if w.tickets&(1<<i) == 0 {
			w.ticket(i, NoLimit)
		}
	}
	slot.tickets, w.tickets = w.tickets, 0
	return slot, nil
}

// waiting returns how many wait for what is claimed, with this one.
func (w *claimant) waiting(i int) int {
	q := w.of(i)
	if q.waiting.Load() == 0 {
		return 1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[w.claims[i].Key]
	switch l {
	case nil:
		return 1
	case w.line:
		return len(l.all)
	default:
		return len(l.all) + 1
	}
}

// stand makes the claimant stand in the line of the claim that is full, or in that of one with a
// smaller limit of which there is no ticket. It reports whether there was a place in that line.
func (w *claimant) stand(full *FullError) bool {
	target := full.Claim
	for _, i := range w.order {
		if i == full.Claim {
			break
		}
		if w.tickets&(1<<i) == 0 && !w.ticket(i, w.asked[i].Limit) {
			target = i
			break
		}
	}
	for _, i := range w.order[slices.Index(w.order, target):] {
		w.giveBack(i)
	}
	because := func(i int) cause { return cause{w.of(i), w.claims[i].Key, w.asked[i].Most()} }
	q, key := w.of(target), w.claims[target].Key
	if w.line != nil && (w.queue != q || w.line.key != key) {
		w.leave()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.full, w.here, w.held = because(full.Claim), because(target), full.Held
	l := q.line(key)
	if w.line == l {
		l.pass(w)
		return true
	}
	if len(l.all) >= w.claims[target].Queue {
		q.changed(l)
		return false
	}
	place := len(l.all)
	for place > 0 && l.all[place-1].number > w.number { // it comes from another line
		place--
	}
	l.all = slices.Insert(l.all, place, w)
	w.queue, w.line = q, l
	q.waiting.Add(1)
	if l.ahead(w) == nil {
		w.wake() // something may have become free since the refusal, before it stood here
	}
	return true
}

// ticket takes a ticket of a claim, unless there are so many, or one who came before waits for
// the same.
func (w *claimant) ticket(i int, most int64) bool {
	q := w.of(i)
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.line(w.claims[i].Key)
	if l.tickets >= most || most < NoLimit && l.ahead(w) != nil {
		return false
	}
	l.tickets++
	w.tickets |= 1 << i
	return true
}

// giveBack gives the ticket of a claim back, if there is one.
func (w *claimant) giveBack(i int) {
	if w.tickets&(1<<i) != 0 {
		w.tickets &^= 1 << i
		w.of(i).freed(w.claims[i].Key, true)
	}
}

// giveUp leaves the line, and gives the tickets back.
func (w *claimant) giveUp() {
	w.leave()
	for i := range w.claims {
		w.giveBack(i)
	}
}

// leave leaves the line. The next is the first then, and asks.
func (w *claimant) leave() {
	if w.line == nil {
		return
	}
	q, l := w.queue, w.line
	w.queue, w.line = nil, nil
	q.mu.Lock()
	defer q.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(v *claimant) bool { return v == w })
	select {
	case <-w.turn: // it was that of this line
	default:
	}
	q.waiting.Add(-1)
	q.changed(l)
}

// wait waits until the claimant is to ask again, or until the context ends, and returns its
// cause. The pause until it asks again is that of the store, or 0.
func (w *claimant) wait(ctx context.Context, again time.Duration) error {
	if again == 0 {
		again = queuePoll
	}
	pause := func() time.Duration { return again - rand.N(again/5) }
	poll := time.NewTimer(pause())
	defer poll.Stop()
	for {
		select {
		case <-w.turn:
		case <-poll.C:
			if !w.isFirst() && !anyClosed(w.claims) {
				poll.Reset(pause())
				continue // wake says when it is
			}
		case <-ctx.Done():
		}
		return context.Cause(ctx) // also if it ended when the turn came
	}
}

func (w *claimant) isFirst() bool {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	return w.line.all[0] == w
}

func (w *claimant) wake() {
	select {
	case w.turn <- struct{}{}:
	default: // it is going to ask anyway
	}
}

// pass wakes the next after one who was refused for whom that refusal says nothing: who has a
// larger limit, say. The queue is locked.
func (l *line) pass(w *claimant) {
	for _, v := range l.all[slices.Index(l.all, w)+1:] {
		if w.blocks(v) < 0 {
			v.wake()
			return
		}
	}
}

// freed is called when a slot of the key was given back, or a ticket.
func (q *queue) freed(key string, ticket bool) {
	if !ticket && q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[key]
	if l == nil {
		return
	}
	if ticket {
		l.tickets--
	}
	q.changed(l)
}

// closed is called when the slots were closed: everybody asks, and is told.
func (q *queue) closed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lines {
		for _, w := range l.all {
			w.wake()
		}
	}
}
