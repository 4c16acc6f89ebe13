package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"time"
)

// A process is this process as a member of the fleet. Its states, and what changes them:
//
//	state   | meaning                  | acquire    | live      | forgotten  | dead             | absent     | silence
//	--------|--------------------------|------------|-----------|------------|------------------|------------|--------
//	outside | holds nothing, no beats  | -> joining |           |            |                  |            |
//	joining | is not registered        |            | -> member | -> member  | -> joining       |            | joining
//	member  | a beat came within a TTL |            | member    | -> joining | Lost, -> joining | -> joining | member
//	silent  | none came for longer     |            | -> member | -> joining | Lost, -> joining | -> joining | silent
//
// Live, dead and absent are answers to beats. Forgotten is live, too: the server has lost something, or may have found
// a silent process dead and forgotten that. Each way to joining, also from a statement that shows a loss, takes a new
// incarnation, under which everything is stated again; what the server has under the old one dies with it. Nothing was
// stated yet under one that is only being registered. An answer to a beat of an earlier one says nothing. Time makes a
// member silent. A process without entries goes outside, unless it beats for others: the fleet's time passes only with
// beats, so who was refused by slots of others beats until these are known to be alive, or are dead. Only a member
// states and acquires slots. A joining or silent process whose last beat failed is away: the Failure decides.
type process struct {
	id         string // the incarnation
	registered bool
	lost       chan struct{} // closed when the process was taken for dead
	ackedAt    time.Time     // when the last beat that was answered was sent
	failure    error         // of the last beat; nil if it was answered
	beating    bool
	beats      int64           // that were answered
	clock      int64           // the fleet's time
	othersEnd  int64           // the fleet's time until which it beats for others, though it has no entries
	histories  string          // Beat.Histories
	dead       map[string]bool // incarnations
	deadUntil  int64           // the fleet's time up to which these are known; 0: all are asked for
	seen       map[string]bool // incarnations that others may not know
	former     []string        // the last incarnations of this process
}

// newID returns the name of an incarnation: random, so that no two processes have the same.
func newID() string { return rand.Text()[:16] }

// member reports whether slots may be acquired.
func (k *Keeper) member() bool {
	return k.process.registered && time.Since(k.process.ackedAt) <= k.config.TTL
}

// startBeats makes sure that beats are sent.
func (k *Keeper) startBeats() {
	if !k.process.beating {
		k.process.beating = true
		go k.beatOn()
	}
}

// beatNow has the next beat sent at once.
func (k *Keeper) beatNow() {
	select {
	case k.hurry <- struct{}{}:
	default: // it is
	}
}

// beatOn sends beats until there is nothing to keep.
func (k *Keeper) beatOn() {
	k.mu.Lock()
	defer k.mu.Unlock()
	process := &k.process
	for {
		beat := k.beat()
		k.mu.Unlock()
		sent := time.Now()
		var err error
		// It has the time of a retry at least, and that of a beat at most: a silent server must not keep the next one
		// waiting.
		timeout := min(max(k.config.Timeout, k.config.retry()), k.config.TTL/beatsInTTL)
		suspended := timed(timeout, func(ctx context.Context) { err = k.transport.Beat(ctx, beat) })
		k.mu.Lock()
		// The client was closed for good. The process stays "beating", so nobody starts beats that would fail again.
		if errors.Is(err, ErrGone) {
			k.unanswered(err)
			return
		}
		// If this process was suspended, a beat without an answer says nothing of the server: the next one is sent at
		// once.
		var pause time.Duration
		switch {
		case err == nil:
			pause = k.applyBeat(beat, sent)
		case !suspended:
			pause = k.config.retry()
			k.unanswered(err)
		}
		k.tell()
		// In an outage it goes on, also if nothing is held: only a beat finds out that the server is back.
		isIdle := len(k.entries) == 0 && process.clock >= process.othersEnd
		if isIdle && process.failure == nil {
			k.leave()
			return
		}
		k.mu.Unlock()
		select {
		case <-k.hurry:
		case <-time.After(time.Until(sent.Add(pause))):
		}
		k.mu.Lock()
	}
}

// beat returns the next beat. Its step is a tenth longer than the pause between two, so that the fleet's time keeps up
// with that of clocks even if some beats are late.
func (k *Keeper) beat() *Beat {
	next := &Beat{
		ID: k.process.id, Register: !k.process.registered,
		TTL: k.config.TTL, Step: k.config.TTL / beatsInTTL * 11 / 10, Known: k.process.deadUntil,
	}
	// These have fields in hashes. The server registers those that it does not know, so that they die unless they beat.
	for id := range k.process.seen {
		next.Seen = append(next.Seen, id)
	}
	k.process.seen = nil
	return next
}

// leave goes outside. The incarnation dies of itself. Another one is not taken for dead because nothing was held.
func (k *Keeper) leave() {
	k.process = process{id: newID(), lost: k.process.lost}
	// A shard that is stalled waits for a beat, and there is none any more. The next call shows whether it answers.
	for i := range k.shards {
		k.shards[i].failed = 0
		k.shards[i].reason = nil
	}
	k.tell()
}

// BeatForOthers has this process beat until those that have stated slots until now have beaten again, or are dead.
func (k *Keeper) BeatForOthers() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beatForOthers()
}

func (k *Keeper) beatForOthers() {
	k.process.othersEnd = math.MaxInt64 // the next beat that is answered says what the time is
	k.startBeats()
}

// tell has Config.Changed told that the server is away or back, by a goroutine of its own: no beat waits for it.
func (k *Keeper) tell() {
	isNews := (k.reason() == nil) != (k.lastReason == nil)
	if k.config.Changed == nil || k.telling || !isNews {
		return
	}
	k.telling = true
	go func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for reason := k.reason(); (reason == nil) != (k.lastReason == nil); reason = k.reason() {
			k.lastReason = reason
			k.mu.Unlock()
			k.config.Changed(reason)
			k.mu.Lock()
		}
		k.telling = false
	}()
}

// unanswered notes that a beat failed. Who waits for one is told.
func (k *Keeper) unanswered(err error) {
	k.process.failure = err
	for _, entry := range k.entries {
		k.attend(entry)
	}
}

// applyBeat applies the reply of a beat, and returns the time from that beat to the next.
func (k *Keeper) applyBeat(b *Beat, sent time.Time) time.Duration {
	process := &k.process
	silent := process.registered && sent.Sub(process.ackedAt) > k.config.TTL
	// Its clock goes back if the server has lost something. Others may have taken a silent process for dead, and a
	// server that was replaced meanwhile would not know that.
	areOthers := b.Histories != process.histories && b.Histories != "" && process.histories != ""
	forgotten := b.Clock < process.clock || areOthers || silent && b.Histories == ""
	process.failure = nil
	process.ackedAt = sent
	process.clock = b.Clock
	process.othersEnd = min(process.othersEnd, b.Clock+(b.TTL+b.Step).Microseconds()) // also if the clock has gone back
	process.beats++
	if b.Histories != "" {
		process.histories = b.Histories
	}
	k.bury(b)
	switch {
	case b.State != "dead" && b.ID != process.id: // a statement has shown a loss meanwhile
		process.deadUntil = 0
		return 0 // the next beat registers
	case b.State != "live", forgotten && !b.Register: // nothing was stated under an incarnation that is new
		k.rejoin(b.State == "dead")
	default:
		process.registered = true
		k.sweep()
	}
	return k.config.TTL / beatsInTTL
}

// bury notes who is dead. The dead stay dead, so only those are asked for that are new. All are asked for after a loss,
// and once in a sweep, which also forgets those that the server has forgotten.
func (k *Keeper) bury(b *Beat) {
	process := &k.process
	if b.Known == 0 {
		process.dead = make(map[string]bool, len(b.Dead))
	}
	for _, id := range b.Dead {
		process.dead[id] = true
	}
	process.deadUntil = b.Clock
	if process.beats%sweepBeats == 0 {
		process.deadUntil = 0
	}
}

// rejoin takes a new incarnation. The old one is not beaten any more, and dies.
func (k *Keeper) rejoin(lost bool) {
	// What was stated under the old incarnation is stated under the new one, and the old fields are deleted with that.
	process := &k.process
	var held int64
	for _, entry := range k.entries {
		if entry.over() { // what a server brings back of it ends with the old incarnation
			entry.phase = idle
			delete(k.entries, entry.entryKey)
			continue
		}
		held += entry.held
		entry.formerIDs = append(entry.formerIDs, process.id)
		entry.isAcked = false
		entry.uncertainAt = time.Time{} // nothing of the new incarnation is on its way
	}
	// Only the answer "dead" is Lost: others count without these slots by now. Any other loss is mended by stating them
	// anew.
	if lost && held > 0 {
		close(process.lost)
		process.lost = make(chan struct{})
		if k.config.Lost != nil {
			go k.config.Lost(held)
		}
	}
	if k.config.Restated != nil {
		go k.config.Restated(len(k.entries))
	}
	// Who answers a notice names these, too: others may have read an old field, and wait for the process that had it.
	process.former = append(process.former, process.id)
	process.former = process.former[max(len(process.former)-maxFormer, 0):]
	process.id = newID()
	process.registered = false
	process.deadUntil = 0
	k.beatNow()
}

// sweep states, after each beat, what failed, what has changed two beats ago, one key of each shard, and a sixtieth of
// all. So a loss is found and mended, fields of the dead are deleted, and hashes live on. It forgets what is over.
func (k *Keeper) sweep() {
	for i := range k.shards {
		// One call may now show whether the shard answers: if that fails, it is stalled again.
		k.shards[i].failed = min(k.shards[i].failed, maxFailed-1)
	}
	probed := make(map[*shard]bool)
	for _, entry := range k.entries {
		// Maps are walked in another order each time, so it is another key that each beat finds first in a shard.
		age := k.process.beats - entry.changeBeat
		switch {
		case k.forget(entry, age):
		case entry.due(), age == confirmBeats, k.process.beats%sweepBeats == entry.sweepBeat,
			entry.leftover(k), !probed[entry.shard]:
			probed[entry.shard] = true
			k.queue(entry)
		}
	}
	for i := range k.shards {
		sh := &k.shards[i]
		if !probed[sh] { // no key shows whether it answers
			sh.failed = 0
			sh.reason = nil
		}
	}
}
