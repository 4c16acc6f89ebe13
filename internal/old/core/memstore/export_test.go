package memstore

// HotAtOnce returns a store in which each key is hot from the second call on that finds its
// state. It is for tests of what concurrent calls find.
func HotAtOnce(c Config) *Store {
	s := New(c)
	s.hotAfter = 1
	return s
}
