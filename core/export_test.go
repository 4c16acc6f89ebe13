package core

// Waiting returns the number of keys that somebody waits for.
func (l *Limiter) Waiting() int {
	l.turns.mu.Lock()
	defer l.turns.mu.Unlock()
	return len(l.turns.keys)
}
