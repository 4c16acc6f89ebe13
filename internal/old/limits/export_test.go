package limits

// Made returns how many limiters the document that is in force has.
func (b *Book) Made() (n int) {
	for _, t := range b.current.Load().limits {
		t.mu.Lock()
		n += len(t.made)
		t.mu.Unlock()
	}
	return n
}
