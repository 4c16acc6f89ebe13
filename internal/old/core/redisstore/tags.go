package redisstore

import (
	"fmt"
	"sync"

	"github.com/headgate/headgate/internal/old/core/store"
)

// tags knows the policies whose limiters were prepared, by their limiter's name and their tag. Two
// policies of one tag would count together, also of two plans of a limiter. Those of other processes
// are not known.
type tags struct {
	mu    sync.Mutex
	names map[tagged]string
}

type tagged struct {
	limiter string
	tag     int64 // without the length
}

// maxTags bounds what is remembered, as documents may bring names without end.
const maxTags = 1 << 16

// add returns an error if another policy of a limiter of this name has the tag.
func (t *tags) add(limiter string, p *store.Policy) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := tagged{limiter, tagOf(p) >> lengthBits}
	other, ok := t.names[at]
	if ok && other != p.Name {
		return fmt.Errorf("the names of policies %q and %q have the same hash: rename one", other, p.Name)
	}
	if ok || len(t.names) == maxTags {
		return nil
	}
	if t.names == nil {
		t.names = make(map[tagged]string)
	}
	t.names[at] = p.Name
	return nil
}
