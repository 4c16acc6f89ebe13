package redisstore

import (
	"bytes"
	"context"
	"errors"
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

// inTurn makes charges of different slots one after the other. A refusal, or an
// error, gives the earlier ones back; the later ones are then only looked at.
func (s *Store) inTurn(ctx context.Context, cs []core.Charge) (core.Result, error) {
	deadline := time.Now().Add(s.config.Timeout)
	all := core.Result{At: math.MaxInt64, Allowed: true, Source: core.SourceStore}
	for i := range cs {
		// While the question is open, others must not remember a refusal that
		// its charges cause: they may be given back.
		s.memory.forget(cs[i : i+1])
		q := s.pools.question()
		q.one[0] = cs[i]
		q.charges = q.one[:]
		q.deadline = deadline
		if !all.Allowed {
			q.mode = modePeek
		}
		if err := s.travel(ctx, q); err != nil {
			if all.Allowed {
				err = errors.Join(err, s.takeBack(ctx, cs[:i], all.At))
			}
			return s.without(ctx, cs, false, err)
		}
		r := q.result
		s.pools.free(q)
		if all.Allowed && !r.Allowed {
			all.Allowed = false
			if err := s.takeBack(ctx, cs[:i], all.At); err != nil {
				return s.without(ctx, cs, false, err)
			}
		}
		// The masters' clocks may differ. The earliest instant gives back least.
		all.At = min(all.At, r.At)
		for j := range r.Len() {
			all.Add(r.Reading(j))
		}
	}
	s.decided(cs, &all)
	return all, nil
}

// takeBack gives whole charges back, once, whatever becomes of the request.
func (s *Store) takeBack(ctx context.Context, cs []core.Charge, at int64) error {
	if len(cs) == 0 {
		return nil
	}
	ss := make([]core.Settlement, len(cs))
	for i, c := range cs {
		ss[i] = core.Settlement{Charge: c, At: at, Source: core.SourceStore}
	}
	return s.Settle(context.WithoutCancel(ctx), ss)
}
