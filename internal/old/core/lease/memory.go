package lease

import "github.com/headgate/headgate/internal/old/core/store"

// What is reserved of Config.MaxBytes: never less than it takes.
const (
	entryBytes  = 616     // an entry, its share of a map, and what a key takes beyond its length
	policyBytes = 128     // the readings of each policy beyond two
	returnBytes = 216     // a settlement that waits, in a slice that grows
	callBytes   = 8 << 10 // a goroutine that calls the store
)

func entrySize(l *limiter, key string) int64 {
	return entryBytes + int64(len(key)) + policyBytes*max(int64(len(l.Spec().Policies))-2, 0)
}

func returnSize(t *store.Charge) int64 { return returnBytes + int64(len(t.Key)) }

// reserve reserves bytes, unless more than a bound would then be in use.
func (s *Store) reserve(bytes, bound int64) bool {
	if s.used.Add(bytes) <= bound {
		return true
	}
	s.used.Add(-bytes)
	return false
}
