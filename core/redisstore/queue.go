package redisstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxInFlight is how many calls of a queue may be in flight at once: two, so that
	// Redis computes one while the next is on the wire.
	maxInFlight = 2

	// maxCells and maxWords, which is also in prelude.lua, bound the time for which a call
	// keeps Redis from all others: to about 1 ms. A question of more words is sent alone;
	// the largest, a charge of 2^20 units, takes Redis 160 ms.
	maxCells = 128
	maxWords = 8192

	// maxWaiting bounds the questions that wait for a call.
	maxWaiting = 1 << 16
)

var (
	errDeadline = errors.New("headgate: Redis did not answer in time")
	errHurried  = errors.New("headgate: the caller's deadline came before the answer")
	errBusy     = errors.New("headgate: too many decisions wait for Redis")
)

// A sendQueue merges questions: those that arrive while its calls are in flight wait,
// and are sent together in the next call.
type sendQueue struct {
	breaker  breaker
	mu       sync.Mutex
	inFlight int
	waiting  []*question
}

// sendQueues holds one queue for each server, so that a master of a Cluster that is slow
// or unavailable delays only its own keys.
type sendQueues struct {
	cluster *redis.ClusterClient // nil: there is one server
	known   atomic.Bool          // the client has loaded its table of masters

	// first is the queue of the only server, and of all masters until the table is
	// loaded.
	first sendQueue

	mu        sync.Mutex // held to replace byAddress
	byAddress atomic.Pointer[map[string]*sendQueue]
}

// of returns the queue of the server to which the client sends the commands of a key. It
// makes no call.
func (qs *sendQueues) of(name string) *sendQueue {
	if qs.cluster == nil || !qs.known.Load() {
		return &qs.first
	}
	// Once the table is loaded, this only reads it, even while it is reloaded.
	master, err := qs.cluster.MasterForKey(context.Background(), name)
	if err != nil {
		return &qs.first
	}
	address := master.Options().Addr
	if queue := qs.masters()[address]; queue != nil {
		return queue
	}
	return qs.add(address)
}

func (qs *sendQueues) masters() map[string]*sendQueue {
	if m := qs.byAddress.Load(); m != nil {
		return *m
	}
	return nil
}

func (qs *sendQueues) add(address string) *sendQueue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	old := qs.masters()
	if queue := old[address]; queue != nil {
		return queue
	}
	grown := make(map[string]*sendQueue, len(old)+1)
	maps.Copy(grown, old)
	grown[address] = new(sendQueue)
	qs.byAddress.Store(&grown)
	return grown[address]
}

// learn notes that the client has loaded its table: it has sent a command.
func (qs *sendQueues) learn() {
	if qs.cluster != nil && !qs.known.Load() {
		qs.known.Store(true)
	}
}

func (qs *sendQueues) all() []*sendQueue {
	return slices.AppendSeq([]*sendQueue{&qs.first}, maps.Values(qs.masters()))
}

// submit sends the question and waits for the answer, at most until its deadline or
// the end of the context. After an error the question must not be used again, as it may
// still be in flight.
func (s *Store) submit(ctx context.Context, q *question) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	queue := &s.queues.first
	if s.cluster {
		tag := s.names.tag(make([]byte, 0, 64), q.charges[0].Key)
		q.hashSlot = hashSlotOf(tag)
		queue = s.queues.of(string(tag))
	}
	if !queue.breaker.allows() {
		return errUnavailable
	}
	queue.mu.Lock()
	switch {
	case s.config.Unmerged || queue.inFlight < maxInFlight && len(queue.waiting) == 0:
		queue.inFlight++
		queue.mu.Unlock()
		q.progress.Store(sent)
		q.self[0] = q
		defer s.callEnded(queue) // also if a hook panics
		s.sendBatch(context.WithoutCancel(ctx), queue, q.self[:], q.deadline)
		<-q.done
		return q.err
	case len(queue.waiting) == maxWaiting:
		queue.mu.Unlock()
		return errBusy
	default:
		q.detach()
		queue.waiting = append(queue.waiting, q)
		queue.mu.Unlock()
		return s.await(ctx, q)
	}
}

// await waits for a question that another goroutine sends.
func (s *Store) await(ctx context.Context, q *question) error {
	timer := s.pools.timer(time.Until(q.deadline))
	defer s.pools.freeTimer(timer)
	var err error
	select {
	case <-q.done:
		return q.err
	case <-timer.C:
		err = errDeadline
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.progress.Store(dropped) // even if it was sent: then it is not put off
	return err
}

// putOff lets questions that were too much work for their call wait again, ahead of all
// others: now it is known how much they are.
func (queue *sendQueue) putOff(batch []*question) {
	queue.mu.Lock()
	defer queue.mu.Unlock()
	var again []*question
	for _, q := range batch {
		q.err = nil
		if q.progress.CompareAndSwap(sent, waiting) {
			again = append(again, q)
		}
	}
	queue.waiting = append(again, queue.waiting...)
}

// callEnded sends the questions that wait by now, in a goroutine, so that the caller
// has its answer before it works for others.
func (s *Store) callEnded(queue *sendQueue) {
	if batch := queue.nextBatch(); len(batch) > 0 {
		go s.drain(queue, batch)
	}
}

// drain sends batches for as long as questions wait.
func (s *Store) drain(queue *sendQueue, batch []*question) {
	for ; len(batch) > 0; batch = queue.nextBatch() {
		// The questions keep their own deadlines.
		s.sendBatch(context.Background(), queue, batch, time.Now().Add(s.config.Timeout))
	}
}

// nextBatch takes the questions of the next call out of the queue. If there are none,
// the caller's call no longer counts as in flight.
func (queue *sendQueue) nextBatch() []*question {
	queue.mu.Lock()
	defer queue.mu.Unlock()
	var batch []*question
	for cells, words := 0, 0; len(queue.waiting) > 0; queue.waiting = queue.waiting[1:] {
		q := queue.waiting[0]
		if q.progress.Load() == dropped {
			continue
		}
		cells, words = cells+q.parts(), words+q.words()
		if len(batch) > 0 && (cells > maxCells || words > maxWords) {
			return batch
		}
		if q.progress.CompareAndSwap(waiting, sent) {
			batch = append(batch, q)
		}
	}
	queue.waiting = nil
	if len(batch) == 0 {
		queue.inFlight--
	}
	return batch
}
