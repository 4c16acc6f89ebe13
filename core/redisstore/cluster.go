package redisstore

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/core"
)

// hashSlots is the number of hash slots of a cluster.
const hashSlots = 16384

// hashSlotOf returns the hash slot of a name that ends with its hash tag: CRC-16/XMODEM
// of what is in the braces, as in the Redis Cluster specification. What the namer puts
// there is not empty and has no brace.
func hashSlotOf(tag []byte) int {
	tag = tag[bytes.IndexByte(tag, '{')+1 : len(tag)-1]
	var crc uint16
	for _, b := range tag {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % hashSlots
}

// inOneHashSlot reports whether the keys of all charges are in one hash slot.
func (s *Store) inOneHashSlot(cs []core.Charge) bool {
	first := hashSlotOf(s.names.tag(nil, cs[0].Key))
	for _, c := range cs[1:] {
		if hashSlotOf(s.names.tag(nil, c.Key)) != first {
			return false
		}
	}
	return true
}

// decideInTurn makes charges of different hash slots one after the other: first those for
// which there is the least room, as they are the likeliest to be refused. If one is
// refused or fails, the earlier ones are given back. If it is refused, the others still
// count the attempt where their policies say so, and the result has their readings.
func (s *Store) decideInTurn(ctx context.Context, cs []core.Charge) (core.Result, error) {
	if err := ctx.Err(); err != nil {
		return core.Result{}, err
	}
	deadline := s.deadline(ctx)
	// From here on the caller's context does not count: a caller that gives up in
	// between would leave charges although a later key refuses.
	own := context.WithoutCancel(ctx)
	results := make([]core.Result, len(cs))
	made := make([]core.Settlement, 0, len(cs)) // what to give back
	for _, i := range leastRoomFirst(cs) {
		// Until the decision is made, no refusal that these charges cause may be
		// cached: they may be given back.
		s.cache.invalidate(cs[i : i+1])
		r, err := s.decideOne(own, cs[i], modeAsk, deadline)
		if err != nil {
			s.takeBack(own, made, deadline)
			return s.fallback(ctx, cs, false, err)
		}
		if results[i] = r; !r.Allowed {
			s.takeBack(own, made, deadline)
			s.deny(own, cs, i, results, deadline)
			break
		}
		made = append(made, core.Settlement{Charge: cs[i], At: r.At, Source: core.SourceStore})
	}
	all := core.Result{At: math.MaxInt64, Allowed: len(made) == len(cs), Source: core.SourceStore}
	for _, r := range results {
		// The masters' clocks may differ. With the earliest time, a refund gives back
		// least.
		all.At = min(all.At, r.At)
		for j := range r.Len() {
			all.Add(r.Reading(j))
		}
	}
	s.decided(cs, &all, nil)
	return all, nil
}

// leastRoomFirst returns the indices of charges by how often they could be made.
func leastRoomFirst(cs []core.Charge) []int {
	order := make([]int, len(cs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(most(cs[i].Limiter)/cs[i].N, most(cs[j].Limiter)/cs[j].N)
	})
	return order
}

// decideOne decides one charge.
func (s *Store) decideOne(ctx context.Context, c core.Charge, mode byte, deadline time.Time) (r core.Result, err error) {
	if !time.Now().Before(deadline) {
		return r, errDeadline
	}
	q := s.pools.question()
	q.mode, q.one[0], q.deadline = mode, c, deadline
	q.charges = q.one[:]
	if err := s.submit(ctx, q); err != nil {
		return r, err
	}
	r = q.result
	s.pools.free(q)
	return r, nil
}

// deny counts a refused attempt with the limiters of all charges but the i-th. If one
// does not answer, its readings are those of unused policies: the refusal stands.
func (s *Store) deny(ctx context.Context, cs []core.Charge, i int, results []core.Result, deadline time.Time) {
	for j := range cs {
		if j == i {
			continue
		}
		r, err := s.decideOne(ctx, cs[j], modeDeny, deadline)
		if err != nil {
			r = admitAll(cs[j : j+1])
			r.At = results[i].At
		}
		results[j] = r
	}
}

// takeBack gives charges back, once. It waits for that until the deadline, and no longer;
// the settlement itself may take longer. What cannot be given back expires.
func (s *Store) takeBack(ctx context.Context, made []core.Settlement, deadline time.Time) {
	if len(made) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Settle(ctx, made)
	}()
	timer := s.pools.timer(time.Until(deadline))
	defer s.pools.freeTimer(timer)
	select {
	case <-done:
	case <-timer.C:
	}
}
