// Package memory keeps the state of limiters in this process.
//
// A store is divided into shards, each with its own lock. It starts no goroutine and needs no closing: its
// calls remove what has expired.
//
// A call goes this way:
//
//  1. It reads the clock, and locks the shards of its cells in the order of their numbers (memory.go).
//  2. Each cell finds its entry in the table of its shard, and its policy's arithmetic decides (table.go). Long
//     states are beside the table (slab.go). A new key gets an entry, for which a full table drops what counts nothing,
//     grows, or evicts (evict.go).
//  3. One call in sweepEvery tidies: it drops entries of the next shard that count nothing. If the store is above its
//     bound, it evicts long states (memory.go).
package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

const (
	defaultBytes = 64 << 20
	minBytes     = 1 << 20 // many times the longest state
	shards       = 256

	// One in sweepEvery calls sweeps that many entries of a shard.
	sweepEvery = 64

	// So many shards are searched for a sample of long states, or all of them if what is
	// found is refused.
	manyShards = 16
)

// States are [store.Rates] in this process.
type States struct {
	shards [shards]shard // first, so that each begins a cache line
	start  time.Time
	shared shared
	cursor atomic.Uint32 // the shard to sweep next
}

// A shard has on its first cache line what a call about a hot key needs, because processors take it from each
// other.
type shard struct {
	mu     sync.Mutex
	newest int64 // instant of the latest call
	calls  uint32
	table  table

	receipts *store.Receipts // of the next calls
}

// New returns an empty store whose state takes at most so many bytes, or 64 MiB for 0.
func New(maxBytes int64) *States {
	if maxBytes == 0 {
		maxBytes = defaultBytes
	}
	now := time.Now()
	s := &States{start: now, shared: shared{maxBytes: maxBytes, origin: now.UnixMicro()}}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.table.shared = &s.shared
		sh.table.places = nothing[:]
	}
	return s
}

// now returns the instant. Steps of the clock of the system do not change it.
func (s *States) now() int64 {
	return s.shared.origin + int64(time.Since(s.start)/time.Microsecond)
}

// Prepare implements [store.Rates].
func (s *States) Prepare([]step.Policy) error {
	if s.shared.maxBytes < minBytes {
		return fmt.Errorf("the store's bytes are %d: they must be 0 or at least %d", s.shared.maxBytes, minBytes)
	}
	return nil
}

// Ask implements [store.Rates]. It needs no context, since it does not block.
func (s *States) Ask(_ context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	var receipt store.Receipt
	return s.Answer(mode, cells, &receipt), nil
}

// Answer is Ask without a context and an error, and it makes the receipt of a charge.
func (s *States) Answer(mode step.Mode, cells []step.Cell, receipt *store.Receipt) (allowed bool) {
	now := s.now() // before the lock, which is then held for a shorter time
	first := s.shard(&cells[0])
	several := false
	for i := 1; i < len(cells); i++ {
		several = several || s.shard(&cells[i]) != first
	}
	// Most questions lock one shard, once.
	if several {
		now = s.lockAll(cells, now)
	} else {
		if !first.mu.TryLock() {
			first.wait()
		}
		now = first.advance(now)
	}
	allowed = true
	if mode < step.Settle {
		// First all but the last are asked. Then the last takes if they admit, and the others take if it did.
		last := len(cells) - 1
		for i := range cells[:last] {
			cell := &cells[i]
			allowed = s.shard(cell).table.admits(cell, now) && allowed
		}
		for i := last; i >= 0; i-- {
			cell := &cells[i]
			allowed = s.shard(cell).table.take(cell, now, mode, allowed)
		}
	} else {
		for i := range cells {
			cell := &cells[i]
			allowed = s.shard(cell).table.correct(cell, now, mode) && allowed
		}
	}
	if allowed && mode == step.Allow {
		*receipt = first.receipt()
	}
	// Tidying locks other shards, so that comes after this one is unlocked.
	var tidy bool
	if several {
		tidy = s.unlockAll(cells, now)
	} else {
		tidy = first.tick()
		first.mu.Unlock()
	}
	if tidy {
		s.tidy(now)
	}
	return allowed
}

// wait waits for the lock of a shard that another call has. Others hold it for a tenth of the time after which
// sync.Mutex looks again.
func (sh *shard) wait() {
	for range 20 {
		for range 20 { // some nanoseconds, in which the lock's cache line is left alone
		}
		if sh.mu.TryLock() {
			return
		}
	}
	sh.mu.Lock()
}

// after returns the number of the shard that is locked after another: in their order, which prevents deadlocks. The
// number shards is before the first, and behind the last.
func after(number uint64, cells []step.Cell) (next uint64) {
	next = shards
	for i := range cells {
		candidate := cells[i].Hash % shards
		if candidate > number && candidate < next || number == shards {
			next = min(next, candidate)
		}
	}
	return next
}

// lockAll locks the shards of cells, and returns the instant of the call.
func (s *States) lockAll(cells []step.Cell, now int64) int64 {
	for n := after(shards, cells); n < shards; n = after(n, cells) {
		sh := &s.shards[n]
		if !sh.mu.TryLock() {
			sh.wait()
		}
		now = sh.advance(now)
	}
	return now
}

// unlockAll unlocks them, and reports whether it is time to tidy.
func (s *States) unlockAll(cells []step.Cell, now int64) (tidy bool) {
	for n := after(shards, cells); n < shards; n = after(n, cells) {
		sh := &s.shards[n]
		sh.advance(now)
		tidy = sh.tick() || tidy
		sh.mu.Unlock()
	}
	return tidy
}

// shard returns the shard of a cell: all policies of a limiter for one key have one.
func (s *States) shard(cell *step.Cell) *shard { return &s.shards[cell.Hash%shards] }

// advance returns the instant of a call that has the lock, and has read the clock before. Others may have
// read it later and locked sooner: it decides as of the latest of them.
func (sh *shard) advance(now int64) int64 {
	if now > sh.newest {
		sh.newest = now
	}
	return sh.newest
}

// receipt returns the receipt of the call.
func (sh *shard) receipt() store.Receipt {
	if sh.receipts == nil {
		sh.receipts = new(store.Receipts)
	}
	return sh.receipts.Receipt(sh.calls)
}

// tick counts a call and reports whether it is its turn to tidy, or it has taken memory.
func (sh *shard) tick() bool {
	sh.calls++
	if sh.calls%store.Many == 0 {
		sh.receipts = nil // all of them are given out
	}
	if sh.table.grown || sh.calls%sweepEvery == 0 {
		sh.table.grown = false
		return true
	}
	return false
}

// tidy removes what should not be kept.
func (s *States) tidy(now int64) {
	s.sweep(now)
	if s.shared.overrun() {
		s.reclaim(now)
	}
}

// Use returns the sums over all shards, which it locks one at a time.
func (s *States) Use() (use store.MemoryUse) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		use.Keys += int(sh.table.count)
		sh.mu.Unlock()
	}
	use.Bytes = s.shared.used()
	use.Evicted = s.shared.evicted.Load()
	return use
}

// sweep drops fresh entries from the next shard, so that all of them shrink as long as
// any is used.
func (s *States) sweep(now int64) {
	sh := &s.shards[s.cursor.Add(1)%shards]
	if !sh.mu.TryLock() {
		return // it is busy: leave it to another call
	}
	defer sh.mu.Unlock()
	sh.table.sweep(now, sweepEvery)
}

// reclaim evicts long states, wherever they are, until the bound is kept: the call that took memory makes
// room for it. A pass that finds none is followed by another, which looks further on.
func (s *States) reclaim(now int64) {
	for s.shared.overrun() {
		found := newSample()
		first := found.salt
		distance := found.salt>>32 | 1 // odd, so that each shard is met once
		for i := uint64(0); i < manyShards || i < shards && found.open.count == 0; i++ {
			sh := &s.shards[(first+i*distance)%shards]
			sh.mu.Lock()
			next := sh.table.choose(&found, sh, now, int(sh.table.nextPlace), maxLooks, longEntry)
			sh.table.nextPlace = uint32(next)
			sh.mu.Unlock()
			if found.size() >= sampleSize {
				break
			}
		}
		if found.size() > 0 {
			chosen := found.choice()
			chosen.shard.mu.Lock()
			chosen.shard.table.evict(chosen, now)
			chosen.shard.mu.Unlock()
		}
	}
}
