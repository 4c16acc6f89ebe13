package core

import (
	"sync"

	"github.com/headgate/headgate/internal/backend"
)

// A MemoryStore keeps counts in this process. Its zero value is ready; it must not be copied after its first use. It
// has no goroutine and nothing to close, and is safe for concurrent use.
type MemoryStore struct {
	// MaxBytes bounds the memory for rates. 0 means 64 MiB. When it is full, the states that matter least are
	// dropped: first those of keys that have units left, last those of keys that were refused some.
	MaxBytes int64

	// Observers are told of decisions and slots.
	Observers []*Observer

	once    sync.Once
	backend *backend.Stores
}
