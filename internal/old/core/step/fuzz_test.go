package step_test

import (
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// FuzzNumbers: numbers are either refused, or any life of a key under them agrees
// with the model, which computes with integers of any size.
func FuzzNumbers(f *testing.F) {
	life := []byte("\x00\x01\x02\x13\x24\x35\x46\x57\x68\x79\x8a\x9b\xac\xbd\xce\xdf\xe0\xf1")
	for _, m := range subjects {
		var flags uint8
		if m.NeverOver {
			flags |= 1
		}
		if m.CountDenied {
			flags |= 2
		}
		if m.FromFirst {
			flags |= 4
		}
		switch {
		case m.Debt > 0 && m.Debt <= m.Burst:
			flags |= 8
		case m.Debt > 0:
			flags |= 16
		}
		f.Add(uint8(m.Algorithm), m.Limit, m.Period, m.Burst, m.Resolution, flags, life)
	}
	f.Fuzz(func(t *testing.T, algorithm uint8, limit, period, burst, resolution int64, flags uint8, life []byte) {
		m := step.Numbers{
			Algorithm: step.Algorithm(algorithm), Limit: limit, Period: period, Burst: burst, Resolution: resolution,
			NeverOver: flags&1 > 0, CountDenied: flags&2 > 0, FromFirst: flags&4 > 0,
		}
		switch burst = min(burst, step.MaxInt/8); {
		case flags&8 > 0:
			m.Debt = burst
		case flags&16 > 0:
			m.Debt = 7 * burst
		}
		if s, err := step.New(m); err != nil {
			if s != nil {
				t.Errorf("New(%+v) = %v, %v", m, s, err)
			}
			return
		}
		live(t, m, life)
	})
}

// live reads moves from bytes: what to do, for how many units, and when.
func live(t *testing.T, m step.Numbers, life []byte) {
	t.Helper()
	k := newKey(t, m)
	most := max(min(k.step.Max(), step.MaxInt), 1)
	if m.Algorithm == step.SlidingLog {
		most = min(most, 100) // the model lists every unit
	}
	sizes := []int64{1, 2, most, most/2 + 1, most / 3, min(k.step.Max()+1, step.MaxInt), 7, most - 1}
	spans := []int64{0, 0, 1, m.Period / 7, m.Period - 1, m.Period, 2*m.Period + 1, -m.Period / 2}
	now := int64(noon)
	type charge struct{ at, n int64 }
	var last *charge
	for _, b := range life[:min(len(life), 64)] {
		n := max(sizes[b&7], 1)
		now = min(max(now+spans[b>>3&7], 1), horizon)
		switch {
		case b>>6 == 3 && last != nil:
			k.settle(t, now, last.at, last.n, n)
			last = nil
		case b>>6 == 2 && b&1 == 1:
			k.report(t, now, n)
		case k.ask(t, now, n):
			last = &charge{now, n}
		}
		k.check(t, now, n)
	}
}
