package core

import "reflect"

// Like reports whether two decisions differ in nothing but the mark by which each is settled once.
func Like(a, b Decision) bool {
	if (a.spent == nil) != (b.spent == nil) {
		return false
	}
	a.spent, a.bit, b.spent, b.bit = nil, 0, nil, 0
	return reflect.DeepEqual(a, b)
}

// Waiting returns the number of keys that somebody waits for.
func (l *Limiter) Waiting() int {
	l.turns.mu.Lock()
	defer l.turns.mu.Unlock()
	return len(l.turns.keys)
}
