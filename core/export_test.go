package core

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
		callers += len(l.all)
	}
	if int64(callers) != q.waiting.Load() {
		return -1, -1
	}
	return callers, len(q.lines)
}
