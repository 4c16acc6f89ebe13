package redisstore

import (
	"bytes"
	"context"
	"math"
	"time"

	"github.com/headgate/headgate/core"
)

// slots is the number of hash slots of a cluster.
const slots = 16384

// slotOf returns the slot of a name that ends with its hash tag: CRC-16/XMODEM of
// what is in the braces, as the Redis Cluster specification has it. What the namer
// puts there is never empty and holds no brace.
func slotOf(tag []byte) int {
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
	return int(crc) % slots
}

// together reports whether the keys of all charges are in one slot.
func (s *Store) together(cs []core.Charge) bool {
	first := slotOf(s.names.tag(nil, cs[0].Key))
	for _, c := range cs[1:] {
		if slotOf(s.names.tag(nil, c.Key)) != first {
			return false
		}
	}
	return true
}

// inTurn makes charges of different slots one after the other. If one is refused, or
// fails, the earlier ones are given back; if it is refused, the others still count the
// attempt where a policy says so, and tell what they have left.
func (s *Store) inTurn(ctx context.Context, cs []core.Charge) (core.Result, error) {
	if err := ctx.Err(); err != nil {
		return core.Result{}, err
	}
	deadline := time.Now().Add(s.config.Timeout)
	// From here on it is not the asker's to end: who hangs up in the middle would
	// leave charges that a later key refuses.
	own := context.WithoutCancel(ctx)
	results := make([]core.Result, len(cs))
	made := make([]core.Settlement, 0, len(cs)) // what to give back
	for i := range cs {
		// While the question is open, others must not remember a refusal that
		// its charges cause: they may be given back.
		s.memory.forget(cs[i : i+1])
		r, err := s.one(own, cs[i], modeAsk, deadline)
		if err != nil {
			s.takeBack(own, made, deadline)
			return s.without(ctx, cs, false, err)
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
		// The masters' clocks may differ. The earliest instant gives back least.
		all.At = min(all.At, r.At)
		for j := range r.Len() {
			all.Add(r.Reading(j))
		}
	}
	s.decided(cs, &all)
	return all, nil
}

// one asks for one charge.
func (s *Store) one(ctx context.Context, c core.Charge, mode byte, deadline time.Time) (r core.Result, err error) {
	if !time.Now().Before(deadline) {
		return r, errDeadline
	}
	q := s.pools.question()
	q.mode, q.one[0], q.deadline = mode, c, deadline
	q.charges = q.one[:]
	if err := s.travel(ctx, q); err != nil {
		return r, err
	}
	r = q.result
	s.pools.free(q)
	return r, nil
}

// deny tells the limiters of all charges but the i-th that this one was refused. What
// one of them has left is not known if it does not answer: the refusal stands.
func (s *Store) deny(ctx context.Context, cs []core.Charge, i int, results []core.Result, deadline time.Time) {
	for j := range cs {
		if j == i {
			continue
		}
		r, err := s.one(ctx, cs[j], modeDeny, deadline)
		if err != nil {
			r = admitAll(cs[j : j+1])
			r.At = results[i].At
		}
		results[j] = r
	}
}

// takeBack gives charges back, once, whatever becomes of the request. It waits for
// that no longer than the question may take. What fails to be given back expires.
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
