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

// Waiting returns the number of callers that wait, and of the keys that they wait for.
func (s *Slots) Waiting() (callers, keys int) {
	q := &s.state.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lines {
		if callers += len(l.all); len(l.all) > 0 {
			keys++
		}
	}
	if int64(callers) != q.waiting.Load() {
		return -1, -1
	}
	return callers, keys
}

// Lines returns how many lines are remembered.
func (s *Slots) Lines() int {
	q := &s.state.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines)
}

// Line returns, of each who waits for slots of a key, the key of the first other claim.
func (s *Slots) Line(key string) (keys []string) {
	q := &s.state.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[key]; l != nil {
		for _, w := range l.all {
			for _, c := range w.claims {
				if c.Key != key {
					keys = append(keys, c.Key)
					break
				}
			}
		}
	}
	return keys
}
